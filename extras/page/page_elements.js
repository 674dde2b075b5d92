// Builds elements. Every text becomes a text node: nothing in the data is parsed as markup.

const SVG = "http://www.w3.org/2000/svg"; // an XML namespace; it is never fetched

function part(id) {
  return document.getElementById(id);
}

// Set attributes that have a value and append children that are there: "cond && child" is none if the condition is false.
function fill(node, attributes, children = []) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter(Boolean));
  return node;
}

function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function shape(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

// Fill a part of the page again; the focus stays on the control of the same name, or goes to the first button.
function show(id, ...children) {
  const node = part(id);
  const name = node.contains(document.activeElement) && document.activeElement.dataset.name;
  node.replaceChildren(...children.filter(Boolean));
  if (!name) return;
  const same = node.querySelector(`[data-name=${CSS.escape(name)}]`);
  (same ?? node.querySelector("[aria-pressed=true]") ?? node.querySelector("button"))?.focus();
}

// A text that does not change the direction of what stands beside it.
function bdi(text) {
  return element("bdi", {}, text);
}

// A remark in small type.
function remark(text) {
  return element("p", { class: "rule" }, text);
}

// A word as a label: control characters visible, bidirectional controls removed, long words cut.
function label(text, longest = 28) {
  const visible = text
    .replace(/[\u0000-\u001f]/g, (control) => String.fromCharCode(0x2400 + control.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u202a-\u202e\u2066-\u2069\ufffe\uffff]/g, "\ufffd");
  const characters = [...visible];
  return characters.length > longest ? `${characters.slice(0, longest - 1).join("")}…` : visible || "∅";
}

// A word of the sentence as texts of the page name it.
function quoted(position, { words } = state.sentence) {
  return `“${label(words[position], 16)}”`;
}

function headName({ layer, head }) {
  return `L${layer}H${head}`;
}

function number(value) {
  return value.toFixed(2).replace("-0.00", "0.00");
}

// `name`: by it `show` finds the button again.
function button(text, act, name, attributes = {}) {
  const node = element("button", { type: "button", "data-name": name, ...attributes }, text);
  node.addEventListener("click", act);
  return node;
}

function chip(text, act, name = text, attributes = {}) {
  return button(text, act, name, { class: "chip", ...attributes });
}

// Set a style, moving from the value that the same thing had; without motion for readers who want none.
const isStill = matchMedia("(prefers-reduced-motion: reduce)");
const values = new Map(); // of moved styles, by the thing

function moveTo(node, thing, property, value) {
  node.style[property] = value;
  if (!isStill.matches) node.animate([{ [property]: values.get(thing) ?? "0" }, { [property]: value }], 300);
  values.set(thing, value);
}

// A wide part that scrolls must be reachable by the keyboard, so it has a name.
function scrolled(name, part) {
  return element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name }, part);
}

// Make a shape a button, for the mouse and the keyboard.
function pressable(node, act, attributes) {
  node.addEventListener("click", act);
  node.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    act(event);
  });
  return fill(node, { role: "button", ...attributes });
}

function menu(legend, options, selected, select) {
  const items = options.map(([value, text]) => element("option", { value, selected: value === selected }, text));
  const list = element("select", { "data-name": legend }, ...items);
  list.addEventListener("change", () => select(options[list.selectedIndex][0]));
  return labelled(legend, list);
}

function labelled(legend, control) {
  return element("label", { class: "menu" }, element("span", {}, legend), control);
}

// One tab stop for a set of buttons; arrow keys move the focus, `columns` at a time for up and down.
function arrowKeys(buttons, columns) {
  buttons.forEach((button, i) => {
    const ends = { Home: 0, End: buttons.length - 1 };
    const places = { ArrowRight: i + 1, ArrowLeft: i - 1, ArrowDown: i + columns, ArrowUp: i - columns, ...ends };
    button.addEventListener("keydown", (event) => {
      const next = buttons[places[event.key]];
      if (!next) return;
      event.preventDefault();
      for (const other of buttons) other.tabIndex = other === next ? 0 : -1;
      next.focus();
    });
  });
}
