// The live model behind the page: which weights compute what is shown, and its passes over the sentence, kept for a while.
// An edit of the page names words: {kind, layer, head, query, target, other}; runModel's edits name tokens.

const liveTokenizer = live && openTokenizer(live.tokenizer);
const SPECIAL = live ? { [liveTokenizer.unknown]: "(unknown)", [liveTokenizer.start]: "(end of the text)" } : {};
const liveModels = new Map(); // opened models by step
const passes = new Map(); // what runModel returned, by text, step and edits
const MOST_PASSES = 60; // that are kept

function liveStep() {
  return state.time === END ? live.step : steps[state.time];
}

function kept(values, key, make) {
  if (!values.has(key)) values.set(key, make());
  return values.get(key);
}

function openAt(step) {
  const index = steps.indexOf(step);
  const [data, type] = index < 0 ? [live.weights, live.type] : [live.earlier.data[index], "float16"];
  return modelOf(live.shape, live.parameters, floatsOf(data, type));
}

// The pass over the sentence, as runModel returns it.
function passOf(edits = state.edits, step = liveStep()) {
  const { text, tokens } = state.sentence;
  const model = kept(liveModels, step, () => openAt(step));
  if (passes.size > MOST_PASSES) passes.delete(passes.keys().next().value);
  return kept(passes, JSON.stringify([text, step, edits]), () => runModel(model, tokens, tokenEdits(edits)));
}

// The weights [words] of one word on every word in a head {layer, head}, as word_attention of probe/sentences.py.
function wordRow({ weights }, row, { layer, head }) {
  const { members, tokens } = state.sentence;
  const last = members[row].at(-1);
  if (last === undefined) return new Float64Array(members.length);
  const ofToken = rowOf(weights[layer][head], last, tokens.length);
  return Float64Array.from(members, (of) => of.reduce((sum, token) => sum + ofToken[token], 0));
}

// The tokens of an edit: read at the last token of its word; null if the sentence has no such words.
function tokenEdit(edit) {
  const { kind, layer, head } = edit;
  if (kind === "remove") return { kind, layer, head };
  const [asking, ...sides] = POSITIONS[kind].map((name) => state.sentence.members[edit[name]]);
  const row = asking?.at(-1);
  const [left, right] = sides;
  if (left === right || !sides.every((tokens) => tokens?.at(-1) <= row)) return null; // no token, or one after the row
  return { kind, layer, head, row, left, right };
}

function tokenEdits(edits) {
  return edits.map(tokenEdit).filter(Boolean);
}

// The n most probable next words with their probabilities, what the token writes (null: a special token), and the token.
function nextWords(run, n) {
  const chances = softmax(logitsOf(run));
  const name = (id) => (id === liveTokenizer.unknown ? "a word it does not know" : nextName(id));
  return placesOfLargest(chances, n).map((id) => [name(id), chances[id], SPECIAL[id] ? null : rawToken(liveTokenizer, id), id]);
}

// The text of a token, without spaces around it; white space alone is quoted. As `decode` of probe/opened_model.py.
function tokenName(id) {
  const text = rawToken(liveTokenizer, id);
  return SPECIAL[id] ?? (text === "\n" ? "(new line)" : text.trim() || JSON.stringify(text));
}

// A token as a next word: a piece of a word is written on to what stands before it.
function nextName(id) {
  const isPiece = liveTokenizer.kind === "bpe" && /^\p{L}/u.test(rawToken(liveTokenizer, id));
  return isPiece ? `…${tokenName(id)}` : tokenName(id);
}
