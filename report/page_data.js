// The page's data, what is selected, and the numbers that both lead to: attention weights and scores of heads.

const content = JSON.parse(document.getElementById("content").textContent);
const { n_layer: nLayer, n_head: nHead } = content.run;
const training = content.training;
const steps = training ? training.steps : [];
const END = steps.length; // the slider's last position: the trained model on the test split
const sentences = new Map(content.sentences.map((sentence) => [sentence.id, sentence]));

// `query` and `target` are positions of words in the selected sentence; null: the sentence's default.
const state = {
  question: content.questions.length ? 0 : null,
  layer: 0,
  head: 0,
  score: "accuracy",
  time: END,
  sentence: null,
  query: null,
  target: null,
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
  return state.question === null ? null : content.questions[state.question];
}

// Attention weights

const unpacked = new Map();

// Unpacks what probe/sentences.py packs: for each layer and head, row r holds the weights on words 0 to r.
function unpack(key, { rows, bytes, data }) {
  if (!unpacked.has(key)) {
    const raw = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
    const view = new DataView(raw.buffer);
    const read = (i) => (bytes === 1 ? raw[i] / 255 : view.getUint16(2 * i, true) / 65535);
    const offsets = new Map();
    let size = 0;
    for (const row of rows) {
      offsets.set(row, size);
      size += row + 1;
    }
    unpacked.set(key, { read, offsets, size });
  }
  return unpacked.get(key);
}

function hasSnapshots(sentence) {
  return Boolean(training && training.snapshots && sentence.snapshot !== null);
}

// The last snapshot at or before the slider's step.
function snapshotIndex() {
  return training.snapshots.steps.findLastIndex((step) => step <= steps[state.time]);
}

function packedNow(sentence) {
  const index = state.time === END || !hasSnapshots(sentence) ? -1 : snapshotIndex();
  if (index < 0) return unpack(sentence.id, sentence.weights);
  const rows = sentence.words.map((_, position) => position);
  const data = training.snapshots.data[index][sentence.snapshot];
  return unpack(`${sentence.snapshot} at ${index}`, { rows, bytes: 1, data });
}

function isStored(sentence, row) {
  return sentence.weights.rows.includes(row);
}

// The weights [words] of one word on every word; all 0 for a row that a long sentence does not store.
function attentionRow(sentence, row, layer = state.layer, head = state.head) {
  const weights = new Float64Array(sentence.words.length);
  const { read, offsets, size } = packedNow(sentence);
  if (!offsets.has(row)) return weights;
  const offset = (layer * nHead + head) * size + offsets.get(row);
  for (let word = 0; word <= row; word++) weights[word] = read(offset + word);
  return weights;
}

function queryOf(sentence) {
  const selected = sentence.id === state.sentence ? state.query : null;
  return selected ?? sentence.query[0] ?? sentence.weights.rows.at(-1);
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

const SCORES = {
  accuracy: {
    name: "accuracy",
    centre: 0.5,
    means: "share of items in which the antecedent gets more attention than the distractor; chance is 0.50",
  },
  pronoun_contrast: {
    name: "pronoun contrast",
    centre: 0,
    means: "half the change of the log attention ratio when only the pronoun changes; 0 is no change",
  },
  block_accuracy: {
    name: "block accuracy",
    centre: 0,
    means: "share of blocks with all four cells right (two orders × two pronouns)",
  },
  p: {
    name: "corrected p",
    centre: 0,
    means: "chance that the best of all heads scores this high without linking anything (max-T test)",
  },
  weight: { name: "attention weight", centre: 0, means: "" },
};

function trainingCurves() {
  const selected = question();
  return (training && selected && training.curves[selected.curve]) || null;
}

// Scores [layers][heads] at the slider's step; null if they were not measured then.
function scoresNow() {
  if (state.score === "weight") return attentionOfLink();
  if (state.time === END) return question().heads[state.score];
  return trainingCurves()?.[state.score]?.[state.time] ?? null;
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

function isSignificant(layer, head) {
  const p = question()?.heads.p[layer][head] ?? null;
  return p !== null && p < content.max_p;
}

function isChosen(layer, head) {
  return question()?.layer === layer && question()?.head === head;
}
