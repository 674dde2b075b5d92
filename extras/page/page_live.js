// The sentence field and the next words. page_live_model.js computes.

const PRONOUNS = "it they she he him her his them its their".split(" ");
const LONGEST_TEXT = 5000; // characters
const NEAR_UNIFORM = 10; // times 1/vocabulary, and at most .02: with a smaller largest probability no next word is listed
const LOOKS = 0.3; // the weight from which the first sentence says that a head looks at a word

let typingTimer = null;

// Heads are read where the next word is made: at the last word.
function setLive(text) {
  sentences.set("live-1", { id: "live-1", text, words: reading(text).words });
}

// The text that the model reads, and what the user must know about it.
function fitted(text) {
  const cut = text.slice(0, LONGEST_TEXT).replace(/\p{Surrogate}/gu, "\ufffd");
  const gap = cut.indexOf(GAP);
  const begun = knownCase(gap < 0 ? cut : cut.slice(0, gap).trimEnd());
  const whole = liveTokenizer.kind === "bpe" ? begun.replace(/ +$/, "") : begun; // its tokens begin with their space
  const limit = live.shape.context_length;
  const tokens = tokensOf(liveTokenizer, whole);
  const notes = [
    cut.length < text.length ? `Cut after ${LONGEST_TEXT} characters.` : "",
    gap < 0 ? "" : `Fill the gap ${GAP}: type, or click a word. The model reads the text before it.`,
  ];
  if (tokens.length < limit) return { text: whole, notes };
  const end = tokens[limit - 2].end;
  const after = label(whole.slice(Math.max(0, end - 20), end));
  return { text: whole.slice(0, end), notes: [...notes, `This model reads ${limit - 1} tokens, so the text is cut after “${after}”.`] };
}

// Show what is typed. Changes of lines stay as long as their words do.
function typed(text) {
  const { text: shown, notes } = fitted(text);
  const before = sentences.get("live-1")?.words ?? [];
  setLive(shown);
  const { unknown, words } = reading(shown);
  const isKept = (edit) => POSITIONS[edit.kind].every((name) => words[edit[name]] === before[edit[name]]);
  const edits = state.edits.filter(isKept);
  const dropped = state.edits.length - edits.length;
  past = past.map((changes) => changes.filter(isKept)); // a step back is about the words that are there
  const isTyping = document.activeElement?.id === "live-text";
  const begun = isTyping && completions().length ? typedPrefix() : null; // a known word that is not yet written to its end
  const small = liveTokenizer.kind === "words" && /[.!?]\s*(it|they|she|he)$/.exec(shown)?.[1];
  const lost = unknown.filter((word) => word !== begun);
  const names = lost.slice(0, 8).map((word) => `“${label(word)}”`).join(", ");
  showNotes([
    ...notes,
    small ? `In the stories a sentence begins with a capital letter: “${small}” is another word than “${titled(small)}”.` : "",
    lost.length ? `Not in the model's vocabulary, so read as the unknown word: ${names}.` : "",
    dropped ? `${dropped} of your changes were about words that are gone or have moved, so they were dropped.` : "",
  ]);
  const address = new URL(`${live.english}#${new URLSearchParams({ text })}`, pageAddress());
  const link = element("a", { href: address, id: "live-english" }, `The same sentence in a model of English, ${live.english}`);
  if (lost.length && live.english) document.getElementById("live-notes").append(element("p", { class: "note" }, link));
  update({ sentence: "live-1", query: null, row: null, edits, revision: state.revision + 1 });
  drawChips();
}

function showNotes(notes) {
  show("live-notes");
  notes.filter(Boolean).forEach(addNote);
}

function addNote(line) {
  const notes = document.getElementById("live-notes");
  const isNew = [...notes.children].every((note) => note.textContent !== line);
  if (isNew) notes.append(element("p", { class: "note" }, element("bdi", {}, line.slice(0, 1000))));
}

// Keys that were pressed during a slow pass are read together.
function onTyped({ target: { value } }) {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(typed, 0, value);
}

function setText(text) {
  document.getElementById("live-text").value = text;
  typed(text);
}

// Register the views of the sentence; without a live model, the stored sentences are chosen from a list.
function drawLive() {
  const inputs = "sentence query layer head edits revision time width";
  if (live) setText(live.text);
  redrawOn(inputs, drawLines);
  redrawOn("sentence edits revision time", drawAnswers);
  redrawOn("sentence query revision", drawSentences);
  if (!live) return;
  const field = document.getElementById("live-text");
  field.addEventListener("input", onTyped);
  document.addEventListener("keydown", onUndoKey);
  document.getElementById("word-list").closest("details").hidden = liveTokenizer.kind === "bpe"; // parts of words
  show("word-list", `${knownWords.length.toLocaleString("en")} words: ${knownWords.join(" ")}`);
  document.getElementById("share").addEventListener("toggle", drawShare); // drawn only while it is open
  redrawOn("sentence query edits revision layer head time", drawInvitation);
  redrawOn("sentence query edits revision", drawChanges);
  redrawOn(`${inputs} row`, drawHow);
  redrawOn(`${inputs} card guess temperature`, drawCard);
  redrawOn("edits revision layer head query time", drawShare);
  redrawOn("edits revision layer head query time", drawSource);
}

