// When the link appeared: curves of training, and a slider through the training steps that moves the whole page.

const WIDTH = 380; // of a chart, in units of its viewBox
const HEIGHT = 200;
const EDGE = { left: 40, right: 12, top: 12, bottom: 24 };

let moveSlider = (time) => update({ time }); // for links; without a slider there is one step

function drawSlider() {
  if (!hasHistory()) document.querySelector("#training .lead")?.remove(); // nothing above moves
  if (!steps.length) return;
  const range = element("input", { type: "range", id: "step", min: "0", max: END, step: "1", value: END, "aria-label": "Training step" });
  range.addEventListener("input", () => update({ time: Number(range.value) }));
  moveSlider = (time) => {
    range.value = time;
    update({ time });
  };
  show("slider", range, element("output", { for: "step", id: "step-name" }));
  redrawOn("time", () => {
    const name = state.time === END ? "trained model, test split" : stepName(steps[state.time]);
    range.setAttribute("aria-valuetext", name);
    show("step-name", name);
  });
}

// The step of the weights that are shown, and that of the scores where it is a later one.
function stepName(step) {
  const shown = hasHistory() ? liveStep() : step;
  const scores = shown === step ? "" : `scores of step ${step.toLocaleString("en")}, `;
  return `step ${shown.toLocaleString("en")}, ${scores}dev split`;
}

// {title, steps, lines: [{name, values, kind}], low, high}; kind "head" is the curve that the cursor follows.
function chartsNow() {
  const { layer, head } = state;
  const charts = chartsOf(question()).map(({ heads, lines, ...chart }) => {
    if (!heads) return { ...chart, steps, lines };
    const selected = { name: headName(layer, head), kind: "head", values: heads.map((values) => values[layer][head]) };
    return { ...chart, steps, lines: [...lines, ...otherHeads(heads), selected] };
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

function chartFigure(chart) {
  const scale = scaleOf(chart);
  const curves = chart.lines.map((curve) => curvePath(chart, curve, scale));
  const now = state.time === END ? scale.last : steps[state.time];
  const cursor = shape("line", { class: "cursor", x1: scale.x(now), x2: scale.x(now), y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
  const picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": chartLabel(chart) }, axes(scale), ...curves, cursor);
  const i = Math.max(0, chart.steps.findLastIndex((step) => step <= now));
  const main = chart.lines.find(({ kind }) => kind === "head");
  const value = `${number(main.values[i])} at step ${chart.steps[i].toLocaleString("en")}`;
  const keys = chart.lines.filter(({ name }) => name).map(({ name, kind }) =>
    element("span", { class: "key" }, shape("svg", { width: 18, height: 8 }, shape("path", { class: `curve ${kind}`, d: "M0 4H18" })), name),
  );
  const caption = element("figcaption", {}, element("b", {}, chart.title), ` ${value}`);
  return element("figure", {}, caption, picture, element("p", { class: "keys" }, ...keys));
}

function scaleOf(chart) {
  const values = chart.lines.flatMap((curve) => curve.values).filter((value) => value !== null);
  const low = chart.low ?? Math.min(...values);
  const high = Math.max(chart.high ?? Math.max(...values), low + 1e-3);
  const last = Math.max(chart.steps.at(-1), steps.at(-1) ?? 0, 1);
  return {
    low,
    high,
    last,
    x: (step) => EDGE.left + (step / last) * (WIDTH - EDGE.left - EDGE.right),
    y: (value) => HEIGHT - EDGE.bottom - ((value - low) / (high - low)) * (HEIGHT - EDGE.top - EDGE.bottom),
  };
}

function axes({ low, high, last, x, y }) {
  const group = shape("g", { class: "axes" });
  for (const tick of [low, (low + high) / 2, high]) {
    group.append(shape("line", { x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(tick), y2: y(tick) }));
    group.append(shape("text", { x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }, number(tick)));
  }
  for (const tick of [0, last]) {
    group.append(shape("text", { x: x(tick), y: HEIGHT - 6, "text-anchor": tick ? "end" : "middle" }, tick.toLocaleString("en")));
  }
  return group;
}

function curvePath(chart, { values, kind }, { x, y }) {
  const points = values.flatMap((value, i) => (value === null ? [] : [`${x(chart.steps[i]).toFixed(1)} ${y(value).toFixed(1)}`]));
  return shape("path", { class: `curve ${kind}`, d: points.length ? `M${points.join("L")}` : "" });
}

function chartLabel({ title, lines }) {
  const ends = lines.filter(({ name }) => name).map(({ name, values }) => `${name} from ${number(values[0])} to ${number(values.at(-1))}`);
  return `${title} during training: ${ends.join("; ")}`;
}
