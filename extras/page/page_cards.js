// From a word to a weight, and on to the next word, in the eight cards of cards.json: each asks for a guess, then shows
// the answer. #lesson=1 to 8 shows one in large type, with the field, the lines and the next words.

const N_CHOICES = 3; // to guess from
const TEMPERATURES = { min: 0.25, max: 8, step: 0.25 };

// The chosen head at the last token of the chosen word, and up to three earlier words to guess from: nouns of the stories
// or names first, then those that the head looks at. null: the chosen word has no token of its own.
function cardFacts() {
  const sentence = current();
  const { reading: read, run } = passOf(sentence.text, state.edits);
  const query = queryOf(sentence);
  const at = read.members[query].at(-1);
  if (at === undefined) return null;
  const { layer, head } = state;
  const weights = wordRow(passOf(sentence.text, [], live.step), query, layer, head); // trained, unchanged: the words stay
  const isNoun = (word) => (live.verb_groups.length ? NOUNS.includes(word) : /^\p{Lu}\p{L}/u.test(word)); // English: names
  const interest = (word) => weights[word] + (isNoun(sentence.words[word]) ? 1 : 0);
  const isFirst = (word) => sentence.words.indexOf(sentence.words[word]) === word;
  const isKnown = (word) => read.members[word].length && read.tokens[read.members[word].at(-1)] !== liveTokenizer.unknown;
  const isChoice = (word) => isKnown(word) && isFirst(word) && /\p{L}/u.test(sentence.words[word]);
  const earlier = [...sentence.words.keys()].slice(1, query).filter(isChoice);
  const words = earlier.sort((a, b) => interest(b) - interest(a)).slice(0, N_CHOICES);
  const [left, right] = words.slice(0, 2).sort((a, b) => weights[b] - weights[a]);
  const named = (word) => (word === undefined ? "" : quoted(sentence, word));
  words.sort((a, b) => a - b);
  const tokens = words.map((word) => read.members[word].at(-1));
  const of = { sentence, read, run, chosen: query, at, layer, head, words, tokens, left, right, named };
  return { ...of, hasLine: weights[left] >= LOOKS, ...explained(run, layer, head, at) };
}

// A card has texts to choose from, which of them is right, a table to show then, and perhaps what the answer does.

// Which of the words has the largest measure? `columns`: what is shown of each.
function wordCard({ words, tokens, named }, measure, columns) {
  const sizes = tokens.map(measure);
  const rows = () => words.map((word, i) => [named(word), ...columns.map(([, cell]) => cell(tokens[i]))]);
  const table = () => tableOf(["word", ...columns.map(([name]) => name)], rows());
  return { options: words.map(named), right: sizes.indexOf(Math.max(...sizes)), table };
}

// The words of the vocabulary whose rows are most like that of the word that is looked at, and others to guess from.
function embeddingCard({ read, run, left }) {
  const { d_model: width } = live.shape;
  const all = run.model.weights["token_embedding.weight"];
  const row = (id) => all.subarray(id * width, (id + 1) * width);
  const own = read.tokens[read.members[left].at(-1)];
  const ownRow = row(own);
  const cosine = (other) => dot(other, ownRow) / Math.sqrt(dot(other, other) * dot(ownRow, ownRow));
  const cosines = liveTokenizer.vocabulary.map((_, id) => cosine(row(id)));
  const isWord = { words: /^\p{L}{2,}$/u, bpe: /^ \p{L}{3,}$/u, characters: /^\p{L}$/u }[liveTokenizer.kind];
  const isOther = (id) => tokenName(id).toLowerCase() !== tokenName(own).toLowerCase();
  const others = [...cosines.keys()].filter((id) => isWord.test(rawToken(liveTokenizer, id)) && isOther(id));
  others.sort((a, b) => cosines[b] - cosines[a]);
  const shown = [others[0], others[others.length >> 2], others[others.length >> 1]];
  const ids = shown.sort((a, b) => a - b);
  const named = (id) => `“${tokenName(id)}”`;
  const most = largestCell([own, ...ids].flatMap((id) => [...row(id)]));
  const lines = () => [own, ...ids].map((id) => [named(id), cells(row(id), most, "embedding"), number(cosines[id])]);
  const table = () => tableOf(["word", "embedding", "cosine"], lines());
  return { options: ids.map(named), right: ids.indexOf(others[0]), table, fields: { left: named(own) } };
}

