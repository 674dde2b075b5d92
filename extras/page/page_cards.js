// From a word to a weight, and on to the next word, in the cards of cards.json: each asks for a guess, then shows
// the answer. #lesson=1 to 9 shows one in large type, with the field, the lines and the next words.

const N_CHOICES = 3; // to guess from
const TEMPERATURES = { min: 0.25, max: 8, step: 0.25 };

// The chosen head at the last token of the chosen word, and up to three earlier words to guess from: nouns of the stories
// or names first, then those that the head looks at. null: the chosen word has no token of its own.
function cardFacts() {
  const { words, members, tokens } = state.sentence;
  const { layer, head } = state;
  const chosen = chosenWord();
  const at = members[chosen].at(-1);
  if (at === undefined) return null;
  const run = passOf();
  const weights = wordRow(passOf([], live.step), chosen, state); // trained, unchanged: the words stay
  const isNoun = (word) => (live.verb_groups.length ? NOUNS.includes(word) : /^\p{Lu}\p{L}/u.test(word)); // English: names
  const interest = (word) => weights[word] + (isNoun(words[word]) ? 1 : 0);
  const isKnown = (word) => members[word].length && tokens[members[word].at(-1)] !== liveTokenizer.unknown;
  const isChoice = (word) => isKnown(word) && words.indexOf(words[word]) === word && /\p{L}/u.test(words[word]);
  const earlier = [...words.keys()].slice(1, chosen).filter(isChoice);
  const choices = earlier.sort((a, b) => interest(b) - interest(a)).slice(0, N_CHOICES);
  const [left, right] = choices.slice(0, 2).sort((a, b) => weights[b] - weights[a]);
  choices.sort(ascending);
  return { run, layer, head, chosen, at, choices, left, right, hasLine: weights[left] >= LOOKS, ...explained(run, layer, head, at) };
}

// A card has texts to choose from, which of them is right, a table to show then, and perhaps what the answer does.

// Which of the words has the largest measure? `columns`: what is shown of each.
function wordCard({ choices }, measure, columns) {
  const tokens = choices.map((word) => state.sentence.members[word].at(-1));
  const sizes = tokens.map(measure);
  const options = choices.map((word) => quoted(word));
  const rows = options.map((option, i) => [option, ...columns.map(([, cell]) => cell(tokens[i]))]);
  return { options, right: placeOfLargest(sizes), table: tableOf(["word", ...columns.map(([name]) => name)], rows) };
}

// The words of the vocabulary whose rows are most like that of the word that is looked at, and others to guess from.
function embeddingCard({ run, left }) {
  const { tokens, members } = state.sentence;
  const { d_model: width } = live.shape;
  const all = run.model.weights["token_embedding.weight"];
  const row = (id) => rowOf(all, id, width);
  const own = tokens[members[left].at(-1)];
  const ownRow = row(own);
  const cosine = (other) => dot(other, ownRow) / Math.sqrt(dot(other, other) * dot(ownRow, ownRow));
  const cosines = liveTokenizer.vocabulary.map((_, id) => cosine(row(id)));
  const isWord = { words: /^\p{L}{2,}$/u, bpe: /^ \p{L}{3,}$/u, characters: /^\p{L}$/u }[liveTokenizer.kind];
  const isOther = (id) => tokenName(id).toLowerCase() !== tokenName(own).toLowerCase();
  const others = placesOfLargest(cosines).filter((id) => isWord.test(rawToken(liveTokenizer, id)) && isOther(id));
  const ids = [others[0], others[others.length >> 2], others[others.length >> 1]].sort(ascending);
  const named = (id) => `“${tokenName(id)}”`;
  const most = largestCell([own, ...ids].flatMap((id) => [...row(id)]));
  const lines = [own, ...ids].map((id) => [named(id), cells(row(id), most), number(cosines[id])]);
  const table = tableOf(["word", "embedding", "cosine"], lines);
  return { options: ids.map(named), right: ids.indexOf(others[0]), table, fields: { left: named(own) } };
}

// A matrix as a picture: a column for each cell of the query, on its side. Pointed at, it says what it makes of the row.
function matrixPicture(matrix, input, width) {
  const most = largestCell([...matrix]);
  const columns = rowsOf(matrix, width).map((column, i) => {
    const node = cells(column, most);
    node.addEventListener("pointermove", () => (node.title = `column ${i + 1}: times the row, added up: ${dot(column, input).toFixed(5)}`));
    return node;
  });
  return element("div", { class: "matrix" }, ...columns);
}

