// The numbers: what the page knows, how a sentence's weights are unpacked, and what a head scores at which step.

const content = JSON.parse(document.getElementById("content").textContent);
const nLayer = content.run.n_layer;
const nHead = content.run.n_head;
const emergence = content.emergence;
const steps = emergence ? emergence.steps : [];
const END = steps.length; // the place after the last step: what the probe found on the test set
const sentences = new Map(content.sentences.map((sentence) => [sentence.id, sentence]));

// All that can be chosen. `focus`, `hover` and `target` are places in the words or pieces shown; null is the default.
const state = {
  question: content.questions.length ? 0 : null,
  layer: 0,
  head: 0,
  score: "accuracy",
  time: END,
  group: null,
  sentence: null,
  unit: "word",
  threshold: 0.02,
  all: false,
  focus: null,
  hover: null,
  target: null,
};
const parts = []; // {needs: names in state, draw}

function redraw(needs, draw) {
  parts.push({ needs: needs.split(" "), draw });
}

function update(changes) {
  const changed = new Set(Object.keys(changes).filter((name) => state[name] !== changes[name]));
  Object.assign(state, changes);
  for (const part of parts) {
    if (part.needs.some((name) => changed.has(name))) part.draw();
  }
}

function question() {
  return state.question === null ? null : content.questions[state.question];
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// Sixteen-bit numbers, low byte first whatever machine this is.
function pairsOf(base64) {
  const view = new DataView(bytesOf(base64).buffer);
  return Uint16Array.from({ length: view.byteLength / 2 }, (_, i) => view.getUint16(2 * i, true));
}

// A reader gives the weights [T] of one row: reader(layer, head, row).
function denseReader(numbers, whole, length) {
  const size = (length * (length + 1)) / 2;
  return (layer, head, row) => {
    const from = (layer * nHead + head) * size + (row * (row + 1)) / 2;
    return Float64Array.from({ length }, (_, key) => (key <= row ? numbers[from + key] / whole : 0));
  };
}

function sparseReader(numbers, kept, length) {
  return (layer, head, row) => {
    const from = ((layer * nHead + head) * length + row) * kept * 2;
    const weights = new Float64Array(length);
    // Largest first: where a row is filled up with keys it does not have, their weight is 0.
    for (let i = 0; i < kept; i++) weights[numbers[from + 2 * i]] = numbers[from + 2 * i + 1] / 65535;
    return weights;
  };
}

const readers = new Map(); // unpacked once

function kept(key, make) {
  if (!readers.has(key)) readers.set(key, make());
  return readers.get(key);
}

function readerOf({ kept: pairs, data }, length) {
  return pairs === null ? denseReader(pairsOf(data), 65535, length) : sparseReader(pairsOf(data), pairs, length);
}

function endReader(sentence) {
  return kept(`end ${sentence.id}`, () => readerOf(sentence.weights, sentence.pieces.length));
}

// Of a long text words have weights of their own: the pieces that were kept do not add up to them.
function wordReader(sentence) {
  return kept(`words ${sentence.id}`, () => readerOf(sentence.word_weights, sentence.words.length));
}

// Whether a weight of 0 says only that it was too small to be kept.
function leavesOut(sentence, unit) {
  const held = unit === "word" && sentence.word_weights ? sentence.word_weights : sentence.weights;
  return held.kept !== null;
}

// The last frame that was kept up to a step.
function frameAt(time) {
  const frames = emergence.film.steps;
  let frame = 0;
  while (frame + 1 < frames.length && frames[frame + 1] <= steps[time]) frame++;
  return frame;
}

function hasFilm(sentence) {
  return Boolean(emergence && emergence.film && sentence.film !== null);
}

function readerAt(sentence, time) {
  if (time === END || !hasFilm(sentence)) return endReader(sentence);
  const frame = frameAt(time);
  const data = emergence.film.data[frame][sentence.film];
  return kept(`film ${sentence.film} ${frame}`, () => denseReader(bytesOf(data), 255, sentence.pieces.length));
}

// A sentence as words or as pieces: {labels, owner: each token's place in labels, last: each label's last token}.
function nodesOf(sentence, unit) {
  const labels = unit === "word" ? sentence.words : sentence.pieces;
  const owner = unit === "word" ? sentence.owner : sentence.pieces.map((_, i) => i);
  const last = labels.map(() => -1);
  owner.forEach((place, token) => {
    if (place >= 0) last[place] = token;
  });
  return { labels, owner, last };
}

// The place in words or pieces of one of the places in words that the content names.
function placeOf(sentence, unit, word) {
  return unit === "word" ? word : sentence.owner.lastIndexOf(word);
}

// The weights [places] from one place, each the sum over its tokens; nothing where no token is its own.
function rowOf(sentence, unit, node, layer = state.layer, head = state.head, time = state.time) {
  const { labels, owner, last } = nodesOf(sentence, unit);
  const row = new Float64Array(labels.length);
  if (last[node] < 0) return row;
  if (unit === "word" && sentence.word_weights) return wordReader(sentence)(layer, head, node);
  const weights = readerAt(sentence, time)(layer, head, last[node]);
  weights.forEach((weight, token) => {
    if (owner[token] >= 0) row[owner[token]] += weight;
  });
  return row;
}

// The word that is asked; where none is, the last one that is no mere mark.
function askedPlace(sentence, unit) {
  const { words, asked } = sentence;
  const named = words.findLastIndex((word, place) => place > 0 && /[\p{L}\p{N}]/u.test(word));
  return placeOf(sentence, unit, asked.length ? asked[0] : named > 0 ? named : words.length - 1);
}

// What a pair of words is about: the antecedent, or the word most looked at that is neither the start nor itself.
function defaultTarget(sentence, unit, from) {
  if (sentence.antecedents.length) return placeOf(sentence, unit, sentence.antecedents[0]);
  const row = rowOf(sentence, unit, from);
  let best = 0;
  for (let place = 1; place < from; place++) if (best === 0 || row[place] > row[best]) best = place;
  return best;
}

function curve() {
  const asked = question();
  return asked && asked.curve && emergence ? emergence.curves[asked.curve] : null;
}

const SCORES = {
  accuracy: {
    name: "Sel@1",
    centre: 0.5,
    short: "prefers the antecedent",
    means: "share of items in which the antecedent gets more weight than the other word; chance is 0.50",
  },
  block_accuracy: {
    name: "F4",
    centre: 0,
    short: "all four cells right",
    means: "share of blocks with all four cells right; a head that knows nothing has about 0",
  },
  pronoun_contrast: {
    name: "DD",
    centre: 0,
    short: "turns with the pronoun",
    means: "how far its preference turns with the pronoun: mean log ratio of the two weights, 0 is none",
  },
  p: {
    name: "corrected p",
    centre: 0,
    short: "luck does as well",
    means: "how often luck alone would make any head of this model so good; what is below the verdict's bar is marked",
  },
  weight: { name: "weight", centre: 0, means: "the weight of one line in the sentence below" },
};

// [L][H] of the chosen score at the chosen step; null where it was not measured then.
function scoresNow() {
  if (state.score === "weight") return weightsOfPair();
  if (state.time === END) return question().heads[state.score];
  const found = curve();
  return (found && found[state.score] && found[state.score][state.time]) || null;
}

function weightsOfPair() {
  const sentence = sentences.get(state.sentence);
  if (!sentence) return null;
  const from = lookingPlace(sentence);
  const to = targetPlace(sentence);
  const lost = leavesOut(sentence, state.unit);
  return perHead((layer, head) => {
    const weight = rowOf(sentence, state.unit, from, layer, head)[to];
    return weight === 0 && lost ? null : weight;
  });
}

function perHead(value) {
  return Array.from({ length: nLayer }, (_, layer) => Array.from({ length: nHead }, (_, head) => value(layer, head)));
}

function lookingPlace(sentence) {
  return state.hover ?? state.focus ?? askedPlace(sentence, state.unit);
}

function targetPlace(sentence) {
  return state.target ?? defaultTarget(sentence, state.unit, lookingPlace(sentence));
}

function isSignificant(layer, head) {
  const asked = question();
  return Boolean(asked) && asked.heads.p[layer][head] !== null && asked.heads.p[layer][head] < content.max_p;
}

function isChosen(layer, head) {
  const asked = question();
  return Boolean(asked) && asked.layer === layer && asked.head === head;
}
