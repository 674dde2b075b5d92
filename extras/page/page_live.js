// The sentence field and the next words. page_live_model.js computes.

const LONGEST_TEXT = 5000; // characters
const NEAR_UNIFORM = 10; // times 1/vocabulary, and at most .02: with a smaller largest probability no next word is listed
const LOOKS = 0.3; // the weight from which the first sentence says that a head looks at a word

const field = part("live-text"); // null without a live model
let typingTimer = null;

// The text that the model reads, and what the user must know about it.
function fitted(text) {
  const cut = text.slice(0, LONGEST_TEXT).replace(/\p{Surrogate}/gu, "\ufffd");
  const notes = [];
  if (cut.length < text.length) notes.push(`Cut after ${LONGEST_TEXT} characters.`);
  const known = knownCase(cut);
  const whole = liveTokenizer.kind === "bpe" ? known.replace(/ +$/, "") : known; // its tokens begin with their space
  const limit = live.shape.context_length;
  const tokens = tokensOf(liveTokenizer, whole);
  if (tokens.length < limit) return { text: whole, notes };
  const read = whole.slice(0, tokens[limit - 2].end);
  notes.push(`This model reads ${limit - 1} tokens, so the text is cut after “${label(read.slice(-20))}”.`);
  return { text: read, notes };
}

// Show what is typed. Changes of lines stay as long as their words do.
function typed(text) {
  const { text: shown, notes } = fitted(text);
  const sentence = readText(liveTokenizer, shown);
  const { words } = state.sentence ?? sentence;
  const isKept = (edit) => POSITIONS[edit.kind].every((name) => sentence.words[edit[name]] === words[edit[name]]);
  const edits = state.edits.filter(isKept);
  past = past.map((changes) => changes.filter(isKept)); // a step back is about the words that are there
  const begun = document.activeElement === field && completions().length && typedPrefix(); // not yet written to its end
  const small = liveTokenizer.kind === "words" && /[.!?]\s*(it|they|she|he)$/.exec(shown)?.[1];
  if (small) notes.push(`In the stories a sentence begins with a capital letter: “${small}” is another word than “${titled(small)}”.`);
  const lost = sentence.unknown.filter((word) => word !== begun);
  const names = lost.slice(0, 8).map((word) => `“${label(word)}”`);
  if (lost.length) notes.push(`Not in the model's vocabulary, so read as the unknown word: ${names.join(", ")}.`);
  const dropped = state.edits.length - edits.length;
  if (dropped) notes.push(`Dropped, because their words are gone or have moved: ${dropped} of your changes.`);
  show("live-notes");
  notes.forEach(addNote);
  if (lost.length && live.english) {
    const address = new URL(`${live.english}#${new URLSearchParams({ text })}`, pageAddress());
    addNote(element("a", { href: address, id: "live-english" }, `The same sentence in a model of English, ${live.english}`));
  }
  update({ sentence, query: null, row: null, edits });
}

// Add a text or an element to the notes, unless it is there.
function addNote(note) {
  const line = element("p", { class: "note" }, bdi(note));
  const notes = part("live-notes");
  if (![...notes.children].some(({ textContent }) => textContent === line.textContent)) notes.append(line);
}

let typedAt = -Infinity; // the time of the last key, in milliseconds

// Keys that were pressed during a slow pass are read together.
function onTyped() {
  typedAt = performance.now();
  clearTimeout(typingTimer);
  typingTimer = setTimeout(() => typed(field.value));
}

function setText(text) {
  field.value = text;
  typed(text);
}

function openField() {
  setText(live.text);
  field.addEventListener("input", onTyped);
  document.addEventListener("keydown", onUndoKey);
  part("word-list").closest("details").hidden = liveTokenizer.kind === "bpe"; // parts of words
  show("word-list", `${knownWords.length.toLocaleString("en")} words: ${knownWords.join(" ")}`);
  part("share").addEventListener("toggle", drawShare); // drawn only while it is open
}

// The nouns of the sentence that have a next word as their verb in the stories: " (cat)".
function markOf(next) {
  const nouns = live.verb_groups.filter(({ verbs }) => verbs.includes(next)).flatMap(({ words }) => words);
  const fitting = new Set(state.sentence.words.filter((word) => nouns.includes(word)));
  return fitting.size ? ` (${[...fitting].join(", ")})` : "";
}

