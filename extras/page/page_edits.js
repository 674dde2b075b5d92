// The reader's changes of the live model: a click on a line or a head makes one, a second click takes it back.

const POSITIONS = { remove: [], cut: ["query", "target"], exchange: ["query", "target", "other"] };
let past = []; // the changes before each click, newest last

function changeTo(edits) {
  past.push(state.edits);
  update({ edits });
}

function undo() {
  update({ edits: past.pop() ?? state.edits.slice(0, -1) }); // the changes of an address have no past
}

// Ctrl+Z takes a change back, but in a field it is the browser's own.
function onUndoKey(event) {
  if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.target.matches("input, textarea, select")) return;
  event.preventDefault(); // or the browser takes back a letter in the field
  undo();
}

// Whether an edit or a line is of a head: of the chosen one, or of another place {layer, head}.
function isOfHead(edit, place = state) {
  return edit.layer === place.layer && edit.head === place.head;
}

function isRemoved(place = state) {
  return state.edits.some((edit) => edit.kind === "remove" && isOfHead(edit, place));
}

// Remove the chosen head, or put it back.
function clickHead() {
  const { layer, head, edits } = state;
  const others = edits.filter((edit) => edit.kind !== "remove" || !isOfHead(edit));
  changeTo(isRemoved() ? others : [...others, { kind: "remove", layer, head }]);
}

// The change of the chosen head's line from the chosen word to another, if there is one.
function changeAt(target) {
  const query = chosenWord();
  const isHere = (edit) => edit.query === query && (edit.target === target || edit.other === target);
  return state.edits.find((edit) => isOfHead(edit) && isHere(edit));
}

// The cut of a line from the chosen word that was made last: the next line or word that is clicked changes places with it.
function pendingCut() {
  const last = state.edits.at(-1);
  return last?.kind === "cut" && isOfHead(last) && last.query === chosenWord() ? last : null;
}

// Cut the line from the chosen word to `target`; after a cut line of that word, exchange the two; back if it is changed.
function clickLine(target, isCutOnly) {
  const { layer, head, edits } = state;
  const present = changeAt(target);
  if (present) return changeTo(edits.filter((edit) => edit !== present));
  const cut = isCutOnly ? null : pendingCut();
  const edit = cut ? { ...cut, kind: "exchange", other: target } : { kind: "cut", layer, head, query: chosenWord(), target };
  if (!tokenEdit(edit)) return addNote("This word has no token of its own: its line stays.");
  changeTo([...edits.filter((known) => known !== cut), edit]);
}

function drawChanges() {
  const { edits } = state;
  const rows = edits.map((edit) => element("li", {}, editName(edit)));
  const list = element("ul", { class: "edits", "aria-label": "Your changes" }, ...rows);
  const changes = edits.length ? [button("Undo", undo, "undo"), list] : [];
  show("live-changes", ...changes);
}

function editName(edit) {
  const { kind, query, target, other } = edit;
  const place = headName(edit);
  if (kind === "remove") return `${place} removed`;
  if (kind === "cut") return `${place}: line from ${quoted(query)} to ${quoted(target)} cut`;
  return `${place}: at ${quoted(query)}, the weights on ${quoted(target)} and ${quoted(other)} exchanged`;
}
