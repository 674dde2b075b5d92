// When it came: one slider through the steps of training, and curves with a cursor at the step that it is on.

const WIDE = 380; // of a chart, in its own units
const HIGH = 210;
const EDGE = { left: 38, right: 92, top: 14, bottom: 26 };

function drawTimeline() {
  if (!steps.length) return show("timeline");
  const range = make("input", { type: "range", id: "step", min: "0", max: END, step: "1", value: state.time, "aria-label": "Training step" });
  const out = make("output", { for: "step", id: "step-name" });
  const play = make("button", { type: "button", id: "play" }, "Play");
  range.addEventListener("input", () => update({ time: Number(range.value) }));
  play.addEventListener("click", () => playing ? stop() : start());
  show("timeline", make("span", { class: "timeline-name", "aria-hidden": "true" }, "Training"), play, range, out);
}

let playing = null; // the timer while the film runs

function start() {
  if (state.time >= END) update({ time: 0 });
  // No animation frames: each step is a picture of its own, long enough to be looked at.
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  playing = setInterval(() => state.time < END ? update({ time: state.time + 1 }) : stop(), calm ? 600 : 160);
  document.getElementById("play").textContent = "Stop";
}

function stop() {
  clearInterval(playing);
  playing = null;
  document.getElementById("play").textContent = "Play";
}

function stepName(time) {
  return time === END ? "the end, on test" : `step ${steps[time].toLocaleString("en")}`;
}

function drawStep() {
  const range = document.getElementById("step");
  if (!range) return;
  range.value = state.time;
  range.setAttribute("aria-valuetext", stepName(state.time));
  document.getElementById("step-name").textContent = stepName(state.time);
}

// The charts of the chosen question: {title, unit, steps, lines: [{name, values, kind}]}.
function chartsNow() {
  const found = curve();
  const { layer, head } = state;
  const of = (rows) => rows.map((row) => row[layer][head]);
  const charts = [];
  if (found) {
    const others = (key) => otherHeads(found[key], layer, head);
    charts.push({ title: "Sel@1", steps, lines: [...others("sel1"), { name: "luck", values: found.luck, kind: "luck" },
      { name: headName(layer, head), values: of(found.sel1), kind: "own" }] });
    charts.push({ title: "DD", steps, lines: [...others("dd"), { name: headName(layer, head), values: of(found.dd), kind: "own" }], zero: true });
    if (found.rho) charts.push({ title: "ρ, how well the answer follows the pronoun", steps, low: -1, lines: [{ name: "model", values: found.rho, kind: "own" }], zero: true });
    if (found.payoff) charts.push({ title: "Loss at the payoff, nats", steps, lines: payoffLines(found.payoff) });
  }
  if (emergence && emergence.loss.steps.length) charts.push({ title: "Validation loss, nats/token", steps: emergence.loss.steps, lines: lossLines(emergence.loss) });
  return charts;
}

function otherHeads(rows, layer, head) {
  if (nLayer * nHead > 32) return []; // too many to tell apart
  const all = perHead((l, h) => ({ name: "", values: rows.map((row) => row[l][h]), kind: "faint", mine: l === layer && h === head }));
  return all.flat().filter((one) => !one.mine);
}

function lossLines(loss) {
  const lines = [{ name: "model", values: loss.validation, kind: "own" }];
  return loss.floor ? [{ name: "floor", values: loss.floor, kind: "luck" }, ...lines] : lines;
}

// Oracles that have the same loss throughout are one line with all their names.
function payoffLines(payoff) {
  const same = new Map();
  for (const [name, values] of Object.entries(payoff)) {
    if (name === "model") continue;
    const key = values.map((value) => told(value)).join(" ");
    same.set(key, [...(same.get(key) ?? []), name]);
  }
  const lines = [...same.values()].map((names) => ({ name: names.length > 2 ? `${names[0]} +${names.length - 1}` : names.join(", "), all: names.join(", "), values: payoff[names[0]], kind: "oracle" }));
  return [...lines, { name: "model", values: payoff.model, kind: "own" }];
}

let drawn = []; // {chart, cursor, x, read}: what moves with the slider

function drawCurves() {
  drawn = [];
  const charts = chartsNow();
  show("curves", ...charts.map(figureOf));
  show("time-lead", charts.length ? "Drag the slider: the map, the lines and the mark on these curves move with it. While training, heads are scored on a small set of sentences of the kind it was trained on."
    : "This run kept no record of its heads while it trained.");
  drawCursor();
}

function figureOf(chart) {
  const scale = scaleOf(chart);
  const picture = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": chartLabel(chart) });
  picture.append(axes(chart, scale));
  for (const line of chart.lines) picture.append(pathOf(chart, line, scale));
  picture.append(...endNames(chart, scale));
  const cursor = shape("line", { class: "cursor", y1: EDGE.top, y2: HIGH - EDGE.bottom });
  const mark = shape("circle", { class: "mark", r: 4 });
  picture.append(cursor, mark);
  picture.addEventListener("click", (event) => moveTo(event, picture, scale));
  const read = make("span", { class: "read" });
  drawn.push({ chart, scale, cursor, mark, read });
  return make("figure", {}, make("figcaption", {}, make("b", {}, chart.title), " ", read), picture, numbersOf(chart));
}

