// When it came: one slider through the steps of training, and curves with a cursor at the step that it is on.

const WIDE = 380; // of a chart, in its own units
const HIGH = 210;
const MOVES =
  "Drag the slider: the map, the lines and the mark on these curves move with it. " +
  "While training, heads are scored on a small set of sentences of the kind it was trained on.";
const NONE = "This run kept no record of its heads while it trained.";
const EDGE = { left: 38, right: 92, top: 14, bottom: 26 };

function drawTimeline() {
  if (!steps.length) return show("timeline");
  const range = make("input", {
    type: "range",
    id: "step",
    min: "0",
    max: END,
    step: "1",
    value: state.time,
    "aria-label": "Training step",
  });
  const out = make("output", { for: "step", id: "step-name" });
  const play = make("button", { type: "button", id: "play" }, "Play");
  range.addEventListener("input", () => update({ time: Number(range.value) }));
  play.addEventListener("click", () => (playing ? stop() : start()));
  show("timeline", make("span", { class: "timeline-name", "aria-hidden": "true" }, "Training"), play, range, out);
}

let playing = null; // the timer while the film runs

function start() {
  if (state.time >= END) update({ time: 0 });
  // No animation frames: each step is a picture of its own, long enough to be looked at.
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  playing = setInterval(() => (state.time < END ? update({ time: state.time + 1 }) : stop()), calm ? 600 : 160);
  document.getElementById("play").textContent = "Stop";
}

function stop() {
  clearInterval(playing);
  playing = null;
  document.getElementById("play").textContent = "Play";
}

function stepName(time) {
  return time === END ? "the end, on test" : `step ${steps[time].toLocaleString("en")}, on dev`;
}

function drawStep() {
  const range = document.getElementById("step");
  if (!range) return;
  range.value = state.time;
  range.setAttribute("aria-valuetext", stepName(state.time));
  document.getElementById("step-name").textContent = stepName(state.time);
}

// The charts of the chosen question: {title, steps, lines: [{name, values, kind}]}, and what bounds them.
function chartsNow() {
  const found = curve();
  if (!found) return lossCharts();
  const { layer, head } = state;
  const of = (key) => ({ name: headName(layer, head), values: found[key].map((row) => row[layer][head]), kind: "own" });
  const luck = { name: "luck", values: found.luck, kind: "luck" };
  const model = (values) => ({ name: "model", values, kind: "own" });
  const charts = [
    { title: "Sel@1", share: true, steps, lines: [...otherHeads(found.accuracy, layer, head), luck, of("accuracy")] },
    { title: "DD", zero: true, steps, lines: [...otherHeads(found.pronoun_contrast, layer, head), of("pronoun_contrast")] },
  ];
  if (found.rho) charts.push({ title: "ρ, 1 is best", zero: true, low: Math.min(-1, lastOf(found.rho)), steps, lines: [model(found.rho)] });
  if (found.payoff) charts.push(payoffChart(found.payoff));
  return [...charts, ...lossCharts()];
}

function lossCharts() {
  if (!emergence || !emergence.loss.steps.length) return [];
  const { steps: at, validation, floor } = emergence.loss;
  const model = { name: "model", values: validation, kind: "own" };
  if (!floor) return [{ title: "Validation loss, nats/token", steps: at, lines: [model] }];
  const gap = validation.map((value, i) =>
    value === null || floor[i] === null ? null : Math.max(1e-3, value - floor[i]),
  );
  return [
    {
      title: "Validation loss, nats/token",
      steps: at,
      lines: [{ name: "floor", values: floor, kind: "luck" }, model],
      high: Math.max(2.5 * Math.max(...floor), lastOf(validation)),
    },
    { title: "Above the floor, nats/token", steps: at, lines: [{ name: "model", values: gap, kind: "own" }], log: true },
  ];
}

function otherHeads(rows, layer, head) {
  if (nLayer * nHead > 32) return []; // too many to tell apart
  const all = perHead((l, h) => ({
    name: "",
    values: rows.map((row) => row[l][h]),
    kind: "faint",
    mine: l === layer && h === head,
  }));
  return all.flat().filter((one) => !one.mine);
}

