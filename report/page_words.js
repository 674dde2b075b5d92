// Words that the model knows: chips to click, the words that begin as the typed one, sentences with gaps.

const GAP = "__";
const PEOPLE = "Lily Tom Anna Ben She He".split(" ");
const VERBS = ["was frightened by", "was feared by", "frightened", "feared"]; // each takes the place of another
const VERB = new RegExp(`\\b(${VERBS.join("|")})\\b`, "g");
const CHIPS = [...VERBS.toReversed(), ..."cat dog owl buses it It They".split(" "), ...PEOPLE.slice(0, 2)];
const OF_PEOPLE = ["__ was angry at __.", "__ hugged __.", "__ was scared of __."];
const BECAUSE = "The __ frightened the __ because it";
const FRAMES = [BECAUSE, "The __ sat near the __. It", "__ met __. She", `The cow was at home. ${BECAUSE}`]; // a third animal is hard
const MOST_CHIPS = 16;

function titled(word) {
  return word.slice(0, 1).toUpperCase() + word.slice(1).toLowerCase();
}

// A word in the case in which the vocabulary has it; only words are tokens whose case can be wrong.
function knownCase(text) {
  if (liveTokenizer.kind !== "words") return text;
  const forms = (word) => [word, word.toLowerCase(), titled(word)];
  return text.replace(TOKEN_WORD, (word) => forms(word).find((form) => liveTokenizer.ids.has(form)) ?? word);
}

// All words of the vocabulary, the most frequent first; of byte pairs those that follow a space.
const knownWords = live ? listWords() : [];

function listWords() {
  const texts = liveTokenizer.vocabulary.map((_, id) => rawToken(liveTokenizer, id));
  const isBytes = liveTokenizer.kind === "bpe";
  const words = texts.filter((text) => !isBytes || text.startsWith(" ")).map((text) => text.trim());
  return words.filter((word) => /^(\p{L}{2,}|a|I)$/u.test(word));
}

function typedPrefix() {
  const { value, selectionStart } = document.getElementById("live-text");
  return /\p{L}*$/u.exec(value.slice(0, selectionStart))[0];
}

function completions() {
  const begun = typedPrefix().toLowerCase();
  const found = begun ? knownWords.filter((word) => word.toLowerCase().startsWith(begun)) : [];
  return found.some((word) => word.toLowerCase() === begun) ? [] : found.slice(0, MOST_CHIPS);
}

function drawChips() {
  const begun = completions();
  const isOfPeople = !live.verb_groups.length; // English: "cat" and "mat" lead nowhere
  const isWritten = (chip) => liveTokenizer.kind === "bpe" || chip.split(" ").every((word) => knownWords.includes(word));
  const common = (isOfPeople ? PEOPLE : CHIPS).filter(isWritten);
  const words = begun.length ? begun : common.length > 3 ? common : knownWords.slice(0, MOST_CHIPS);
  const put = (word) => () => putWord(word, begun.length > 0);
  const chips = words.map((word) => button(word, put(word), { class: "chip", "data-name": word }));
  const isKnown = (frame) => !readText(liveTokenizer, frame.replaceAll(GAP, knownWords[0] ?? "")).unknown.length;
  const frames = begun.length ? [] : (isOfPeople ? OF_PEOPLE : FRAMES).filter(isKnown);
  const starts = frames.map((frame) => button(frame, () => startFrame(frame), { class: "chip frame", "data-name": frame }));
  const title = element("span", {}, begun.length ? "Do you mean" : "Words it knows");
  const isShuffled = current()?.text === shuffled.text;
  const shuffle = button(isShuffled ? "Put the words back" : "Shuffle words", shuffleWords, { class: "chip", "data-name": "shuffle" });
  show("live-chips", title, ...chips, begun.length ? null : shuffle, starts.length ? element("span", {}, "Fill in") : null, ...starts);
}

// A sentence with gaps; where there is no keyboard on the screen, the first gap is selected to be typed over.
function startFrame(frame) {
  setText(frame);
  const field = document.getElementById("live-text");
  if (matchMedia("(pointer: coarse)").matches) return;
  field.focus();
  field.setSelectionRange(frame.indexOf(GAP), frame.indexOf(GAP) + GAP.length);
}

const WHOLE_WORD = /[\p{L}\p{M}\p{N}_\u200c\u200d]+(?:['’-][\p{L}\p{M}\p{N}]+|[.,]\p{N}+)*/gu; // "doesn't" is one, and "2,000"
const shuffled = { text: null, ordered: null, dropped: [] };

// Put the words before the query in random order: what a table of words knows stays. The next click puts them back.
function shuffleWords() {
  const { query } = state;
  if (current().text === shuffled.text) {
    setText(shuffled.ordered);
    update({ query, edits: [...shuffled.dropped, ...state.edits] });
  } else {
    const { text } = current();
    if (document.getElementById("live-text").value.includes(GAP)) return addNote("Fill the gaps before the words are shuffled.");
    const end = reading(text).spans[queryOf(current()) - 1]?.[0] ?? 0;
    const isBefore = (word, at) => at + word.length <= end;
    const words = [...text.matchAll(WHOLE_WORD)].filter(({ 0: word, index }) => isBefore(word, index)).map(([word]) => word);
    if (new Set(words).size < 2) return addNote("There are no two words to shuffle before the chosen one.");
    let order = words;
    while (order.every((word, i) => word === words[i])) {
      const places = words.map((word) => ({ word, at: Math.random() }));
      order = places.sort((a, b) => a.at - b.at).map(({ word }) => word);
    }
    const moved = text.replace(WHOLE_WORD, (word, at) => (isBefore(word, at) ? order.shift() : word));
    const { edits } = state;
    Object.assign(shuffled, { text: moved, ordered: text });
    setText(moved);
    shuffled.dropped = edits.filter((edit) => !state.edits.includes(edit));
    update({ query });
  }
  past = []; // a step back would be about words in other places
}

// Put a word in the place of the begun word, of the first gap, of a verb of VERBS, or a pronoun in that of one at the
// end; else at the end.
function putWord(word, isBegun) {
  const field = document.getElementById("live-text");
  const { value, selectionStart: caret } = field;
  const gap = value.indexOf(GAP);
  let [from, to] = gap < 0 ? [value.length, value.length] : [gap, gap + GAP.length];
  if (isBegun) [from, to] = [caret - typedPrefix().length, caret];
  const verb = VERBS.includes(word) ? [...value.matchAll(VERB)][0] : null;
  if (!isBegun && verb) [from, to] = [verb.index, verb.index + verb[0].length];
  const last = /\p{L}+\s*$/u.exec(value)?.[0] ?? "";
  const isPronoun = (text) => PRONOUNS.includes(text.trim().toLowerCase());
  if (gap < 0 && !isBegun && isPronoun(last) && isPronoun(word)) from -= last.length;
  const start = value.slice(0, from) + (from && !/\s$/.test(value.slice(0, from)) ? " " : "") + word;
  setText(start + value.slice(to));
  field.setSelectionRange(start.length, start.length);
  drawChips();
}
