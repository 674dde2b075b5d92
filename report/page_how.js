// How a number comes about: query, key, product, score, softmax, value, and what the head adds to the next word's logits.

function drawHow() {
  // What is computed: at the last token of the chosen word
  const sentence = current();
  const { reading: read, run } = livePass(sentence);
  const at = read.members[queryOf(sentence)].at(-1);
  if (at === undefined) return show("live-how", element("p", { class: "rule" }, "This word has no token of its own."));
  const { layer, head } = state;
  const { query, rows } = explained(run, layer, head, at);
  const names = read.tokens.map((id, token) => (token ? label(tokenName(id), 14) : "(start)"));
  const largestRow = rows.reduce((best, row, i) => (row.weight > rows[best].weight ? i : best), 0);
  const shown = state.row !== null && state.row < rows.length ? state.row : largestRow;

  // What the head adds to the logits of the five most probable words
  const chances = nextChances(run, at);
  const best = [...chances.keys()].sort((a, b) => chances[b] - chances[a]).slice(0, 5);
  const adds = best.map((id) => {
    const direction = pulledBack(run, layer, head, at, id);
    return rows.map(({ moved }) => moved.reduce((sum, cell, i) => sum + cell * direction[i], 0));
  });
  const words = best.map((id) => `“${label(tokenName(id))}”`);
  const totals = words.map((word, i) => `${word} ${number(total(adds[i]))}`).join(", ");

  // What is shown
  const from = `“${names[at]}”`;
  const title = `How ${number(rows[shown].weight)} comes about: ${headName(layer, head)}, ${from} to “${names[shown]}”`;
  const asks = `${from} asks with its query; every word answers with its key. Multiply cell by cell and add up: the score.`;
  const moves = "The weights mix the values of the words, and the mixture moves the logits: the scores of the next words.";
  const cellList = scrolled("Cells", cellTable(query, rows[shown]));
  const summary = element("summary", {}, `Every number of the row “${names[shown]}”`);
  const list = element("details", { open: state.isOpen }, summary, cellList);
  list.addEventListener("toggle", () => (state.isOpen = list.open));
  show(
    "live-how",
    element("h2", {}, title),
    element("p", { class: "rule" }, `${asks} ${RECIPES[live.shape.weighting]} ${moves}`),
    scrolled("The steps for each word", howTable(names, query, rows, at, shown, adds[0], words[0])),
    element("p", { class: "rule" }, `In all, this head adds to the logits after ${from}: ${totals}. What later layers make of it comes on top.`),
    list,
  );
}

const RECIPES = {
  softmax: "Divide it by √d, hide the later words (−∞), take e to this power; the shares of the sum are the weights: softmax.",
  sum: "Divide it by √d, hide the later words, take what is above 0 and add 0.0001; the shares of the sum are the weights.",
};

function total(values) {
  return values.reduce((a, b) => a + b, 0);
}

// Four significant digits; e to a score can be a long number.
function brief(value) {
  const isShort = value === 0 || (value >= 0.01 && value < 1e5);
  return isShort ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : value.toExponential(2);
}

function largestCell(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);
}

