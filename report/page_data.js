// The page's data, what is selected, and the numbers that both lead to: attention weights and scores of heads.

const content = JSON.parse(document.getElementById("content").textContent);
const { n_layer: nLayer, n_head: nHead } = content.run;
const training = content.training;
const steps = training ? training.steps : [];
const END = steps.length; // the slider's last position: the trained model on the test split
const sentences = new Map(content.sentences.map((sentence) => [sentence.id, sentence]));

// `query` and `target` are positions of words in the selected sentence; null: the sentence's default.
const state = {
  question: content.findings.length ? 0 : null,
  layer: 0,
  head: 0,
  score: "weight", // a name of content.measures, or of the selected sentence: "weight" or "effect"
  time: END,
  sentence: null,
  query: null,
  target: null,
  other: null, // the word that exchanges its weight with the target
  edits: [], // of the live model, as in page_live_model.js
  pair: null, // two words whose probabilities the user compares; null: those of comparedWords
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

// Attention weights

const decoded = new Map(); // DataView of the weights of each stored sentence, by its id

// The weights [words] of one word on every word. The live model computes those of live sentences and of earlier steps;
// the others are as probe/sentences.py packs them: row r of a head is words 0 to r.
function attentionRow(sentence, row, layer = state.layer, head = state.head) {
  const pass = livePass(sentence);
  if (pass) return wordRow(pass, row, layer, head);
  if (!decoded.has(sentence.id)) decoded.set(sentence.id, new DataView(bytesOf(sentence.weights).buffer));
  const view = decoded.get(sentence.id);
  const n = sentence.words.length;
  const offset = ((layer * nHead + head) * n * (n + 1) + row * (row + 1)) / 2;
  return Float64Array.from({ length: n }, (_, word) => (word > row ? 0 : view.getUint16(2 * (offset + word), true) / 65535));
}

function queryOf(sentence) {
  const selected = sentence.id === state.sentence ? state.query : null;
  return selected ?? sentence.query[0] ?? sentence.words.length - 1;
}

// The attended word of interest: the antecedent, else the word with the most weight between the start and the query.
function targetOf(sentence) {
  const selected = sentence.id === state.sentence ? state.target : null;
  return selected ?? sentence.antecedents[0] ?? largest(attentionRow(sentence, queryOf(sentence)), 1)[0] ?? 0;
}

// Positions of the n largest weights, without the start token.
function largest(weights, n) {
  const positions = [...weights.keys()].slice(1).filter((position) => weights[position] > 0);
  return positions.sort((a, b) => weights[b] - weights[a]).slice(0, n);
}

function roleOf(sentence, position) {
  if (sentence.antecedents.includes(position)) return "antecedent";
  return sentence.distractors.includes(position) ? "distractor" : "plain";
}

// Scores of heads

// Of the selected sentence, and of all tested texts; `centre` is white, and null: white is 0 and the largest full colour.
const OF_SENTENCE = { weight: { label: "attention weight", centre: 0 }, effect: { label: "effect of removing each head", centre: null } };
const measures = { ...content.measures, ...OF_SENTENCE };

// The measures of all heads that a question has, after or during training; p only decides the dots.
function measuresOf(finding) {
  const names = [...Object.keys(finding?.grids ?? {}), ...chartsOf(finding).filter(({ heads }) => heads).map(({ measure }) => measure)];
  return [...new Set(names)].filter((name) => name !== "p");
}

function chartsOf(finding) {
  return training?.charts[finding?.question] ?? [];
}

// Scores [layers][heads] at the slider's step; null if they were not measured then.
function scoresNow() {
  if (state.score === "weight") return attentionOfLink();
  if (state.score === "effect") return effectsNow();
  if (state.time === END) return question().grids[state.score] ?? null;
  return chartsOf(question()).find(({ measure }) => measure === state.score)?.heads[state.time] ?? null;
}

function attentionOfLink() {
  const sentence = sentences.get(state.sentence);
  if (!sentence) return null;
  const [query, target] = [queryOf(sentence), targetOf(sentence)];
  return perHead((layer, head) => attentionRow(sentence, query, layer, head)[target]);
}

function perHead(value) {
  return Array.from({ length: nLayer }, (_, layer) => Array.from({ length: nHead }, (_, head) => value(layer, head)));
}

function isChosen(layer, head) {
  return String(question()?.place) === String([layer, head]);
}
