// The page's data, what is selected, and the attention weights that both lead to.

const content = JSON.parse(part("content").textContent);
let { n_layer: nLayer, n_head: nHead } = content.run;
const live = content.live.model;
const ownShape = live?.shape; // of the file's model: live.shape changes with what is trained
const steps = live ? live.earlier.steps : []; // of the slider: those whose weights the page has
// Only some layers of a hybrid have heads; a live model has no others, and its sentences no stored weights.
let HEADS = placesOf().filter(({ layer }) => live || content.sentences.every(({ weights }) => weights[layer].length));

function placesOf() {
  return Array.from({ length: nLayer * nHead }, (_, i) => ({ layer: Math.floor(i / nHead), head: i % nHead }));
}

// Show a live model of another shape from now on; the slider has no steps of it yet, and changes were those of other heads.
function openShape(shape) {
  live.shape = shape;
  ({ n_layer: nLayer, n_head: nHead } = shape);
  HEADS = placesOf();
  steps.length = 0;
  past = [];
  Object.assign(state, { edits: [], time: END, here: null, ...placeOf(state.question) });
}

const START = "(start): the token before every text";
const END = Infinity; // the slider's last position: the trained model, or the newest weights

const state = {
  question: 0, // of content.findings
  ...placeOf(0), // layer and head
  time: END,
  here: null, // the step of the model that is trained in this page
  sentence: content.sentences[0], // a stored one; with a live model what readText returns
  query: null, // the position of a word of the sentence; null: the sentence's default
  edits: [], // of the live model, as in page_live_model.js
  row: null, // the token whose cells are listed in the derivation; null: that with the largest weight
  opened: new Set(), // names of open details of the derivation
  card: 1, // of CARDS, from 1
  guess: {}, // {key: of a card and a sentence, choice}
  temperature: 4,
  playing: false, // the training
  saying: false, // whether a click on a next word looks for a change that makes it the answer
  width: 800, // of the picture of the lines, in pixels
};
const views = []; // functions, each of which draws a part of the page
const below = []; // those below the first screen, drawn in the next task: so the answer is there sooner
let belowTimer = null;

// Change the state, and draw the page again from the kept passes of the model.
function update(changes) {
  const isChanged = Object.keys(changes).some((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  if (!isChanged) return;
  for (const draw of views) draw();
  if (!below.length) return;
  clearTimeout(belowTimer);
  part("cards").ariaBusy = true; // not of the body: in a busy one some screen readers skip what live regions say
  belowTimer = setTimeout(drawBelow);
}

function drawBelow() {
  part("cards").ariaBusy = false;
  below.forEach((draw) => draw());
}

// A head of the file: there it is [layer, number].
function headAt([layer, head]) {
  return { layer, head };
}

// The head of a finding; the first one without findings, or if a model trained in the page has no such head.
function placeOf(question) {
  const place = headAt(content.findings[question]?.place ?? []);
  return HEADS.find((head) => isOfHead(head, place)) ?? HEADS[0];
}

// A choice of the head of a line or an edit: its derivation opens at the largest weight.
function choiceOf({ layer, head }) {
  return { layer, head, row: null };
}

// The position of the word that heads are read at.
function chosenWord() {
  return state.query ?? state.sentence.query ?? state.sentence.words.length - 1;
}

// The weights [words] of the chosen word on every word, of the chosen head or another place {layer, head}. The stored ones
// of a head are one row after the other, row r up to word r.
function attentionRow(place = state) {
  const row = chosenWord();
  if (live) return wordRow(passOf(), row, place);
  const ofRow = state.sentence.weights[place.layer][place.head].slice((row * (row + 1)) / 2);
  return Float64Array.from(state.sentence.words, (_, word) => (word > row ? 0 : ofRow[word] / 10000));
}