// Oracles that have the same loss throughout are one line with all their names.
function payoffChart(payoff) {
  const same = new Map();
  for (const name of Object.keys(payoff).filter((one) => one !== "model")) {
    const key = payoff[name].map((value) => told(value)).join(" ");
    same.set(key, [...(same.get(key) ?? []), name]);
  }
  const lines = [...same.values()].map(oracleLine(payoff));
  const worst = Math.max(...lines.flatMap((line) => line.values));
  lines.push({ name: "model", values: payoff.model, kind: "own" });
  return { title: "Loss at the payoff, nats", steps, lines, high: lines.length > 1 ? Math.max(1.5 * worst, lastOf(payoff.model)) : Infinity };
}

function oracleLine(payoff) {
  return (names) => {
    const all = names.join(", ");
    const name = names.length > 2 ? `${names[0]}, ${names.length - 1} more` : all;
    return { name, all, values: payoff[names[0]], kind: "oracle" };
  };
}

let drawn = []; // {chart, cursor, x, read}: what moves with the slider

function drawCurves() {
  drawn = [];
  const charts = chartsNow();
  show("curves", ...charts.map(figureOf));
  const none = content.run.max_steps === null ? "How this model was trained is not known here." : NONE;
  show("time-lead", charts.length ? MOVES : none);
  drawCursor();
}

function figureOf(chart) {
  const scale = scaleOf(chart);
  const picture = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": chartLabel(chart) });
  picture.append(axes(chart, scale));
  picture.append(insideOf(chart.lines.map((line) => pathOf(chart, line, scale))), ...endNames(chart, scale));
  const cursor = shape("line", { class: "cursor", y1: EDGE.top, y2: HIGH - EDGE.bottom });
  const mark = shape("circle", { class: "mark", r: 4 });
  picture.append(cursor, mark);
  picture.addEventListener("click", (event) => moveTo(event, picture, scale));
  const read = make("span", { class: "read" });
  drawn.push({ chart, scale, cursor, mark, read });
  return make("figure", {}, make("figcaption", {}, make("b", {}, chart.title), " ", read), picture, ...[cutOf(chart, scale), numbersOf(chart)].filter(Boolean));
}

// `high` cuts off a loss's first fall, beside which nothing later could be seen; `log` shows each tenth alike.
function scaleOf(chart) {
  const [low, high] = rangeOf(chart);
  const last = Math.max(chart.steps[chart.steps.length - 1], steps[steps.length - 1] ?? 0) || 1;
  const bent = chart.log ? Math.log10 : (value) => value;
  const share = (value) => (bent(value) - bent(low)) / (bent(high) - bent(low));
  return {
    low,
    high,
    last,
    x: (step) => EDGE.left + (step / last) * (WIDE - EDGE.left - EDGE.right),
    y: (value) => HIGH - EDGE.bottom - share(value) * (HIGH - EDGE.top - EDGE.bottom),
  };
}

function lastOf(values) {
  return values.findLast((value) => value !== null) ?? 0;
}

// What an axis leaves out, so that nobody takes the edge of the chart for the end of a line.
function cutOf(chart, { low, high }) {
  const values = chart.lines.flatMap((line) => line.values).filter((value) => value !== null);
  const ends = [];
  if (Math.min(...values) < low) ends.push(`below ${told(low)}`);
  if (Math.max(...values) > high) ends.push(`above ${told(high)}`);
  return ends.length ? make("p", { class: "rule" }, `${ends.join(" and ")} not drawn`) : null;
}

function rangeOf(chart) {
  const values = chart.lines.flatMap((line) => line.values).filter((value) => value !== null);
  if (chart.zero) values.push(0);
  const low = Math.max(chart.low ?? -Infinity, Math.min(...values));
  const high = Math.min(chart.high ?? Infinity, Math.max(...values));
  if (chart.log) return [10 ** Math.floor(Math.log10(low)), 10 ** Math.ceil(Math.log10(high))];
  if (chart.share) return [Math.min(low, 0.4), 1];
  return high > low ? [low, high] : [low - 0.5, low + 0.5];
}

