// Words that the model knows: chips to click, the words that begin as the typed one; other sentences, and shuffled ones.

const PRONOUNS = "it they she he him her his them its their".split(" ");
const PEOPLE = "Lily Tom Anna Ben".split(" ");
const VERBS = ["feared", "frightened", "was feared by", "was frightened by"]; // each takes the place of another
const VERB = new RegExp(`\\b(${VERBS.join("|")})\\b`, "g");
const CHIPS = [...VERBS, ..."cat dog owl buses it It They Lily Tom".split(" ")];
const NOUNS = [...PEOPLE, ...(live?.verb_groups ?? []).flatMap(({ words }) => words)];
const PHRASE = new RegExp(`\\b([Tt]he )?(${NOUNS.join("|")})\\b`, "g");
const SENTENCE_START = /(^|[.!?])\s*$/; // of the text before it
const OF_PEOPLE = ["Anna was angry at Ben.", "Tom hugged Lily.", "Ben was scared of Anna."];
const OTHERS = [
  "The dog feared the cat because it",
  "The cat sat near the buses. It",
  "Lily met Tom. She",
  "The cow was at home. The dog frightened the cat because it", // a third animal is hard
];
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
  const isWritten = (chip) => liveTokenizer.kind === "bpe" || chip.split(" ").every((word) => knownWords.includes(word));
  const common = (isOfPeople ? [...PEOPLE, "She", "He"] : CHIPS).filter((chip) => isWritten(chip) && isRight(chip));
  const usual = common.length > 3 ? common : knownWords.slice(0, MOST_CHIPS);
  const words = (isBegun ? begun : usual).map((word) => chip(word, () => putWord(word, isBegun)));
  show("live-chips", element("span", {}, isBegun ? "Do you mean" : "Put in"), ...words);
}

// The first sentence of the page, then others that the model knows, in turn.
function anotherSentence() {
  const others = live.verb_groups.length ? OTHERS : OF_PEOPLE;
  const isKnown = (text) => !readText(liveTokenizer, text).unknown.length;
  const known = [...new Set([live.text, ...others.filter(isKnown)])];
  setText(known[(known.indexOf(field.value) + 1) % known.length]);
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

// The text with a noun in the place of the last other noun, with which it changes places if it is there; null: the text has no
// noun.
function withNoun(text, word) {
  const found = [...text.matchAll(PHRASE)];
  const target = found.findLast(({ 2: noun }) => noun !== word);
  if (!target) return found.length ? text : null;
  return text.replace(PHRASE, (_, article, noun, at) => {
    const put = at === target.index ? word : noun === word ? target[2] : noun;
    if (/^\p{Lu}/u.test(put)) return put; // a name
    const the = SENTENCE_START.test(text.slice(0, at)) ? "The " : "the ";
    return (article ?? (/^\p{Ll}/u.test(noun) ? "" : the)) + put;
  });
}

// Put a word in the place of the begun word, or of one of its kind: a noun, a verb of VERBS, a pronoun at the end. Others go
// to the end.
function putWord(word, isBegun) {
  const { value, selectionStart: caret } = field;
  const exchanged = !isBegun && NOUNS.includes(word) ? withNoun(value, word) : null;
  if (exchanged !== null) return setText(exchanged);
  let [from, to] = [value.length, value.length];
  const [verb] = VERBS.includes(word) ? value.matchAll(VERB) : [];
  if (isBegun) [from, to] = [caret - typedPrefix().length, caret];
  else if (isPronoun(word)) from = beforePronoun(value);
  else if (verb) [from, to] = [verb.index, verb.index + verb[0].length];
  const space = /\S$/.test(value.slice(0, from)) ? " " : "";
  field.setRangeText(space + word, from, to, "end");
  typed(field.value);
}