function matricesCard({ run, layer, head, at, query, rows }) {
  const all = live.shape.d_model;
  const { width } = run.model;
  const input = rowOf(run.projected[layer].input, at, all);
  const row = (name, values) => [name, cells(values, largestCell(values)), String(values.length)];
  const { key, value } = rows[at];
  const ofHead = run.model.layers[layer].query.subarray(head * width * all, (head + 1) * width * all);
  const lines = [row("the row at this layer", input), ["W_Q", matrixPicture(ofHead, input, all), `${all} × ${width}`]];
  lines.push(row("× W_Q: query", query), row("× W_K: key", key), row("× W_V: value", value));
  return { options: [width, all, all * width].map(String), right: 0, table: tableOf(["", "cells", "numbers"], lines) };
}

function scoreCard(facts) {
  return wordCard(facts, (token) => facts.rows[token].sum, howColumns(facts).slice(0, 3));
}

function softmaxCard(facts) {
  const { temperature } = state;
  const shares = softmax(facts.rows.slice(0, facts.at + 1).map(({ score }) => score / temperature));
  const columns = [...howColumns(facts).slice(2, 6), [`temperature ${temperature}`, (token) => number(shares[token])]];
  const range = element("input", { type: "range", id: "temperature", ...TEMPERATURES, value: temperature, "data-name": "temperature" });
  range.addEventListener("change", () => update({ temperature: Number(range.value) }));
  const slider = labelled("Temperature, in this table only", range);
  const { table } = wordCard(facts, () => 0, columns);
  return { options: ["more equal", "less equal"], right: 0, table: element("div", {}, table, slider) };
}

function mixtureCard(facts) {
  const columns = howColumns(facts).filter(([name]) => /softmax|share|changed|value/.test(name));
  return wordCard(facts, (token) => dot(facts.rows[token].moved, facts.rows[token].moved), columns);
}

// Of the five most probable next words, the one to which the head adds most and the one to which it adds least.
function nextWordCard(facts) {
  const { words, adds } = additions(facts);
  const totals = adds.map(total);
  const most = placeOfLargest(totals);
  const least = totals.indexOf(Math.min(...totals));
  const shown = [most, least].sort(ascending);
  const header = ["next word", `${headName(facts)} adds to its logit, scaled`];
  const table = tableOf(header, words.map((word, i) => [word, number(totals[i])]));
  return { options: shown.map((i) => words[i]), right: shown.indexOf(most), table };
}

function exchangeCard({ layer, head, chosen, left, right }) {
  const edit = { kind: "exchange", layer, head, query: chosen, target: left, other: right };
  const isAnswer = (known) => Object.keys(edit).every((name) => known[name] === edit[name]); // with any share
  const others = state.edits.filter((known) => !isAnswer(known));
  const changed = [...others, edit];
  const [before, after] = [others, changed].map((edits) => label(nextWords(passOf(edits), 1)[0][0]));
  const table = tableOf(["", "most likely next word"], [["before", before], ["exchanged", after]]);
  return { options: [`“${before}” stays`, "it changes"], right: before === after ? 0 : 1, table, act: () => changeTo(changed) };
}

function trainingCard(facts) {
  const { chosen, left } = facts;
  const weights = [...steps, live.step].map((step) => wordRow(passOf([], step), chosen, facts)[left]);
  const all = [...steps, state.here ?? live.step];
  const found = 1 + weights.findLastIndex((weight) => weight < weights.at(-1) / 2);
  const apart = Math.max(1, Math.floor(all.length / 3)); // so that the steps to guess from differ
  const others = [...all.keys()].filter((i) => i !== found && i % apart === found % apart).slice(0, N_CHOICES - 1);
  const options = [found, ...others].sort(ascending);
  const names = all.map((step) => step.toLocaleString("en"));
  const table = tableOf(["step", ...names], [[quoted(left), ...weights.map(number)]]);
  return { options: options.map((i) => `step ${names[i]}`), right: options.indexOf(found), table, act: () => playFrom(0) };
}

const MAKERS = [embeddingCard, matricesCard, scoreCard, softmaxCard, mixtureCard, nextWordCard, exchangeCard, trainingCard];

// Where the page is published, docs/attention.md stands beside it: its section with the same step in code.
function inCode({ name, trains }) {
  if (!live.english || !location.protocol.startsWith("http") || trains) return null;
  const anchor = `${state.card}-${name.replace(/[^\w -]/g, "").replaceAll(" ", "-")}`;
  return element("a", { href: `attention.html#${anchor}` }, "The same in code");
}