// What a visitor sees first: the question, which line decides the next word, and what to try.
function drawInvitation() {
  drawTitle();
  drawActions();
  if (pendingCut()) return show("invitation", "Now click another word: the two change places.");
  const about = JSON.stringify([state.sentence.text, chosenWord(), state.edits]);
  if (!decided() && state.here !== null && part("invitation").dataset.about === about) return; // of the step before: the lines are cut again
  if (!decided()) return show("invitation", "Which line decides the next word? Each is cut in turn …");
  part("invitation").dataset.about = about;
  const found = isGuessing() ? guessTexts() : decidingTexts();
  show("invitation", ...found.map((part) => (typeof part === "string" ? bdi(part) : part)));
}

// The question that the sentence asks: why this next word, and not that which the proposed change makes of it?
function drawTitle() {
  if (live.before) return; // of a comparison
  const [[next, chance]] = nextWords(passOf(), 1);
  const word = element("em", {}, bdi(label(next)));
  const [[before]] = nextWords(passOf([]), 1);
  const other = decided()?.turn && nextName(decided().turn.next);
  if (isNearUniform(chance)) return show("title", "No next word is likely yet");
  if (!state.edits.length) return show("title", "Why does it write ", word, other ? `, not ${label(other)}?` : "?");
  show("title", ...(next === before ? ["It still writes ", word] : ["Now it writes ", word, `, not ${label(before)}`]));
}

function drawActions() {
  const isFound = decided() && !isGuessing();
  const isShuffled = state.sentence.text === shuffled.text;
  show(
    "live-actions",
    isFound && !state.edits.length && turnButton(),
    !isGuessing() && button("Guess which line decides", askForGuess, "guess-line"),
    button(isShuffled ? "Put the words back" : "Shuffle", shuffleWords, "shuffle"),
    button("Another sentence", anotherSentence, "another"),
  );
}

// The most likely next word, which ends the sentence.
function drawFirst() {
  const [[next, chance, written]] = nextWords(passOf(), 1);
  const first = [element("b", {}, bdi(label(next))), " ", element("small", {}, number(chance))];
  const control = written ? button("", () => writeToken(written), "first") : element("span");
  control.append(...first);
  show("live-first", !isNearUniform(chance) && control);
}

function drawAnswers() {
  const isChanged = state.edits.length > 0;
  const before = live ? nextWords(passOf([]), 5) : state.sentence.next;
  const after = isChanged ? nextWords(passOf(), 5) : before;
  const title = state.saying ? "Make it say which?" : isChanged ? "With your changes" : "Next word";
  const columns = [answerList(title, after, "live-next")];
  const say = () => update({ saying: !state.saying });
  if (live) columns[0].append(button(state.saying ? "leave it" : "make it say …", say, "say", { class: "line-name" }));
  if (isChanged) columns.push(answerList("Without your changes", before, "live-before"));
  if (live?.before && !isChanged) {
    const [name, step] = state.time === END ? ["Before", steps[0]] : ["After", live.step];
    columns.push(answerList(name, nextWords(passOf([], step), 5), "live-other"));
  }
  show("live-answers", ...(before.length ? columns : []));
}

// Write a token behind the text; only words are written without their space.
function writeToken(token) {
  const { value } = field;
  const start = liveTokenizer.kind === "characters" ? value : value.replace(/ +$/, "");
  const space = liveTokenizer.kind === "words" && start && /^[\p{L}\p{N}]/u.test(token) ? " " : "";
  setText(start || !liveTokenizer.space ? start + space + token : token.trimStart()); // which sets a space before a text
}

function isNearUniform(chance) {
  return chance < Math.min(0.02, NEAR_UNIFORM / liveTokenizer.vocabulary.length);
}

function answerList(title, words, id) {
  const name = element("h2", { id: `${id}-title` }, title);
  if (live && isNearUniform(words[0][1])) {
    const all = liveTokenizer.vocabulary.length.toLocaleString("en");
    return element("div", {}, name, remark(`${all} words, none likelier than ${number(Math.ceil(100 * words[0][1]) / 100)}`));
  }
  const items = words.map(([text, chance, written, token], i) => {
    const bar = element("i");
    moveTo(bar, `${id} ${text}`, "width", `${100 * chance}%`);
    const track = element("span", { class: "bar-track", "aria-hidden": "true" }, bar);
    const word = bdi(label(text));
    const isSaid = state.saying && i; // the first is said already
    const does = isSaid ? "Make it say this" : "Write this word";
    const isButton = written && id === "live-next";
    const act = () => (isSaid ? makeItSay(token) : writeToken(written));
    const named = element("span", {}, isButton ? button(word, act, `next-${i}`, { title: does }) : word);

    named.append(element("small", {}, written ? markOf(text) : ""));
    return element("li", {}, named, " ", element("span", {}, number(chance)), track);
  });
  return element("div", {}, name, element("ol", { id, "aria-labelledby": `${id}-title` }, ...items));
}
