// Words that the model knows: chips to click, the words that begin as the typed one, sentences with gaps.

const GAP = "__";
const PRONOUNS = "it they she he him her his them its their".split(" ");
const PEOPLE = "Lily Tom Anna Ben".split(" ");
const OTHER_VERB = {
  feared: "frightened",
  frightened: "feared",
  "was feared by": "was frightened by",
  "was frightened by": "was feared by",
};
const VERBS = Object.keys(OTHER_VERB); // each takes the place of another
const VERB = new RegExp(`\\b(${VERBS.join("|")})\\b`, "g");
const CHIPS = [...VERBS, ..."cat dog owl buses it It They Lily Tom".split(" ")];
const NOUNS = [...PEOPLE, ...(live?.verb_groups ?? []).flatMap(({ words }) => words)];
const PHRASE = new RegExp(`\\b([Tt]he )?(${[GAP, ...NOUNS].join("|")})\\b`, "g");
const SENTENCE_START = /(^|[.!?])\s*$/; // of the text before it
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

function knows(text) {
  return text.split(" ").every((word) => knownWords.includes(word));
}

function typedPrefix() {
  return /\p{L}*$/u.exec(field.value.slice(0, field.selectionStart))[0];
}

function completions() {
  const begun = typedPrefix().toLowerCase();
  const found = begun ? knownWords.filter((word) => word.toLowerCase().startsWith(begun)) : [];
  return found.some((word) => word.toLowerCase() === begun) ? [] : found.slice(0, MOST_CHIPS);
}

function drawChips() {
  const begun = completions();
  const isBegun = begun.length > 0;
  const isOfPeople = !live.verb_groups.length; // English: "cat" and "mat" lead nowhere
  const isStart = SENTENCE_START.test(field.value.slice(0, beforePronoun(field.value)));
  const isRight = (chip) => !isPronoun(chip) || (chip === titled(chip)) === isStart; // "It" or "it"
  const isWritten = (chip) => liveTokenizer.kind === "bpe" || knows(chip);
  const common = (isOfPeople ? [...PEOPLE, "She", "He"] : CHIPS).filter((chip) => isWritten(chip) && isRight(chip));
  const usual = common.length > 3 ? common : knownWords.slice(0, MOST_CHIPS);
  const words = (isBegun ? begun : usual).map((word) => chip(word, () => putWord(word, isBegun)));
  if (isBegun) return show("live-chips", element("span", {}, "Do you mean"), ...words);
  const isKnown = (frame) => !readText(liveTokenizer, frame.replaceAll(GAP, knownWords[0] ?? "")).unknown.length;
  const known = (isOfPeople ? OF_PEOPLE : FRAMES).filter(isKnown);
  const frames = known.map((frame) => chip(frame, () => startFrame(frame), frame, { class: "chip frame" }));
  const isShuffled = state.sentence.text === shuffled.text;
  const shuffle = chip(isShuffled ? "Put the words back" : "Shuffle words", shuffleWords, "shuffle");
  const title = element("span", {}, "A noun replaces a noun");
  show("live-chips", title, ...words, shuffle, frames.length > 0 && element("span", {}, "Fill in"), ...frames);
}

// A sentence with gaps; where there is no keyboard on the screen, the first gap is selected to be typed over.
function startFrame(frame) {
  setText(frame);
  if (matchMedia("(pointer: coarse)").matches) return;
  field.focus();
  field.setSelectionRange(frame.indexOf(GAP), frame.indexOf(GAP) + GAP.length);
}

const WHOLE_WORD = /[\p{L}\p{M}\p{N}_\u200c\u200d]+(?:['’-][\p{L}\p{M}\p{N}]+|[.,]\p{N}+)*/gu; // "doesn't" is one, and "2,000"
const shuffled = { text: null, ordered: null, dropped: [] };

// Put the words before the chosen one in random order: what a table of words knows stays. The next click puts them back.
function shuffleWords() {
  const { query, edits, sentence } = state;
  if (sentence.text === shuffled.text) {
    setText(shuffled.ordered);
    update({ query, edits: [...shuffled.dropped, ...edits] });
  } else {
    const moved = shuffledText();
    if (!moved) return;
    Object.assign(shuffled, { text: moved, ordered: sentence.text });
    setText(moved);
    shuffled.dropped = edits.filter((edit) => !state.edits.includes(edit));
    update({ query });
  }
  past = []; // a step back would be about words in other places
}

// The text with its words in another order; none, but a note, if there is no other order.
function shuffledText() {
  const { text, spans } = state.sentence;
  if (field.value.includes(GAP)) return addNote("Fill the gaps before the words are shuffled.");
  const end = spans[chosenWord() - 1]?.[0] ?? 0;
  const isBefore = (word, at) => at + word.length <= end; // a token may begin inside a whole word: that word stays
  const words = [...text.matchAll(WHOLE_WORD)].filter(({ 0: word, index }) => isBefore(word, index)).map(([word]) => word);
  if (new Set(words).size < 2) return addNote("There are no two words to shuffle before the chosen one.");
  let order = words;
  while (order.every((word, i) => word === words[i])) {
    const places = words.map((word) => ({ word, at: Math.random() }));
    order = places.sort((a, b) => a.at - b.at).map(({ word }) => word);
  }
  return text.replace(WHOLE_WORD, (word, at) => (isBefore(word, at) ? order.shift() : word));
}

function isPronoun(word) {
  return PRONOUNS.includes(word.trim().toLowerCase());
}

// Where a pronoun at the end of a text begins; without one, the end.
function beforePronoun(text) {
  const last = /\p{L}+\s*$/u.exec(text)?.[0] ?? "";
  return text.length - (isPronoun(last) ? last.length : 0);
}

// The text with a noun in the first gap, else in the place of the last other noun, with which it changes places if it is
// there; null: the text has no noun.
function withNoun(text, word) {
  const found = [...text.matchAll(PHRASE)];
  const target = found.find(({ 2: noun }) => noun === GAP) ?? found.findLast(({ 2: noun }) => noun !== word);
  if (!target) return found.length ? text : null;
  return text.replace(PHRASE, (_, article, noun, at) => {
    const put = at === target.index ? word : noun === word ? target[2] : noun;
    if (/^\p{Lu}/u.test(put)) return put; // a name
    const the = SENTENCE_START.test(text.slice(0, at)) ? "The " : "the ";
    const isBare = put === GAP || /^\p{Ll}/u.test(noun);
    return (article ?? (isBare ? "" : the)) + put;
  });
}

// Put a word in the place of the begun word, or of one of its kind: a noun, a verb of VERBS, a pronoun at the end. Others go
// into the first gap, or to the end.
function putWord(word, isBegun) {
  const { value, selectionStart: caret } = field;
  const exchanged = !isBegun && NOUNS.includes(word) ? withNoun(value, word) : null;
  if (exchanged !== null) return setText(exchanged);
  let [from, to] = [value.length, value.length];
  const [place] = value.matchAll(VERBS.includes(word) ? VERB : new RegExp(GAP, "g"));
  if (isBegun) [from, to] = [caret - typedPrefix().length, caret];
  else if (isPronoun(word)) from = beforePronoun(value);
  else if (place) [from, to] = [place.index, place.index + place[0].length];
  const before = value.slice(0, from);
  const start = before + (/\S$/.test(before) ? " " : "") + word;
  field.value = start + value.slice(to);
  field.setSelectionRange(start.length, start.length);
  typed(field.value);
}