// Draw the chosen card: what happens, a question, texts to guess from; after a guess the answer.
function drawCard() {
  const card = CARDS[state.card - 1];
  const { says, ask, hides, trains } = card;
  const make = MAKERS[state.card - 1];
  const isTraining = make === trainingCard;
  const isTrained = trains && state.here !== null; // the guess begins it
  part("slider").hidden = !steps.length || (isLesson() && !isTraining && !isTrained);
  const told = live.shape.weighting === "sum" ? says.replace("take e to this power", "take what is above 0") : says;
  const said = element("p", {}, told, " ", inCode(card));
  if (live.training) part("train").hidden = isLesson() && !isTrained;
  if (trains) {
    const guesses = [["yes", true], ["no", false]].map(([text, guess]) => chip(text, () => trainOneLayer(guess), `guess-${text}`));
    const answer = state.here === null ? element("p", { class: "actions" }, ...guesses) : remark("What the training shows stands above.");
    return showCard([said, element("p", {}, ask), answer]);
  }
  const facts = cardFacts();
  const problem = noQuestion(facts, isTraining);
  if (problem) return showCard([said, remark(problem)]);

  const { options, right, table, fields, act } = make(facts);
  const { chosen, run } = facts;
  const [from, head, d] = [quoted(chosen), headName(state), run.model.width];
  const words = { from, head, d, left: quoted(facts.left), right: quoted(facts.right), d_model: live.shape.d_model, ...fields };
  const asked = element("p", {}, bdi(ask.replace(/\{(\w+)\}/g, (_, name) => words[name])));

  // A guess is about this card, head, word and text, and about the step and the changes, if the answer changes none of them.
  const ofStep = !isTraining && [state.time, state.here];
  const key = JSON.stringify([state.card, head, chosen, state.sentence.text, ofStep, !act && state.edits]);
  const guess = (choice) => {
    update({ guess: { key, choice } });
    act?.();
  };
  if (state.guess.key !== key) {
    const buttons = [...options, "show me"].map((option, i) => chip(option, () => guess(i), `guess-${i}`));
    const guesses = element("p", { class: "actions", "data-hides": hides }, ...buttons); // what shows the answer above
    return showCard([said, asked, guesses]);
  }
  const { choice } = state.guess;
  const wrong = options[choice] ? ` You guessed ${options[choice]}.` : ""; // or "show me"
  const guessed = choice === right ? " Your guess was right." : wrong;
  const answer = element("p", { class: "answer", "aria-live": "polite" }, element("b", {}, options[right]), `.${guessed}`);
  const turned = live.shape.position === "rope" ? " The place of a word turns its query and key, so that two equal words differ." : "";
  const ofQuery = state.card > 1 ? ` d = ${d}: the numbers of a query.${turned}` : "";
  const legend = table.querySelector(".cells") && remark(`Blue: above 0; orange: below.${ofQuery}`);
  showCard([said, asked, answer], element("div", {}, scrolled("The answer", table), legend));
}

// Why a card has no question here; "" if it has one.
function noQuestion(facts, isTraining) {
  if (facts?.right === undefined) return "For a question, choose a word with two different known words before it, or type a longer sentence.";
  if (isTraining && (!steps.length || live.before)) return "This page has no weights of earlier steps. train.py keeps those of models of up to 500,000 weights.";
  if (isTraining && !facts.hasLine) return "Choose a head that looks at one of the words.";
  if (state.card > 4 && !isTraining && isRemoved()) return "This head is removed.";
  return "";
}

// The chips of all cards, and the parts of the chosen one; `beside` them stands the answer.
function showCard(parts, beside) {
  const chips = CARDS.map(({ name }, i) => {
    const about = { "aria-pressed": String(i + 1 === state.card) };
    return chip(`${i + 1} ${name}`, () => openCard(i + 1), `card-${i + 1}`, about);
  });
  const leave = isLesson() && chip("The whole page", () => (location.hash = ""), "leave");
  const row = element("div", { class: "chips", role: "group", "aria-label": "From a word to the next word" }, ...chips, leave);
  const card = element("div", { class: "card" }, element("div", {}, ...parts), beside);
  show("cards", remark(`How it comes about, in ${CARDS.length} steps, every number real:`), row, card);
  row.scrollLeft = chips[state.card - 1].offsetLeft - row.offsetLeft - 8; // on a phone the chips are one row
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
  const card = Number(/^#lesson=([1-9])(?![^&])/.exec(location.hash)?.[1] ?? 0);
  return card > CARDS.length ? 0 : card;
}
