// Is it why? Pictures of the tables that Python wrote: the same numbers on one scale.

const TALL = 26; // pixels of a row
const MIDDLE = TALL / 2;

function drawWhy() {
  for (const block of document.querySelectorAll("#why [data-question]")) {
    const asked = content.questions[Number(block.dataset.question)];
    for (const place of block.querySelectorAll("[data-plot]"))
      place.replaceChildren(...PLOTS[place.dataset.plot](asked));
    // The numbers stand in the picture; the whole table is one click away.
    for (const numbers of block.querySelectorAll("[data-plot] + details")) numbers.open = false;
  }
}

const PLOTS = { holdouts: holdoutPlot, causal: causalPlot, cues: cuePlot };

// Where a value stands between low and high, in percent of the width: rows stretch, and their marks do not.
function scaled(low, high) {
  return (value) => `${(2 + (96 * (Math.max(low, Math.min(high, value)) - low)) / (high - low)).toFixed(2)}%`;
}

// The picture repeats what the table beside it says, so it is hidden from those who are read to.
function plotOf(title, keys, rows, ticks, x) {
  const grid = (tick) =>
    shape("line", { class: tick === 0 ? "zero" : "grid", x1: x(tick), x2: x(tick), y1: 0, y2: TALL });
  const number = (tick) =>
    shape("text", { x: x(tick), y: 12, "text-anchor": "middle" }, String(Number(tick.toFixed(6))));
  const body = rows.map(({ name, marks, value }) =>
    plotRow(name.slice(0, 80), shape("svg", { height: TALL }, ...ticks.map(grid), ...marks), value),
  );
  const axis = plotRow("", shape("svg", { class: "axes", height: 18 }, ...ticks.map(number)), "");
  const heading = make("p", { class: "plot-title" }, make("b", {}, title), " ", ...keys);
  return [make("div", { class: "figure", "aria-hidden": "true" }, heading, ...body, axis)];
}

function plotRow(name, picture, value) {
  const [left, right] = [make("span", { class: "plot-name" }, name), make("span", { class: "plot-value" }, value)];
  return make("div", { class: "plot-row" }, left, picture, right);
}

function whisker(ends, x) {
  return ends ? [shape("line", { class: "whisker", x1: x(ends[0]), x2: x(ends[1]), y1: MIDDLE, y2: MIDDLE })] : [];
}

function dot(value, x, kind, r = 5) {
  return value === null ? [] : [shape("circle", { class: kind, cx: x(value), cy: MIDDLE, r })];
}

function square(value, x, kind) {
  return value === null
    ? []
    : [
        shape("rect", {
          class: kind,
          x: x(value),
          y: MIDDLE - 4.5,
          width: 9,
          height: 9,
          transform: "translate(-4.5 0)",
        }),
      ];
}

function band([from, to], x, kind, high) {
  const width = parseFloat(x(Math.max(from, to))) - parseFloat(x(Math.min(from, to)));
  return shape("rect", {
    class: kind,
    x: x(Math.min(from, to)),
    width: `${width.toFixed(2)}%`,
    y: MIDDLE - high / 2,
    height: high,
    rx: 2,
  });
}

function keyOf(mark, text) {
  return make(
    "span",
    { class: "key" },
    shape("svg", { width: 20, height: TALL, viewBox: `0 0 20 ${TALL}` }, mark),
    text,
  );
}

function holdoutPlot(asked) {
  const x = scaled(0, 1);
  const rows = asked.holdouts.map((one) => ({
    name: one.name,
    value: told(one.accuracy, 3),
    marks: [
      ...(one.untrained && one.untrained.interval ? [band(one.untrained.interval, x, "untrained", 14)] : []),
      ...Object.values(one.baselines).flatMap((value) => dot(value, x, "rule-dot", 4)),
      ...Object.values(one.knowing).flatMap((value) => square(value, x, "knowing")),
      ...whisker(one.accuracy_interval, x),
      ...dot(one.accuracy, x, "own-dot"),
    ],
  }));
  const middle = () => "10";
  return plotOf(
    "Sel@1 by hold-out",
    [
      keyOf(shape("circle", { class: "own-dot", cx: 10, cy: MIDDLE, r: 5 }), "this head"),
      keyOf(shape("circle", { class: "rule-dot", cx: 10, cy: MIDDLE, r: 4 }), "rules that know nothing"),
      keyOf(square(0, middle, "knowing")[0], "a rule that knows number and kind"),
      keyOf(
        shape("rect", { class: "untrained", x: 1, width: 18, y: MIDDLE - 7, height: 14, rx: 2 }),
        "untrained models, 95 %",
      ),
    ],
    rows,
    [0, 0.25, 0.5, 0.75, 1],
    x,
  );
}

function causalPlot(asked) {
  const values = asked.causal.flatMap((one) => [one.value, ...(one.interval ?? [])]).filter((value) => value !== null);
  const low = Math.min(0, ...values);
  const high = Math.max(1, ...values);
  const x = scaled(low, high);
  const rows = asked.causal.map((one) => ({
    name: one.label,
    value: told(one.value),
    marks:
      one.value === null
        ? []
        : [band([0, one.value], x, one.value < 0 ? "bar-below" : "bar-above", 12), ...whisker(one.interval, x)],
  }));
  return plotOf(
    "What happens to the answer",
    ["1 is all of what the partner text would change, 0 nothing"],
    rows,
    ticksOf(low, high, 6),
    x,
  );
}

function cuePlot(asked) {
  const cues = Object.entries(asked.cues);
  const whole = cues.reduce((sum, [, value]) => sum + value ** 2, 0) || 1;
  const x = scaled(0, 1);
  const rows = cues.map(([name, value]) => ({
    name,
    value: `${((100 * value ** 2) / whole).toFixed(1)} %`,
    marks: [band([0, value ** 2 / whole], x, name === "coreference" ? "bar-above" : "bar-idle", 12)],
  }));
  return plotOf(
    "What moves its preference",
    ["shares of b²; a head that links has all of it in coreference"],
    rows,
    [0, 0.25, 0.5, 0.75, 1],
    x,
  );
}
