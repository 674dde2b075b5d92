// The three tokenizers that train.py makes: words, characters and byte-level BPE, as the library "tokenizers" runs them.
// A token has its id and the characters [start, end) of the text that it stands for, in UTF-16 units.

// A word of the word tokenizer, and a word of the page (data/words.py): they differ in marks and in rare spaces.
const TOKEN_WORD = /[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d]+|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\u200c\u200d\p{White_Space}]+/gu;
const PAGE_WORD = /[\p{L}\p{N}_]+|[^\p{L}\p{N}_\p{White_Space}\x1c-\x1f]+/gu;
const CHARACTER = /[^]/gu;
// GPT-2's pieces (Radford et al. 2019): a word with the space before it, digits, marks, or white space.
const PIECE =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;

function openTokenizer({ kind, vocabulary, merges, start, unknown }) {
  const ids = new Map(vocabulary.map((text, id) => [text, id]));
  const ranks = new Map(merges.map((pair, rank) => [pair, rank]));
  return { kind, vocabulary, ids, ranks, start, unknown };
}

// [{id, start, end}] without the start token.
function tokensOf(tokenizer, text) {
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

function bytePairs({ ids, ranks }, piece, offset) {
  // One part per byte, with the whole character that the byte belongs to.
  const encoder = new TextEncoder();
  const parts = [];
  let start = offset;
  for (const character of piece) {
    const end = start + character.length;
    for (const byte of encoder.encode(character)) parts.push({ text: BYTE_CHARACTERS[byte], start, end });
    start = end;
  }

  // Merge the pair that was learned first, until no pair is known.
  for (;;) {
    let best = -1;
    let bestRank = Infinity;
    for (let i = 0; i + 1 < parts.length; i++) {
      const rank = ranks.get(`${parts[i].text} ${parts[i + 1].text}`) ?? Infinity;
      if (rank < bestRank) [best, bestRank] = [i, rank];
    }
    if (best < 0) break;
    const [left, right] = parts.splice(best, 2);
    parts.splice(best, 0, { text: left.text + right.text, start: left.start, end: right.end });
  }
  return parts.map(({ text, start: from, end }) => ({ id: ids.get(text), start: from, end }));
}

function rawToken({ kind, vocabulary }, id) {
  const bytes = () => Uint8Array.from(vocabulary[id], (character) => BYTE_OF.get(character) ?? 63);
  return kind === "bpe" ? new TextDecoder().decode(bytes()) : vocabulary[id];
}

// The text of a token, without spaces around it; white space alone is quoted.
function textOfToken(tokenizer, id) {
  const text = rawToken(tokenizer, id);
  return text.trim() || JSON.stringify(text);
}

// The words of the page, with the token of each: {words, tokens, spans, members: tokens of each word, unknown: words}.
function readText(tokenizer, text) {
  const found = tokensOf(tokenizer, text);
  const spans = [...text.matchAll(PAGE_WORD)].map((match) => [match.index, match.index + match[0].length]);
  const members = [[0], ...spans.map(() => [])];
  const unknown = new Set();
  // Python counts whole characters: how many of them start before each UTF-16 unit.
  const characters = [0];
  for (const character of text) for (let i = 0; i < character.length; i++) characters.push(characters.at(-1) + (i ? 0 : 1));
  found.forEach(({ id, start, end }, i) => {
    // A token belongs to the word that shares the most characters with it, the first of equal ones.
    const shared = spans.map(([from, to]) => characters[Math.min(to, end)] - characters[Math.max(from, start)]);
    const most = Math.max(0, ...shared);
    if (most > 0) members[1 + shared.indexOf(most)].push(i + 1);
    if (id === tokenizer.unknown) unknown.add(text.slice(start, end));
  });
  const words = ["(start)", ...spans.map(([start, end]) => text.slice(start, end))];
  return { text, words, spans, members, tokens: [tokenizer.start, ...found.map(({ id }) => id)], unknown: [...unknown] };
}

// The weights [words] of one word on every word, as word_attention of probe/sentences.py.
function wordRow({ reading: { members, tokens }, run }, row, layer, head) {
  const last = members[row].at(-1);
  if (last === undefined) return new Float64Array(members.length);
  const weights = run.weights[layer][head].subarray(last * tokens.length, (last + 1) * tokens.length);
  return Float64Array.from(members, (of) => of.reduce((sum, token) => sum + weights[token], 0));
}