function matricesCard({ run, layer, at, query, rows }) {
  const all = live.shape.d_model;
  const { width } = run.model;
  const read = run.projected[layer].input.subarray(at * all, (at + 1) * all);
  const parts = { "the row at this layer": read, "× W_Q: query": query, "× W_K: key": rows[at].key, "× W_V: value": rows[at].value };
  const line = ([name, values]) => [name, cells(values, largestCell(values), name), String(values.length)];
  const table = () => tableOf(["", "cells", "numbers"], Object.entries(parts).map(line));
  return { options: [width, all, all * width].map(String), right: 0, table };
}

function scoreCard(facts) {
  return wordCard(facts, (token) => facts.rows[token].sum, howColumns(facts).slice(0, 3));
}

function softmaxCard(facts) {
  const scores = facts.rows.slice(0, facts.at + 1).map(({ score }) => score / state.temperature);
  const shares = softmax(scores);
  const columns = [...howColumns(facts).slice(2, 6), [`temperature ${state.temperature}`, (token) => number(shares[token])]];
  const range = element("input", { type: "range", id: "temperature", ...TEMPERATURES, value: state.temperature, "data-name": "temperature" });
  range.addEventListener("input", () => update({ temperature: Number(range.value) }));
  const slider = element("label", { class: "menu" }, element("span", {}, "Temperature, in this table only"), range);
  const table = () => element("div", {}, wordCard(facts, () => 0, columns).table(), slider);
  return { options: ["more equal", "less equal"], right: 0, table };
}

function mixtureCard(facts) {
  const columns = howColumns(facts).filter(([name]) => /softmax|share|changed|value/.test(name));
  const sizes = facts.rows.map(({ moved }) => dot(moved, moved));
  return wordCard(facts, (token) => sizes[token], columns);
}

// Of the five most probable next words, the one to which the head adds most and the one to which it adds least.
function nextWordCard(facts) {
  const { words, adds } = additions(facts);
  const totals = adds.map(total);
  const ends = [Math.max(...totals), Math.min(...totals)].map((sum) => totals.indexOf(sum));
  const shown = ends.sort((a, b) => a - b);
  const header = ["next word", `${headName(facts.layer, facts.head)} adds to its logit, scaled`];
  const table = () => tableOf(header, words.map((word, i) => [word, number(totals[i])]));
  return { options: shown.map((i) => words[i]), right: totals[shown[0]] >= totals[shown[1]] ? 0 : 1, table };
}

function exchangeCard({ sentence, layer, head, chosen, left, right }) {
  const edit = { kind: "exchange", layer, head, query: chosen, target: left, other: right };
  const isAnswer = (known) => Object.keys(edit).every((name) => known[name] === edit[name]); // with any share
  const others = state.edits.filter((known) => !isAnswer(known));
  const changed = [...others, edit];
  const [before, after] = [others, changed].map((edits) => label(nextWords(passOf(sentence.text, edits), 1)[0][0]));
  const table = () => tableOf(["", "most likely next word"], [["before", before], ["exchanged", after]]);
  return { options: [`“${before}” stays`, "it changes"], right: before === after ? 0 : 1, table, act: () => changeTo(changed) };
}

function trainingCard({ sentence, layer, head, chosen, left, named }) {
  const all = [...steps, live.step];
  const weights = all.map((step) => wordRow(passOf(sentence.text, [], step), chosen, layer, head)[left]);
  const found = 1 + weights.findLastIndex((weight) => weight < weights.at(-1) / 2);
  const apart = Math.max(1, Math.floor(all.length / 3)); // so that the steps to guess from differ
  const others = [...all.keys()].filter((i) => i !== found && i % apart === found % apart).slice(0, N_CHOICES - 1);
  const options = [found, ...others].sort((a, b) => a - b);
  const names = all.map((step) => step.toLocaleString("en"));
  const table = () => tableOf(["step", ...names], [[named(left), ...weights.map(number)]]);
  return { options: options.map((i) => `step ${names[i]}`), right: options.indexOf(found), table, act: () => playFrom(0) };
}

const MAKERS = [embeddingCard, matricesCard, scoreCard, softmaxCard, mixtureCard, nextWordCard, exchangeCard, trainingCard];