function axes(chart, { low, high, last, x, y }) {
  const group = shape("g", { class: "axes" });
  const decades = () =>
    ticksOf(Math.log10(low), Math.log10(high))
      .filter(Number.isInteger)
      .map((power) => 10 ** power);
  for (const tick of chart.log ? decades() : ticksOf(low, high)) {
    group.append(
      shape("line", { x1: EDGE.left, x2: WIDE - EDGE.right, y1: y(tick), y2: y(tick) }),
      shape("text", { x: EDGE.left - 6, y: y(tick) + 4, "text-anchor": "end" }, String(Number(tick.toFixed(6)))),
    );
  }
  for (const tick of ticksOf(0, last, 3)) {
    group.append(shape("text", { x: x(tick), y: HIGH - 8, "text-anchor": "middle" }, tick.toLocaleString("en")));
  }
  return group;
}

// A window that cuts off what leaves the chart above or below.
function insideOf(paths) {
  const [x, y, width, height] = [
    EDGE.left - 2,
    EDGE.top - 2,
    WIDE - EDGE.left - EDGE.right + 4,
    HIGH - EDGE.top - EDGE.bottom + 4,
  ];
  return shape("svg", { x, y, width, height, viewBox: `${x} ${y} ${width} ${height}`, class: "inside" }, ...paths);
}

function pathOf(chart, line, { x, y }) {
  let d = "";
  line.values.forEach((value, i) => {
    if (value !== null) d += `${d ? "L" : "M"}${x(chart.steps[i]).toFixed(1)} ${y(value).toFixed(1)}`;
  });
  return shape("path", { class: `curve ${line.kind}`, d });
}

// Names at the lines' ends, pushed apart so that none covers another and none leaves the chart.
function endNames(chart, { y }) {
  const last = (line) => line.values.findLast((value) => value !== null) ?? 0;
  const ends = chart.lines.filter((line) => line.name).map((line) => ({ line, at: y(last(line)) }));
  ends.sort((a, b) => a.at - b.at);
  ends.forEach((one, i) => {
    if (i) one.at = Math.max(one.at, ends[i - 1].at + 14);
  });
  let floor = HIGH - EDGE.bottom;
  for (const one of ends.toReversed()) {
    one.at = Math.min(one.at, floor);
    floor = one.at - 14;
  }
  return ends.map(({ line, at }) =>
    shape("text", { class: `end ${line.kind}`, x: WIDE - EDGE.right + 8, y: at + 4 }, legible(line.name)),
  );
}

function chartLabel(chart) {
  const named = chart.lines.filter((line) => line.name);
  const ends = named.map(({ all, name, values }) => `${all ?? name} from ${told(values[0])} to ${told(values.at(-1))}`);
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
  const column = (text) => make("th", { scope: "col" }, text);
  const head = make("tr", {}, column("step"), ...named.map((line) => column(line.all ?? line.name)));
  const row = (step, i) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, String(step)),
      ...named.map((line) => make("td", {}, told(line.values[i], 3))),
    );
  const caption = make("caption", { class: "unseen" }, chart.title);
  const table = make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...chart.steps.map(row)));
  const about = `${chart.title}, numbers`;
  return make("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": about }, table);
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
    const outside = value === null || value < scale.low || value > scale.high;
    mark.setAttribute("visibility", outside ? "hidden" : "visible");
    mark.setAttribute("cx", scale.x(chart.steps[i]));
    mark.setAttribute("cy", scale.y(value ?? scale.low));
    read.textContent = `${told(value)} at step ${chart.steps[i].toLocaleString("en")}`;
  }
}

function moveTo(event, picture, scale) {
  const box = picture.getBoundingClientRect();
  const x = ((event.clientX - box.left) / box.width) * WIDE;
  const step = ((x - EDGE.left) / (WIDE - EDGE.left - EDGE.right)) * scale.last;
  let best = 0;
  steps.forEach((one, i) => {
    if (Math.abs(one - step) < Math.abs(steps[best] - step)) best = i;
  });
  update({ time: best });
}
