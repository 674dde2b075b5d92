// How a number comes about: query, key, product, score, softmax, value, and what the head adds to the next word's logits.

function drawHow() {
  const facts = cardFacts();
  if (!facts) return show("live-how", remark("This word has no token of its own."));
  const { layer, at, rows, query } = facts;
  const names = state.sentence.tokens.map((id, token) => (token ? label(tokenName(id), 14) : "(start)"));
  const shown = state.row ?? placeOfLargest(rows.map(({ weight }) => weight));
  const { words, adds } = additions(facts);
  const totals = words.map((word, i) => `${word} ${number(total(adds[i]))}`).join(", ");
  const added = [`adds to ${words[0]}`, (token) => number(adds[0][token]), number(total(adds[0]))];
  const from = `“${names[at]}”`;
  const title = `How ${number(rows[shown].weight)} comes about: ${headName(facts)}, ${from} to “${names[shown]}”`;
  const steps = scrolled("The steps for each word", howTable(names, facts, [...howColumns(facts), added], shown));
  const later = layer < nLayer - 1 ? "the MLP and later layers make" : "the MLP makes";
  const sum = `In all, this head adds to the logits after ${from}, the last RMSNorm included: ${totals}. What ${later} of it comes on top. ${START}.`;
  const isOpen = state.opened.has("rows"); // of a long text they have thousands of cells
  const allRows = isOpen ? [scrolled("The weights of every word", rowsPicture()), remark(MASK)] : [];
  show(
    "live-how",
    opened("steps", title, steps, remark(sum)),
    opened("numbers", `Every number of the row “${names[shown]}”`, scrolled("Cells", cellTable(query, rows[shown]))),
    opened("rows", `All rows of ${headName(facts)}`, ...allRows),
  );
}

const CELL = 20; // pixels
const MASK = "A row: what one word looks at; it sums to 1. A column: who looks at a word. Grey: later words, which the mask hides (their score is −∞), so the picture is a triangle.";

// The weights of the chosen head from every word (rows) on every word (columns).
function rowsPicture() {
  const { words } = state.sentence;
  const names = words.map((word) => label(word, 14));
  pen.font = "13px system-ui";
  const left = 8 + Math.max(...names.map((name) => pen.measureText(name).width));
  const side = CELL * words.length;
  const [width, height] = [left + side + 8, side + left];
  const picture = shape("svg", { class: "rows", role: "img", "aria-label": "The weights of every word on every word", width, height });
  names.forEach((name, row) => {
    const y = row * CELL;
    const weights = wordRow(passOf(), row, state);
    picture.append(shape("text", { x: left - 6, y: y + CELL - 5, "text-anchor": "end", class: row === chosenWord() && "chosen" }, name));
    weights.forEach((weight, column) => {
      const isLater = column > row;
      const title = shape("title", {}, `${name} to ${names[column]}: ${isLater ? "hidden by the mask" : number(weight)}`);
      const place = { x: left + column * CELL, y, width: CELL - 1, height: CELL - 1 };
      picture.append(shape("rect", { ...place, class: isLater ? "later" : "seen", "fill-opacity": isLater ? 1 : weight }, title));
    });
    const x = left + (row + 0.6) * CELL;
    const below = { x, y: side + 6, "text-anchor": "end", transform: `rotate(-90 ${x} ${side + 6})` };
    picture.append(shape("text", below, name));
  });
  return picture;
}

// Details that stay as the reader left them when they are drawn again.
function opened(name, title, ...parts) {
  const summary = element("summary", { "data-name": `details-${name}` }, title);
  const details = element("details", { open: state.opened.has(name) }, summary, ...parts);
  details.addEventListener("toggle", () => {
    if (details.open === state.opened.has(name)) return;
    state.opened[details.open ? "add" : "delete"](name);
    drawHow();
  });
  return details;
}

// What the head adds, through each token [T], to the logits of the five most probable next words.
function additions({ run, layer, head, at, rows }) {
  const best = placesOfLargest(softmax(logitsOf(run, at)), 5);
  const directions = best.map((id) => pulledBack(run, layer, head, at, id));
  const adds = directions.map((direction) => rows.map(({ moved }) => dot(moved, direction)));
  return { words: best.map((id) => `“${label(nextName(id))}”`), adds };
}

// Four significant digits; e to a score can be a long number.
function brief(value) {
  const isShort = value === 0 || (value >= 0.01 && value < 1e5);
  return isShort ? value.toLocaleString("en", { maximumSignificantDigits: 4 }) : value.toExponential(2);
}

