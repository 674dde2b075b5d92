// The page's data, what is selected, and the attention weights that both lead to.

const content = JSON.parse(document.getElementById("content").textContent);
const { n_layer: nLayer, n_head: nHead } = content.run;
const live = content.live.model;
const steps = live ? live.earlier.steps : []; // of the slider: those whose weights the page has
const PLACES = Array.from({ length: nLayer * nHead }, (_, i) => ({ layer: Math.floor(i / nHead), head: i % nHead }));
// Only some layers of a hybrid have heads.
const HEADS = PLACES.filter(({ layer }) => content.sentences.every(({ weights }) => weights[layer].length));
const START = "(start): the token before every text";
const END = steps.length; // the slider's last position: the trained model
const sentences = new Map(content.sentences.map((sentence) => [sentence.id, sentence]));

// `query` is the position of a word in the selected sentence; null: the sentence's default.
const state = {
  question: content.findings.length ? 0 : null,
  ...HEADS[0], // layer and head
  time: END,
  sentence: null,
  query: null,
  edits: [], // of the live model, as in page_live_model.js
  row: null, // the token whose cells are listed in the derivation; null: that with the largest weight
  opened: new Set(), // names of open details of the derivation
  card: 1, // of CARDS, from 1
  guess: {}, // {key: of a card and a sentence, choice}
  temperature: 4,
  playing: false,
  width: 800, // of the picture of the lines, in pixels
  revision: 0, // counts the changes of the live sentences and of what is computed about them
};
const views = []; // {inputs: names in `state`, draw}

function redrawOn(inputs, draw) {
  views.push({ inputs: inputs.split(" "), draw });
}

function update(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  for (const { inputs, draw } of views) if (inputs.some((name) => changed.includes(name))) draw();
}

function question() {
  return content.findings[state.question] ?? null;
}

function current() {
  return sentences.get(state.sentence) ?? null;
}

// The weights [words] of one word on every word. The stored ones of a head are one row after the other, row r up to word r.
function attentionRow(sentence, row, layer = state.layer, head = state.head) {
  if (live) return wordRow(passOf(sentence.text, state.edits), row, layer, head);
  const ofRow = sentence.weights[layer][head].slice((row * (row + 1)) / 2);
  return Float64Array.from(sentence.words, (_, word) => (word > row ? 0 : ofRow[word] / 10000));
}

function queryOf(sentence) {
  const selected = sentence.id === state.sentence ? state.query : null;
  return selected ?? sentence.query ?? sentence.words.length - 1;
}
