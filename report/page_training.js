// When the link appeared: curves of training, and a slider through the training steps that moves the whole page.

const WIDTH = 380; // of a chart, in units of its viewBox
const HEIGHT = 200;
const EDGE = { left: 40, right: 12, top: 12, bottom: 24 };

const PLAY = 700; // milliseconds for each step
let playTimer = null;

function drawSlider() {
  if (!steps.length) return document.querySelector("#training .lead").remove(); // nothing above moves
  const range = element("input", { type: "range", id: "step", min: "0", max: END, step: "1", value: END, "aria-label": "Training step" });
  range.addEventListener("input", () => {
    stopPlaying();
    update({ time: Number(range.value) });
  });
  const play = button("", () => (playTimer ? stopPlaying() : playFrom(0)), { id: "play" });
  show("slider", play, range, element("output", { for: "step", id: "step-name" }));
  redrawOn("time playing", () => {
    range.value = state.time; // a link may have changed it
    range.setAttribute("aria-valuetext", stepName());
    show("step-name", stepName());
    play.textContent = state.playing ? "❚❚ stop" : "▶ play training";
  });
}

// The step of the weights that are shown.
function stepName() {
  return `step ${liveStep().toLocaleString("en")}${state.time === END ? ", trained" : ""}`;
}

function playFrom(time) {
  playTimer = time < END ? setTimeout(playFrom, PLAY, time + 1) : null;
  update({ time, playing: time < END });
}

function stopPlaying() {
  clearTimeout(playTimer);
  playTimer = null;
  update({ playing: false });
}

// {title, steps, lines: [{name, values, kind}], low, high}; kind "head" is the curve that the cursor follows.
function chartsNow() {
  const { layer, head } = state;
  const charts = chartsOf(question()).map(({ heads, lines, ...chart }) => {
    if (!heads) return { ...chart, steps: training.steps, lines };
    const selected = { name: headName(layer, head), kind: "head", values: heads.map((values) => values[layer][head]) };
    return { ...chart, steps: training.steps, lines: [...lines, ...otherHeads(heads), selected] };
  });
  const { loss } = training;
  const lines = [{ name: "validation loss", kind: "head", values: loss.validation }];
  if (loss.floor) lines.unshift({ name: "entropy lower bound", kind: "dashed", values: loss.floor });
  return [...charts, { title: "Validation loss, nats/token", steps: loss.steps, lines }];
}

function otherHeads(rows) {
  if (nLayer * nHead > 32) return []; // too many lines to tell apart
  const lines = perHead((layer, head) => ({ name: "", kind: "faint", values: rows.map((heads) => heads[layer][head]) })).flat();
  lines[0].name = "other heads"; // the line of the selected head is drawn over its own faint line
  return lines;
}

function drawCharts() {
  if (training) show("charts", ...chartsNow().map(chartFigure));
}

function chartFigure({ title, steps: at, lines, low: lowest, high: highest }) {
  // Places of steps and values
  const values = lines.flatMap((curve) => curve.values).filter((value) => value !== null);
  const low = lowest ?? Math.min(...values);
  const high = Math.max(highest ?? Math.max(...values), low + 1e-3);
  const last = Math.max(at.at(-1), 1);
  const x = (step) => EDGE.left + (step / last) * (WIDTH - EDGE.left - EDGE.right);
  const y = (value) => HEIGHT - EDGE.bottom - ((value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom);

  // Axes, curves, and the step of the slider
  const named = lines.filter(({ name }) => name);
  const ends = named.map((curve) => `${curve.name} from ${number(curve.values[0])} to ${number(curve.values.at(-1))}`);
  const about = `${title} during training: ${ends.join("; ")}`;
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": about });
  for (const tick of [low, (low + high) / 2, high]) {
    picture.append(shape("line", { class: "axis", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(tick), y2: y(tick) }));
    picture.append(shape("text", { x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
  }
  picture.append(shape("text", { x: EDGE.left, y: HEIGHT - 6, "text-anchor": "middle" }, "0"));
  picture.append(shape("text", { x: x(last), y: HEIGHT - 6, "text-anchor": "end" }, last.toLocaleString("en")));
  for (const curve of lines) {
    const points = curve.values.flatMap((value, i) => (value === null ? [] : [`${x(at[i]).toFixed(1)} ${y(value).toFixed(1)}`]));
    picture.append(shape("path", { class: `curve ${curve.kind}`, d: points.length ? `M${points.join("L")}` : "" }));
  }
  const now = state.time === END ? last : steps[state.time];
  picture.append(shape("line", { class: "cursor", x1: x(now), x2: x(now), y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));

  // What it shows, in words
  const i = Math.max(0, at.findLastIndex((step) => step <= now));
  const main = lines.find(({ kind }) => kind === "head");
  const value = ` ${number(main.values[i])} at step ${at[i].toLocaleString("en")}`;
  const mark = (kind) => shape("svg", { width: 18, height: 8 }, shape("path", { class: `curve ${kind}`, d: "M0 4H18" }));
  const keys = named.map(({ name, kind }) => element("span", { class: "key" }, mark(kind), name));
  return element("figure", {}, element("figcaption", {}, element("b", {}, title), value), picture, element("p", { class: "keys" }, ...keys));
}
