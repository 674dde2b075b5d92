// The live model behind the page: which weights compute what is shown, and the passes, kept for a while.
// An edit of the page names words: {kind, layer, head, query, target, other}; runModel's edits name tokens.

const liveTokenizer = live ? openTokenizer(live.tokenizer) : null;
const SPECIAL = live ? { [liveTokenizer.unknown]: "(unknown)", [liveTokenizer.start]: "(end)" } : {};
const liveModels = new Map(); // opened models by step
const readings = new Map(); // texts as the model reads them, by text
const passes = new Map(); // {reading, run} by text, step and edits
const MOST_PASSES = 60; // that are kept

// The step whose weights compute what the slider shows.
function liveStep() {
  return state.time === END ? live.step : steps[state.time];
}

function liveModel(step) {
  if (!liveModels.has(step)) {
    const index = live.earlier.steps.indexOf(step);
    const [data, type] = index < 0 ? [live.weights, live.type] : [live.earlier.data[index], "float16"];
    liveModels.set(step, openModel(live.shape, live.parameters, data, type));
  }
  return liveModels.get(step);
}

function reading(text) {
  if (!readings.has(text)) readings.set(text, readText(liveTokenizer, text));
  return readings.get(text);
}

// The pass that computes a sentence's attention; null if the stored weights are shown.
function livePass(sentence) {
  return live ? passOf(sentence.text, state.edits) : null;
}

function passOf(text, edits, step = liveStep()) {
  const key = JSON.stringify([text, step, edits]);
  if (!passes.has(key)) {
    const read = reading(text);
    if (passes.size >= MOST_PASSES) passes.delete(passes.keys().next().value);
    passes.set(key, { reading: read, run: runModel(liveModel(step), read.tokens, tokenEdits(read, edits)) });
  }
  return passes.get(key);
}

// The tokens of an edit: read at the last token of its word; null if the text has no such words.
function tokenEdit({ members }, { kind, layer, head, query, target, other }) {
  if (kind === "remove") return { kind, layer, head };
  const [row, left, right] = [members[query]?.at(-1), members[target], kind === "exchange" ? members[other] : []];
  if (row === undefined || !left?.length || (kind === "exchange" && !right?.length)) return null;
  if (left === right || [...left, ...right].some((token) => token > row)) return null;
  return { kind, layer, head, row, left, right };
}

function tokenEdits(read, edits) {
  return edits.map((edit) => tokenEdit(read, edit)).filter((edit) => edit !== null);
}

// Probabilities

// The n most probable next words with their probabilities and, but for the special tokens, what the token writes.
function nextWords(pass, n) {
  const chances = softmax(logitsOf(pass.run));
  const best = [...chances.keys()].sort((a, b) => chances[b] - chances[a]).slice(0, n);
  return best.map((id) => [tokenName(id), chances[id], SPECIAL[id] ? null : rawToken(liveTokenizer, id)]);
}

function tokenName(id) {
  return SPECIAL[id] ?? textOfToken(liveTokenizer, id);
}

// The tokens that write a word alone: after a space or not, with a small or a capital letter.
function formsOf(text) {
  const capital = text.slice(0, 1).toUpperCase() + text.slice(1);
  const ids = new Set();
  for (const form of [text, ` ${text}`, capital, ` ${capital}`]) {
    const tokens = tokensOf(liveTokenizer, form);
    if (tokens.length === 1 && tokens[0].id !== liveTokenizer.unknown) ids.add(tokens[0].id);
  }
  return [...ids];
}

// The log of the ratio of the chances that two words are next, in nats; null without both words.
function comparison(pass, [left, right]) {
  const chances = softmax(logitsOf(pass.run));
  const [ofLeft, ofRight] = [left, right].map((text) => formsOf(text).reduce((sum, id) => sum + chances[id], 0));
  if (!formsOf(left).length || !formsOf(right).length) return null;
  return Math.log(ofLeft || 1e-300) - Math.log(ofRight || 1e-300);
}

// The n most probable words that are one token; at every step those of the trained model, so that numbers can be followed.
function comparable(text, n) {
  const words = nextWords(passOf(text, [], live.step), n + 5).filter(([word]) => formsOf(word).length);
  return [...words, ["the"], ["a"]].slice(0, n);
}

// The two words that are compared after a sentence: those of the user or of the page. Otherwise the word that the model
// expects, and the one that it expects after the other pronoun; without a pronoun at the end, the two most probable ones.
function comparedWords(text) {
  const chosen = state.pair ?? live.pair;
  if (chosen.length === 2) return chosen;
  const [[first], [second]] = comparable(text, 2);
  const { words, spans } = reading(text);
  const last = words.at(-1);
  const other = OTHER_PRONOUN[last.toLowerCase()];
  if (!other || !text.trim().endsWith(last)) return [first, second];
  const isCapital = last.slice(0, 1) !== last.slice(0, 1).toLowerCase();
  const written = isCapital ? other.slice(0, 1).toUpperCase() + other.slice(1) : other;
  const [[ofTwin]] = comparable(text.slice(0, spans.at(-1)[0]) + written, 1);
  return [first, ofTwin === first ? second : ofTwin];
}