function largestCell(values) {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 1e-9);
}

// The columns of the derivation: name, what a token's row shows, and what the last row shows.
function howColumns({ at, rows, run }) {
  const { shape, width } = run.model;
  const isSum = shape.weighting === "sum";
  const power = ({ score }) => (score === -Infinity ? 0 : isSum ? Math.max(score, 0) + 1e-4 : Math.exp(score));
  const isChanged = rows.some(({ weight, share }) => Math.abs(weight - share) > 1e-6);
  const most = (name) => largestCell(rows.flatMap((row) => [...row[name]]));
  const drawn = (name, title = name) => {
    const largest = most(name);
    return [title, (token) => cells(rows[token][name], largest)];
  };
  const sumOf = (of) => total(rows.map(of));
  const mixture = rows[0].moved.map((_, i) => sumOf(({ moved }) => moved[i]));
  return [
    drawn("key"),
    drawn("products", "query × key"),
    ["sum", (token) => number(rows[token].sum)],
    [shape.scale === "none" ? "not scaled" : `÷ √${width}`, (token) => (token > at ? "−∞" : rows[token].score.toFixed(4))],
    [isSum ? "above 0" : "e to this", (token) => brief(power(rows[token])), brief(sumOf(power))],
    [isSum ? "share" : "softmax", (token) => number(rows[token].share), number(sumOf(({ share }) => share))],
    ...(isChanged ? [["changed", (token) => number(rows[token].weight), number(sumOf(({ weight }) => weight))]] : []),
    drawn("value"),
    [...drawn("moved", "weight × value"), cells(mixture, most("moved"))],
  ];
}

// The query, one row for each word, and the sums.
function howTable(names, { at, query }, columns, shown) {
  const lines = names.map((name, token) => {
    const pick = button(name, () => update({ row: token }), `row-${token}`, { "aria-pressed": String(token === shown) });
    return [pick, ...columns.map(([, cell]) => cell(token))];
  });
  const first = ["query", cells(query, largestCell(query))];
  const last = ["sum", ...columns.map(([, , sum]) => sum)];
  const kinds = names.map((_, token) => `${token === shown ? "shown " : ""}${token > at ? "masked" : ""}`);
  const header = ["word", ...columns.map(([name]) => name)];
  const table = tableOf(header, [first, ...lines, last], ["ends", ...kinds, "ends sums"]);
  table.tHead.append(table.tBodies[0].rows[0]); // on each printed page
  return table;
}

// Coloured cells: orange below 0, blue above; small ones are drawn stronger than they are.
function cells(values, most) {
  const node = element("div", { class: "cells", "aria-hidden": "true" });
  const size = 100 / values.length;
  const stops = Array.from(values, (value, i) => {
    const share = Math.round(100 * Math.min(1, Math.abs(value) / most) ** 0.7);
    const hue = value < 0 ? "--orange" : "--blue";
    return `color-mix(in srgb, var(${hue}) ${share}%, var(--card)) ${i * size}% ${(i + 1) * size}%`;
  });
  node.style.setProperty("background-image", `linear-gradient(to right, ${stops.join(", ")})`);
  node.style.setProperty("--n", Math.min(64, values.length)); // longer rows have narrower cells
  node.addEventListener("pointermove", ({ offsetX }) => {
    const i = Math.min(values.length - 1, Math.floor((values.length * offsetX) / node.clientWidth));
    node.title = `cell ${i + 1}: ${values[i].toFixed(5)}`;
  });
  return node;
}

// The cells of one row as numbers: those of query times key add up to the score.
function cellTable(query, { key, products, value, moved, sum }) {
  const parts = { query, key, "query × key": products, value, "weight × value": moved };
  const rows = Array.from(query, (_, i) => [String(i + 1), ...Object.values(parts).map((cells) => cells[i].toFixed(5))]);
  return tableOf(["cell", ...Object.keys(parts)], [...rows, ["sum", "", "", sum.toFixed(5), "", ""]]);
}

// A table of texts and elements; the first cell of a row is its name. `kinds`: the classes of the rows.
function tableOf(header, rows, kinds = []) {
  const th = (name, scope) => element("th", { scope }, name);
  const td = (content) => element("td", { class: typeof content === "string" && "n" }, content);
  const lines = rows.map(([name, ...rest], i) => element("tr", { class: kinds[i] }, th(name, "row"), ...rest.map(td)));
  const head = element("tr", {}, ...header.map((name) => th(name, "col")));
  return element("table", { class: "how" }, element("thead", {}, head), element("tbody", {}, ...lines));
}