// The nouns of the sentence that have a next word as their verb in the stories: " (cat)".
function markOf(sentence, token) {
  const nouns = live.verb_groups.filter(({ verbs }) => verbs.includes(token)).flatMap(({ words }) => words);
  const fitting = new Set(sentence.words.filter((word) => nouns.includes(word)));
  return fitting.size ? ` (${[...fitting].join(", ")})` : "";
}

// What a visitor sees first: where the chosen head looks, what comes next, and what to try. Made from what is drawn.
function drawInvitation() {
  const sentence = current();
  const query = queryOf(sentence);
  const weights = attentionRow(sentence, query);
  const most = weights.indexOf(Math.max(...weights));
  const [[next, chance, written]] = nextWords(passOf(sentence.text, state.edits), 1);
  const looks = `Head ${headName(state.layer, state.head)} looks from ${quoted(sentence, query)} to ${quoted(sentence, most)} (${number(weights[most])}).`;
  const hasLine = weights[most] >= LOOKS && most !== query && !isRemoved(state.layer, state.head);
  const isAtEnd = query === sentence.words.length - 1;
  const follows = written && isAtEnd && !isNearUniform(chance) ? `The model's next word: “${label(next)}”${markOf(sentence, next)}.` : "";
  const [start] = reading(sentence.text).spans[query - 1] ?? [0];
  const [verb, ...more] = sentence.text.slice(0, start).match(VERB) ?? [];
  const pair = ["frightened", "feared"];
  const other = pair.every((each) => knownWords.includes(each)) && verb?.replace(/frightened|feared/, (each) => pair[1 - pair.indexOf(each)]);
  const { left, right } = cardFacts() ?? {};
  const exchange = left === most && right !== undefined ? `Click the line, then ${quoted(sentence, right)}: does the next word change?` : "Click the line, and it is cut.";
  const change = verb && other && !more.length ? `Change “${verb}” to “${other}”: does the line move, and the next word?` : exchange;
  const asked = pendingCut(query) ? "Now click another word: the two change places." : "";
  const texts = [hasLine ? looks : "", hasLine ? follows : "", hasLine && !state.edits.length ? change : asked];
  show("invitation", ...texts.filter(Boolean).map((text) => element("bdi", {}, `${text} `)));
  const first = `${label(next)} ${number(chance)}`;
  const control = written ? button(first, () => writeToken(written), { "data-name": "first" }) : element("span", {}, first);
  show("live-first", isNearUniform(chance) ? null : control);
}

function drawAnswers() {
  const sentence = current();
  if (!sentence) return;
  const before = live ? nextWords(passOf(sentence.text, []), 5) : sentence.next;
  if (!before.length) return show("live-answers");
  const after = live ? nextWords(passOf(sentence.text, state.edits), 5) : before;
  const columns = [answerList(state.edits.length ? "With your changes" : "Next word", after, "live-next")];
  if (state.edits.length) columns.push(answerList("Without your changes", before, "live-before"));
  if (live?.before && !state.edits.length) {
    const [name, step] = state.time === END ? ["Before", steps[0]] : ["After", live.step];
    columns.push(answerList(name, nextWords(passOf(sentence.text, [], step), 5), "live-other"));
  }
  show("live-answers", ...columns);
}

// Write a token behind the text; only words are written without their space.
function writeToken(token) {
  const { value } = document.getElementById("live-text");
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
    const all = `${liveTokenizer.vocabulary.length.toLocaleString("en")} words, none likelier than ${number(Math.ceil(100 * words[0][1]) / 100)}`;
    return element("div", {}, name, element("p", { id, class: "rule" }, all));
  }
  const items = words.map(([text, chance, written], i) => {
    const bar = element("i");
    const width = `${100 * chance}%`;
    bar.style.setProperty("width", width);
    if (id === "live-next") moveFrom(bar, text, "width", width);
    const track = element("span", { class: "bar-track", "aria-hidden": "true" }, bar);
    const word = element("bdi", {}, label(text));
    const write = { title: "Write this word", "data-name": `next-${i}` };
    const isButton = written && id === "live-next";
    const fits = live && written ? markOf(current(), text) : "";
    const named = element("span", {}, isButton ? button(word, () => writeToken(written), write) : word, element("small", {}, fits));
    return element("li", {}, named, " ", element("span", {}, number(chance)), track);
  });
  const list = element("ol", { id, "aria-labelledby": `${id}-title` }, ...items);
  return element("div", {}, name, list);
}