function scaleOf(chart) {
  const values = chart.lines.flatMap((line) => line.values).filter((value) => value !== null);
  let low = Math.max(chart.low ?? -Infinity, Math.min(...values, chart.zero ? 0 : Infinity));
  let high = Math.max(...values, chart.zero ? 0 : -Infinity);
  if (chart.title === "Sel@1") [low, high] = [Math.min(low, 0.4), 1];
  if (!(high > low)) [low, high] = [low - 0.5, low + 0.5];
  const last = Math.max(chart.steps[chart.steps.length - 1], steps[steps.length - 1] ?? 0) || 1;
  const clip = (value) => Math.max(low, Math.min(high, value));
  return {
    low, high, last,
    x: (step) => EDGE.left + (step / last) * (WIDE - EDGE.left - EDGE.right),
    y: (value) => HIGH - EDGE.bottom - ((clip(value) - low) / (high - low)) * (HIGH - EDGE.top - EDGE.bottom),
  };
}

function axes(chart, { low, high, last, x, y }) {
  const group = shape("g", { class: "axes" });
  for (const tick of ticksOf(low, high)) {
    group.append(shape("line", { x1: EDGE.left, x2: WIDE - EDGE.right, y1: y(tick), y2: y(tick) }),
      shape("text", { x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }, String(Number(tick.toFixed(6)))));
  }
  for (const tick of ticksOf(0, last, 3)) {
    group.append(shape("text", { x: x(tick), y: HIGH - 8, "text-anchor": "middle" }, tick.toLocaleString("en")));
  }
  return group;
}

function pathOf(chart, line, { x, y }) {
  let d = "";
  line.values.forEach((value, i) => { if (value !== null) d += `${d ? "L" : "M"}${x(chart.steps[i]).toFixed(1)} ${y(value).toFixed(1)}`; });
  return shape("path", { class: `curve ${line.kind}`, d });
}

// Names at the lines' ends, pushed apart so that none covers another.
function endNames(chart, { y }) {
  const ends = chart.lines.filter((line) => line.name).map((line) => ({ line, at: y(line.values.findLast((value) => value !== null) ?? 0) }));
  ends.sort((a, b) => a.at - b.at);
  ends.forEach((one, i) => { if (i) one.at = Math.max(one.at, ends[i - 1].at + 14); });
  const over = ends.length ? ends[ends.length - 1].at - (HIGH - EDGE.bottom) : 0;
  return ends.map(({ line, at }) => shape("text", { class: `end ${line.kind}`, x: WIDE - EDGE.right + 8, y: at + 4 - Math.max(0, over) }, legible(line.name)));
}

function chartLabel(chart) {
  const named = chart.lines.filter((line) => line.name);
  const ends = named.map((line) => `${line.all ?? line.name} from ${told(line.values[0])} to ${told(line.values[line.values.length - 1])}`);
  return `${chart.title} over training: ${ends.join("; ")}. The numbers are in the table below it.`;
}

function numbersOf(chart) {
  const box = make("details", {}, make("summary", {}, "numbers"));
  // Filled when it is opened: a hundred rows that nobody asks for cost time.
  box.addEventListener("toggle", () => {
    if (box.open && box.children.length === 1) box.append(tableOf(chart));
  });
  return box;
}

function tableOf(chart) {
  const named = chart.lines.filter((line) => line.name);
  const head = make("tr", {}, make("th", { scope: "col" }, "step"), ...named.map((line) => make("th", { scope: "col" }, line.all ?? line.name)));
  const rows = chart.steps.map((step, i) => make("tr", {}, make("th", { scope: "row" }, String(step)), ...named.map((line) => make("td", {}, told(line.values[i], 3)))));
  const table = make("table", {}, make("caption", { class: "unseen" }, chart.title), make("thead", {}, head), make("tbody", {}, ...rows));
  return make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `${chart.title}, numbers` }, table);
}

function drawCursor() {
  for (const { chart, scale, cursor, mark, read } of drawn) {
    const now = state.time === END ? scale.last : steps[state.time];
    let i = 0;
    while (i + 1 < chart.steps.length && chart.steps[i + 1] <= now) i++;
    const own = chart.lines.find((line) => line.kind === "own");
    const x = scale.x(now);
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    const value = own.values[i];
    mark.setAttribute("visibility", value === null ? "hidden" : "visible");
    mark.setAttribute("cx", scale.x(chart.steps[i]));
    mark.setAttribute("cy", scale.y(value ?? scale.low));
    read.textContent = `${told(value)} at step ${chart.steps[i].toLocaleString("en")}`;
  }
}

function moveTo(event, picture, scale) {
  const box = picture.getBoundingClientRect();
  const step = ((event.clientX - box.left) / box.width * WIDE - EDGE.left) / (WIDE - EDGE.left - EDGE.right) * scale.last;
  let best = 0;
  steps.forEach((one, i) => { if (Math.abs(one - step) < Math.abs(steps[best] - step)) best = i; });
  update({ time: best });
}