// Draw the chosen card: what happens, a question, texts to guess from; after a guess the answer.
function drawCard() {
  const { says, ask, hides } = CARDS[state.card - 1];
  const isTraining = state.card === CARDS.length;
  const facts = cardFacts();
  const problem = noQuestion(facts, isTraining);
  const said = element("p", {}, live.shape.weighting === "sum" ? says.replace("take e to this power", "take what is above 0") : says);
  document.getElementById("slider").hidden = steps.length === 0 || (isLesson() && !isTraining);
  if (problem) return showCard(element("div", {}, said, element("p", { class: "rule" }, problem)));

  const card = MAKERS[state.card - 1](facts);
  const { named, chosen, left, right, run } = facts;
  const [from, head, d] = [named(chosen), headName(state.layer, state.head), run.model.width];
  const fields = { from, head, d, left: named(left), right: named(right), d_model: live.shape.d_model, ...card.fields };
  const asked = element("bdi", {}, ask.replace(/\{(\w+)\}/g, (_, field) => fields[field]));

  const ofStep = isTraining ? [] : [state.time];
  const changes = card.act ? ofStep : [state.time, state.edits]; // an answer that changes the model stays
  const key = JSON.stringify([state.card, head, chosen, current().text, ...changes]);
  const guess = (choice) => () => {
    update({ guess: { key, choice } });
    card.act?.();
  };
  const buttons = [...card.options, "show me"].map((option, i) => button(option, guess(i), { class: "chip", "data-name": `guess-${i}` }));
  const guesses = element("p", { class: "actions", "data-hides": hides }, ...buttons); // what shows the answer above
  const { choice } = state.guess;
  const wrong = choice < card.options.length ? ` You guessed ${card.options[choice]}.` : ""; // or "show me"
  const guessed = choice === card.right ? " Your guess was right." : wrong;
  const answer = element("p", { class: "answer", "aria-live": "polite" }, element("b", {}, card.options[card.right]), `.${guessed}`);
  const isAnswered = state.guess.key === key;
  const words = element("div", {}, said, element("p", {}, asked), isAnswered ? answer : guesses);
  const turned = live.shape.position === "rope" ? " The place of a word turns its query and key, so that two equal words differ." : "";
  const table = isAnswered ? card.table() : null;
  const ofQuery = state.card > 1 ? ` d = ${d}: the numbers of a query.${turned}` : "";
  const legend = table?.querySelector(".cells") ? `Blue: above 0; orange: below.${ofQuery}` : "";
  showCard(words, table && element("div", {}, scrolled("The answer", table), element("p", { class: "rule" }, legend)));
}

// Why a card has no question here; "" if it has one.
function noQuestion(facts, isTraining) {
  if (facts?.right === undefined) return "For a question, choose a word with two different known words before it, or type a longer sentence.";
  if (isTraining && (!steps.length || live.before)) return "This page has no weights of earlier steps. train.py keeps some with keep_checkpoints=20, up to a million weights.";
  if (isTraining && !facts.hasLine) return "Choose a head that looks at one of the words.";
  if (state.card > 4 && !isTraining && isRemoved(state.layer, state.head)) return "This head is removed.";
  return "";
}

function showCard(...parts) {
  show("cards", cardNames(), element("div", { class: "card" }, ...parts.filter(Boolean)));
  const [row, chip] = [".chips", ".chips [aria-pressed=true]"].map((part) => document.querySelector(`#cards ${part}`));
  row.scrollLeft = chip.offsetLeft - row.offsetLeft - 8; // on a phone the chips are one row
}

function cardNames() {
  const names = CARDS.map(({ name }, i) => {
    const about = { class: "chip", "aria-pressed": String(i + 1 === state.card), "data-name": `card-${i + 1}` };
    return button(`${i + 1} ${name}`, () => openCard(i + 1), about);
  });
  const leave = isLesson() ? button("The whole page", () => (location.hash = ""), { class: "chip", "data-name": "leave" }) : null;
  return element("div", { class: "chips", role: "group", "aria-label": "From a word to the next word" }, ...names, leave);
}

function isLesson() {
  return document.documentElement.classList.contains("lesson");
}

function openCard(card) {
  stopPlaying();
  if (isLesson()) location.hash = `lesson=${card}`;
  else update({ card });
}

// The card of the address #lesson=2, behind which a state may stand; 0: it is of no lesson.
function lessonCard() {
  return Number(/^#lesson=([1-8])(?![^&])/.exec(location.hash)?.[1] ?? 0);
}
