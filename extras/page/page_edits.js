// The reader's changes of the live model: a click on a line or a head makes one, a second click takes it back.

const POSITIONS = { remove: [], cut: ["query", "target"], exchange: ["query", "target", "other"] };
let past = []; // the changes before each click, newest last

function changeTo(edits) {
  past.push(state.edits);
  update({ edits });
}

function undo() {
  update({ edits: past.pop() ?? state.edits.slice(0, -1) });
}

// Ctrl+Z takes a change back, but in a field it is the browser's own.
function onUndoKey(event) {
  const isField = event.target.matches("input, textarea, select");
  if (isField || event.key !== "z" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault(); // or the browser takes back a letter in the field
  if (past.length || state.edits.length) undo();
}

function isOfHead(edit, layer = state.layer, head = state.head) {
  return edit.layer === layer && edit.head === head;
}

function isRemoved(layer, head) {
  return state.edits.some((edit) => edit.kind === "remove" && isOfHead(edit, layer, head));
}

function clickHead(layer, head) {
  const others = state.edits.filter((edit) => edit.kind !== "remove" || !isOfHead(edit, layer, head));
  changeTo(others.length < state.edits.length ? others : [...others, { kind: "remove", layer, head }]);
}

// The change of the chosen head's line between two words, if there is one.
function changeAt(query, target) {
  const isHere = (edit) => edit.query === query && (edit.target === target || edit.other === target);
  return state.edits.find((edit) => edit.kind !== "remove" && isOfHead(edit) && isHere(edit));
}

// The cut of a line from `query` that was made last: the next line or word that is clicked changes places with it.
function pendingCut(query) {
  const last = state.edits.at(-1);
  return last?.kind === "cut" && isOfHead(last) && last.query === query ? last : null;
}

// Cut the line from the chosen word to `target`; after a cut line of that word, exchange the two; back if it is changed.
function clickLine(target, isCutOnly) {
  const { layer, head } = state;
  const sentence = current();
  const query = queryOf(sentence);
  const present = changeAt(query, target);
  if (present) return changeTo(state.edits.filter((edit) => edit !== present));
  const cut = pendingCut(query);
  const isExchange = cut && !isCutOnly;
  const exchange = { kind: "exchange", layer, head, query, target: cut?.target, other: target };
  const edit = isExchange ? exchange : { kind: "cut", layer, head, query, target };
  if (!tokenEdit(reading(sentence.text), edit)) return addNote("This word has no token of its own: its line stays.");
  changeTo([...state.edits.filter((known) => !isExchange || known !== cut), edit]);
}

function drawChanges() {
  const edits = state.edits.map((edit, i) => element("li", {}, editName(edit, current()), edit.kind === "exchange" ? doseOf(edit, i) : null));
  const list = element("ul", { class: "edits", "aria-label": "Your changes" }, ...edits);
  const clicks = "Click a line: it is cut. Click a second one: the two change places. A second click: back.";
  const more = `Click a word: look from there. Click a next word: it is written. L0H1: layer 0, head 1. ${START}.`;
  const help = element("p", { class: "rule" }, edits.length ? clicks : `${clicks} ${more}`);
  show("live-changes", ...(edits.length ? [button("Undo", undo, { "data-name": "undo" }), list] : []), help);
}

function changeLabel({ kind, percent = 100 }) {
  if (kind === "cut") return "cut";
  return percent < 100 ? `${percent} % exchanged` : "exchanged";
}

function doseOf(edit, i) {
  const about = { type: "range", min: 0, max: 100, step: 25, value: edit.percent ?? 100, "data-name": `dose-${i}` };
  const range = element("input", { ...about, "aria-label": "Share exchanged, in percent" });
  range.addEventListener("change", () => changeTo(state.edits.with(i, { ...edit, percent: Number(range.value) })));
  return range;
}

function editName({ kind, layer, head, query, target, other, percent = 100 }, sentence) {
  const name = (position) => quoted(sentence, position);
  const place = headName(layer, head);
  if (kind === "remove") return `${place} removed`;
  if (kind === "cut") return `${place}: line from ${name(query)} to ${name(target)} cut`;
  return `${place}: at ${name(query)}, the weights on ${name(target)} and ${name(other)} exchanged${percent < 100 ? `, ${percent} %` : ""}`;
}