function howTable(names, query, rows, at, shown, adds, word) {
  // The columns
  const { shape, width } = liveModel(liveStep());
  const isSum = shape.weighting === "sum";
  const power = ({ score }) => (score === -Infinity ? 0 : isSum ? Math.max(score, 0) + 1e-4 : Math.exp(score));
  const isChanged = rows.some(({ weight, share }) => Math.abs(weight - share) > 1e-6);
  const scaled = shape.scale === "none" ? "not scaled" : `÷ √${width}`;
  const weighting = isSum ? ["above 0", "share"] : ["e to this", "softmax"];
  const changed = isChanged ? ["changed"] : [];
  const header = ["word", "key", "query × key", "sum", scaled, ...weighting, ...changed, "value", "weight × value", `adds to ${word}`];
  const largestOf = (name) => Math.max(...rows.map((row) => largestCell(row[name])));
  const [ofKey, ofProduct, ofValue, ofMoved] = ["key", "products", "value", "moved"].map(largestOf);

  // The query, one row for each word, and the sums
  const th = (text) => element("th", { scope: "row" }, text);
  const td = (content, kind = null) => element("td", { class: kind }, content);
  const numbers = (values) => values.map((text) => td(text, "n"));
  const first = element("tr", { class: "ends" }, th("query"), td(cells(query, largestCell(query), "query")));
  const lines = rows.map((row, token) => {
    const about = { "aria-pressed": String(token === shown), "data-name": `row-${token}` };
    const pick = button(names[token], () => update({ row: token }), about);
    const steps = [number(row.sum), token > at ? "−∞" : row.score.toFixed(4), brief(power(row)), number(row.share)];
    const parts = numbers([...steps, ...(isChanged ? [number(row.weight)] : [])]);
    parts.at(-1).classList.add("bar");
    parts.at(-1).style.setProperty("--share", `${100 * row.weight}%`);
    const key = td(cells(row.key, ofKey, `key of “${names[token]}”`));
    const products = td(cells(row.products, ofProduct, "query × key"));
    const value = td(cells(row.value, ofValue, `value of “${names[token]}”`));
    const moved = td(cells(row.moved, ofMoved, "weight × value"));
    const kind = `${token === shown ? "shown " : ""}${token > at ? "masked" : ""}`;
    return element("tr", { class: kind }, th(pick), key, products, ...parts, value, moved, ...numbers([number(adds[token])]));
  });
  const mixture = rows[0].moved.map((_, i) => total(rows.map(({ moved }) => moved[i])));
  const weights = ["share", ...(isChanged ? ["weight"] : [])].map((name) => number(total(rows.map((row) => row[name]))));
  const sums = [...numbers([brief(total(rows.map(power))), ...weights]), td(null), td(cells(mixture, ofMoved, "sum of the values"))];
  const empty = element("td", { colspan: 4 });
  const last = element("tr", { class: "ends sums" }, th("sum"), empty, ...sums, ...numbers([number(total(adds))]));
  const head = element("tr", {}, ...header.map((name) => element("th", { scope: "col" }, name)));
  return element("table", { class: "how" }, element("thead", {}, head), element("tbody", {}, first, ...lines, last));
}

// Coloured cells: orange below 0, blue above; small ones are drawn stronger than they are. The number of the cell under the
// pointer is the tooltip.
function cells(values, most, name) {
  const shares = Array.from(values, (value) => Math.round(100 * Math.min(1, Math.abs(value) / most) ** 0.7));
  const hue = (i) => (values[i] < 0 ? "--orange-line" : "--blue-line");
  const size = 100 / values.length;
  const colour = (share, i) => `color-mix(in srgb, var(${hue(i)}) ${share}%, var(--middle))`;
  const stops = shares.map((share, i) => `${colour(share, i)} ${i * size}% ${(i + 1) * size}%`);
  const node = element("div", { class: "cells", "aria-hidden": "true" });
  const gradient = `linear-gradient(to right, ${stops.join(", ")})`;
  if (Math.max(...shares) > 1) node.style.setProperty("background-image", gradient);
  node.style.setProperty("--n", values.length);
  node.addEventListener("pointermove", ({ offsetX }) => {
    const i = Math.max(0, Math.min(values.length - 1, Math.floor((values.length * offsetX) / node.clientWidth)));
    node.title = `${name}, cell ${i + 1}: ${values[i].toFixed(5)}`;
  });
  return node;
}

// The cells of one row as numbers: those of query times key add up to the score.
function cellTable(query, { key, products, value, moved, sum }) {
  const header = ["cell", ...Array.from(query, (_, i) => i + 1), "sum"].map((name) => element("th", { scope: "col" }, name));
  const lines = { query, key, "query × key": products, value, "weight × value": moved };
  const rows = Object.entries(lines).map(([name, values]) => {
    const texts = [...Array.from(values, (value) => value.toFixed(5)), values === products ? sum.toFixed(5) : ""];
    const numbers = texts.map((text) => element("td", { class: "n" }, text));
    return element("tr", {}, element("th", { scope: "row" }, name), ...numbers);
  });
  const head = element("thead", {}, element("tr", {}, ...header));
  return element("table", { class: "how" }, head, element("tbody", {}, ...rows));
}
