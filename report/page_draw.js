// How things are drawn. Text goes in as text nodes, always: nothing here reads markup.

// The name of a language, which no browser fetches.
const SVG = "http://www.w3.org/2000/svg";
const CUT = 28; // characters of a word that are shown

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null));
  return node;
}

function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function show(id, ...children) {
  document.getElementById(id).replaceChildren(...children);
}

// A word as it can be read: control characters as their pictures, a long one cut.
function legible(text) {
  const seen = text
    .replace(/[\u0000-\u001f]/g, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufffe\uffff]/g, "\ufffd")
    .replace(/^ +/, (spaces) => "␣".repeat(spaces.length));
  const letters = Array.from(seen.slice(0, 4 * CUT));
  return letters.length > CUT ? letters.slice(0, CUT - 1).join("") + "…" : seen || "∅";
}

function headName(layer, head) {
  return `L${layer}H${head}`;
}

function told(value, places = 2) {
  if (value === null || value === undefined) return "–";
  const text = value.toFixed(places);
  return Number(text) === 0 ? (0).toFixed(places) : text; // no "-0.00"
}

function toldP(value) {
  if (value === null || value === undefined) return "–";
  return value < 0.001 ? "<.001" : value.toFixed(3).replace(/^0/, "");
}

// A labelled choice among a few: a group of radio buttons, which the arrow keys move through.
function choice(legend, name, options, chosen, pick) {
  const group = make("fieldset", { class: "choice" }, make("legend", {}, legend));
  for (const [value, label] of options) {
    const input = make("input", { type: "radio", name, value, checked: value === chosen });
    input.addEventListener("change", () => pick(value));
    group.append(make("label", {}, input, make("span", {}, ...[label].flat())));
  }
  return group;
}

function menu(legend, options, chosen, pick) {
  const list = make(
    "select",
    {},
    ...options.map(([value, label]) => make("option", { value, selected: value === chosen }, label)),
  );
  list.addEventListener("change", () => pick(list.value));
  return make("label", { class: "menu" }, make("span", {}, legend), list);
}

// Moves the one tab stop of a set of `items` with the arrow keys; `columns` 1 for a list.
function roving(items, columns, moved = () => {}) {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
  items.forEach((item, place) =>
    item.addEventListener("keydown", (event) => {
      let to = { Home: 0, End: items.length - 1 }[event.key];
      if (event.key in step) to = place + step[event.key];
      if (to === undefined || !(to in items)) return;
      event.preventDefault();
      items.forEach((other) => {
        other.tabIndex = -1;
      });
      items[to].tabIndex = 0;
      items[to].focus();
      moved(to);
    }),
  );
}

// A line from left to right that leaves and arrives level, so that neighbours can be told apart.
function link(x0, y0, x1, y1, weight, kind) {
  const middle = (x0 + x1) / 2;
  return shape("path", {
    class: `link ${kind}`,
    d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`,
    "stroke-width": (0.75 + 4.25 * weight).toFixed(2),
    "stroke-opacity": Math.min(1, 0.15 + 0.85 * weight).toFixed(3),
  });
}

// What a word is to the question: "meant", "other" or neither.
function roleOf(sentence, unit, place) {
  const word = unit === "word" ? place : sentence.owner[place];
  if (sentence.antecedents.includes(word)) return "meant";
  return sentence.distractors.includes(word) ? "other" : "plain";
}

// Ticks of an axis: few, round.
function ticksOf(low, high, most = 4) {
  const rough = (high - low) / most || 1;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const by = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
  const found = [];
  // + 0: no "-0".
  for (let tick = Math.ceil(low / by - 1e-9) * by; tick <= high + by * 1e-6; tick += by) found.push(tick + 0);
  return found;
}
