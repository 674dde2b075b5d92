// All heads as a grid of buttons (layers down, heads across), coloured by one score.

function drawScoreChoice() {
  const options = measuresOf(question()).map((name) => [name, content.measures[name].label]);
  show("score-choice", options.length > 1 ? menu("Colour by", options, state.score, (score) => update({ score })) : null);
}

function drawHeads() {
  if (!state.score) return;
  const scores = scoresNow();
  const numbers = Array.from({ length: nHead }, (_, head) => element("th", { scope: "col" }, `H${head}`));
  const rows = perHead((layer, head) => headButton(layer, head, scores)).map((buttons, layer) =>
    element("tr", {}, element("th", { scope: "row" }, `L${layer}`), ...buttons.map((button) => element("td", {}, button))),
  );
  const table = element(
    "table",
    { class: nHead > 6 ? "heads small" : "heads", role: "grid", "aria-label": `Heads by ${content.measures[state.score].label}` },
    element("thead", {}, element("tr", {}, element("td"), ...numbers)),
    element("tbody", {}, ...rows),
  );
  show("heads-grid", table);
  arrowKeys([...table.querySelectorAll("button")], nHead);
  show("heads-legend", meaning(scores), element("span", { class: "keys" }, ...keysOf(scores)));
}

function headButton(layer, head, scores) {
  // What is said of it
  const value = scores ? scores[layer][head] : null;
  const isSelected = layer === state.layer && head === state.head;
  const p = question()?.grids.p?.[layer][head] ?? 1; // null: not tested
  const isMarked = state.time === END && p < content.max_p;
  const facts = [`layer ${layer} head ${head}`, `${content.measures[state.score].label} ${number(value)}`];
  if (isMarked) facts.push("significant after correction for all heads");
  if (isChosen(layer, head)) facts.push("chosen by the probe");
  const select = button(number(value), () => update({ layer, head }), {
    "aria-pressed": String(isSelected),
    tabindex: isSelected ? "0" : "-1",
    "aria-label": facts.join(", "),
    "data-name": headName(layer, head),
    class: isChosen(layer, head) ? "chosen" : null,
  });

  // How it looks
  if (isMarked) select.append(element("i", { class: "dot" }));
  const tint = tintOf(value, scores);
  select.style.setProperty("--hue", tint < 0 ? "var(--orange-tint)" : "var(--blue-tint)");
  select.style.setProperty("--share", `${Math.round(100 * Math.abs(tint))}%`);
  return select;
}

// -1: full orange, 0: no colour, 1: full blue.
function tintOf(value, scores) {
  if (value === null) return 0;
  const { centre } = content.measures[state.score];
  if (centre === null) return value / Math.max(0.1, ...scores.flat().map(Math.abs));
  return Math.max(-1, Math.min(1, (value - centre) / (1 - centre)));
}

function keysOf(scores) {
  const key = (kind, text) => element("span", { class: "key" }, element("i", { class: kind }), ` ${text}`);
  const keys = question() ? [key("ring", "chosen by the probe"), key("dot", `corrected p below ${content.max_p}, trained model`)] : [];
  const { centre } = content.measures[state.score];
  if (centre === 0 || !scores) return keys; // one colour
  const [blue, orange] = [`above ${centre ?? 0}`, `below ${centre ?? 0}`];
  return [...keys, key("swatch blue", blue), key("swatch orange", orange)];
}

function meaning(scores) {
  const { label: name, meaning: means } = content.measures[state.score];
  if (!scores) return `${name}: ${means}. Not measured ${state.time === END ? "after" : "during"} training.`;
  return `${name}: ${means}. Measured on ${state.time === END ? "the tested texts" : "a small fixed set of dev sentences"}.`;
}
