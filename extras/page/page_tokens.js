// The tokenizers that train.py makes (words, characters, byte-level BPE) and BPE with bytes for unknown characters, as the
// library "tokenizers" runs them.
// A token has its id and the characters [start, end) of the text that it stands for, in UTF-16 units.

// A word of the word tokenizer, and a word of the page (data/words.py): they differ in marks and in rare spaces.
const TOKEN_WORD = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d\p{White_Space}]+/gu;
const PAGE_WORD = /[\p{L}\p{N}_]+|[^\p{L}\p{N}_\p{White_Space}\x1c-\x1f]+/gu;
const CHARACTER = /[^]/gu;
// GPT-2's pieces (Radford et al. 2019): a word with the space before it, digits, marks, or white space.
const PIECE =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

function openTokenizer(described) {
  const { vocabulary, merges, space } = described;
  const ids = new Map(vocabulary.map((text, id) => [text, id]));
  const idsOf = (pair) => pair.split(" ").map((text) => ids.get(text)).join(" ");
  const ranks = new Map(merges.map((pair, rank) => [space ? pair : idsOf(pair), rank])); // of "id id"
  return { ...described, ids, ranks };
}

// [{id, start, end}] without the start token.
function tokensOf(tokenizer, text) {
  if (tokenizer.space && text) return bytePairs(tokenizer, text.replaceAll(" ", tokenizer.space), 0);
  if (tokenizer.kind === "bpe") return [...text.matchAll(PIECE)].flatMap((piece) => bytePairs(tokenizer, piece[0], piece.index));
  const pieces = text.matchAll(tokenizer.kind === "words" ? TOKEN_WORD : CHARACTER);
  return [...pieces].map((piece) => ({
    id: tokenizer.ids.get(piece[0]) ?? tokenizer.unknown,
    start: piece.index,
    end: piece.index + piece[0].length,
  }));
}

// Byte-level BPE writes each byte as a printable character: most stand for themselves, the others follow from 256 on.
const BYTE_CHARACTERS = [];
for (let byte = 0, next = 256; byte < 256; byte++) {
  const isPrintable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  BYTE_CHARACTERS.push(String.fromCharCode(isPrintable ? byte : next++));
}
const BYTE_OF = new Map(BYTE_CHARACTERS.map((character, byte) => [character, byte]));

function bytePairs({ vocabulary, ids, ranks, space }, piece, offset) {
  // One part per byte, with the whole character that the byte belongs to; with `space`, known characters are parts.
  const encoder = new TextEncoder();
  const nameOf = (byte) => (space ? `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>` : BYTE_CHARACTERS[byte]);
  const parts = [];
  let start = offset;
  for (const character of piece) {
    const end = start + character.length;
    if (space && start === 0) parts.push({ id: ids.get(space), start, end });
    const names = space && ids.has(character) ? [character] : Array.from(encoder.encode(character), nameOf);
    for (const name of names) parts.push({ id: ids.get(name), start, end });
    start = end;
  }

  // Merge the pair that was learned first, until no pair is known. A part has the rank of its pair with the next one.
  const rank = (i) => (parts[i].rank = ranks.get(`${parts[i].id} ${parts[i + 1]?.id}`) ?? Infinity);
  for (const i of parts.keys()) rank(i);
  for (;;) {
    const best = parts.reduce((lowest, part, i) => (part.rank < parts[lowest].rank ? i : lowest), 0);
    if (parts[best].rank === Infinity) return parts;
    const [left, right] = parts.splice(best, 2);
    parts.splice(best, 0, { id: ids.get(vocabulary[left.id] + vocabulary[right.id]), start: left.start, end: right.end });
    rank(best);
    if (best) rank(best - 1);
  }
}

function rawToken({ kind, vocabulary, space }, id) {
  const name = vocabulary[id];
  const byte = space && /^<0x(..)>$/.exec(name);
  if (byte) return new TextDecoder().decode(Uint8Array.of(parseInt(byte[1], 16)));
  if (space) return name.replaceAll(space, " ");
  const bytes = () => Uint8Array.from(name, (character) => BYTE_OF.get(character) ?? 63);
  return kind === "bpe" ? new TextDecoder().decode(bytes()) : name;
}

// The words of the page, with the token of each: {words, tokens, spans, members: tokens of each word, unknown: words}.
function readText(tokenizer, text) {
  const found = tokensOf(tokenizer, text);
  const spans = [...text.matchAll(PAGE_WORD)].map((match) => [match.index, match.index + match[0].length]);
  const members = [[0], ...spans.map(() => [])];
  const unknown = new Set();
  found.forEach(({ id, start, end }, i) => {
    // A token belongs to the word that shares the most characters (as Python counts them) with it, the first of equal ones.
    const shared = spans.map(([from, to]) => [...text.slice(Math.max(from, start), Math.min(to, end))].length);
    const most = Math.max(0, ...shared);
    if (most > 0) members[1 + shared.indexOf(most)].push(i + 1);
    if (id === tokenizer.unknown) unknown.add(text.slice(start, end));
  });
  const words = ["(start)", ...spans.map(([start, end]) => text.slice(start, end))];
  return { text, words, spans, members, tokens: [tokenizer.start, ...found.map(({ id }) => id)], unknown: [...unknown] };
}
