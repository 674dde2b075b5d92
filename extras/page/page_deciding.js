// Which line decides the next word? probe/deciding.py in the page: every line that ends at the chosen word is cut in turn, and
// a change that turns the next word is looked for. A few passes at a time, so that typing does not wait.

const LEAST_CUT = 0.05; // weight of a line that is cut
const DECIDES = 0.1; // what a line takes from the probability of the next word if it decides
const CLEAR = 2; // times as much as the next line, or else it "takes most"
const MOST_PAIRED = 12; // lines of largest effect of which two are cut together
const MOST_MOVED = 6; // lines of largest effect whose weight is moved to each other word
const SLICE = 30; // milliseconds of work between two looks at the keyboard; a pause takes four more
const N_GUESSES = 4; // words to guess from
const guesses = { key: null, asked: 0, right: 0 }; // `key`: of the state whose colours are hidden until a guess
let search = {}; // the state it is about, and the result of `decidingLines` when it is there

function decided() {
  return search.key === searchKey() && search.lines ? search : null;
}

function searchKey() {
  return JSON.stringify([state.sentence.text, chosenWord(), state.edits, liveStep(), state.here]);
}

// The probabilities of the next token with more edits at the chosen word: only what follows from them is computed.
function chancesWith(edits) {
  const base = passOf();
  const made = edits.map(tokenEdit);
  const layer = Math.min(...made.map((edit) => edit.layer));
  return softmax(logitsOf(runModel(base.model, base.tokens, [...base.edits, ...made], base, layer, made[0].row)));
}

function allLines() {
  const query = chosenWord();
  const lines = [];
  for (const place of HEADS) {
    wordRow(passOf(), query, place).forEach((weight, target) => {
      const edit = { kind: "cut", ...place, query, target };
      if (weight >= LEAST_CUT && tokenEdit(edit)) lines.push({ ...place, target, weight, edit });
    });
  }
  return lines;
}

// The exchanges of a line's weight with each other known word before the chosen one.
function exchangesOf({ edit, target }) {
  const { words } = state.sentence;
  const before = [...words.keys()].slice(1, edit.query);
  const others = before.filter((other) => other !== target && /[\p{L}\p{N}]/u.test(words[other]));
  return others.map((other) => ({ ...edit, kind: "exchange", other })).filter(tokenEdit);
}

// Whether a token is a whole word, not a part of one or a sign; in a model of characters none is.
function isWholeWord(token) {
  return knownWords.includes(rawToken(liveTokenizer, token).trim());
}

// Yields after each pass, first nothing; then what a state of the page gets, without and with `turn`.
function* decidingLines() {
  const before = softmax(logitsOf(passOf()));
  const answer = placeOfLargest(before);
  const chance = before[answer];
  const lines = allLines();
  for (const line of lines) {
    line.lost = chance - chancesWith([line.edit])[answer];
    yield;
  }
  lines.sort((a, b) => b.lost - a.lost);
  const decides = lines[0]?.lost >= DECIDES && lines[0];

  // Two lines, where none alone decides
  let pair = null;
  const most = decides ? [] : lines.slice(0, MOST_PAIRED);
  if (most.length > 1) yield { answer, chance, lines, decides }; // their pair is not yet known
  for (const [i, left] of most.entries()) {
    for (const right of most.slice(i + 1)) {
      const lost = chance - chancesWith([left.edit, right.edit])[answer];
      if (!(pair?.lost >= lost)) pair = { left, right, lost };
      yield;
    }
  }

  yield { answer, chance, lines, decides, pair };

  // What turns the next word: the line moved to another word, else cut
  let turn = null;
  for (const line of lines.slice(0, MOST_MOVED)) {
    for (const edit of [...exchangesOf(line), line.edit]) {
      const chances = chancesWith([edit]);
      const next = placeOfLargest(chances);
      const worth = chances[next] - chances[answer] + (isWholeWord(next) ? 1 : 0);
      const isBetter = edit.kind === turn?.edit.kind ? worth > turn.worth : !turn;
      if (next !== answer && isBetter) turn = { edit, next, worth };
      yield;
    }
    if (turn) break; // of the line with the largest effect that can
  }
  return { answer, chance, lines, decides, pair, turn };
}

// Work until it ends or the state has changed; `found` gets what it yields or returns.
function inSlices(work, isWanted, found) {
  const go = () => {
    if (!isWanted()) return;
    const end = performance.now() + SLICE;
    do {
      const { done, value } = work.next();
      if (value) found(value);
      if (done) return;
    } while (performance.now() < end);
    setTimeout(go);
  };
  setTimeout(go);
}

function searchLines() {
  const key = searchKey();
  if (search.key === key || state.playing) return;
  search = { key };
  const found = (result) => {
    search = { key, ...result };
    paintLines();
    drawInvitation();
  };
  inSlices(decidingLines(), () => search.key === key, found);
}

const percent = (chance) => `${Math.round(100 * chance)}\u00a0%`;
const points = (lost) => `${Math.round(100 * lost)} points`.replace(/^1 points$/, "1 point");

// A word that stands twice has its number: “saw” (2).
function lineName(line) {
  const { target } = line;
  const { words } = state.sentence;
  const same = [...words.keys()].filter((at) => words[at] === words[target]);
  return `${headName(line)} to ${quoted(target)}${same.length > 1 ? ` (${1 + same.indexOf(target)})` : ""}`;
}

// What was found, as texts and buttons; a click on a line's name shows its head.
function decidingTexts() {
  const { answer, chance, lines, decides, pair } = decided();
  const next = `“${label(nextName(answer))}”`;
  const nameOf = (line) => `line-${headName(line)}-${line.target}`; // each keeps its own focus
  const pick = (line) => button(lineName(line), () => update(choiceOf(line)), nameOf(line), { class: "line-name" });
  if (!lines.length) return [`The next word is ${next}.`];
  const [first, ...others] = lines;
  if (decides) {
    const losses = [0, ...others.map(({ lost }) => lost)];
    const [most, gain] = [Math.max(...losses), -Math.min(...losses)];
    const cut = `${first.lost >= CLEAR * most ? "decides" : "takes most of"} ${next}. Cut: ${percent(chance)} → ${percent(chance - first.lost)}. `;
    const rest = `The other ${others.length} take at most ${points(most)}${gain >= 0.005 ? `, or add at most ${points(gain)}` : ""}.`;
    return ["The line ", pick(first), ` ${cut}`, others.length > 0 && rest];
  }
  const each = `No single line decides ${next} (${percent(chance)}): none of ${lines.length} takes ${points(DECIDES)}. `;
  if (pair === undefined) return [each, "Two together …"];
  if (!(pair?.lost > 0)) return [each];
  return [each, "Two together, ", pick(pair.left), " and ", pick(pair.right), `, take ${points(pair.lost)}.`];
}

// Ask to which word the deciding line of another sentence goes, before colours and numbers show it.
function askForGuess() {
  anotherSentence();
  guesses.key = searchKey();
  paintLines();
  drawInvitation();
}

// There is nothing to guess where no line decides.
function isGuessing() {
  return guesses.key === searchKey() && (!decided() || Boolean(decided().decides));
}

function guessTexts() {
  const { answer, lines } = decided();
  const thickest = [...lines].sort((a, b) => b.weight - a.weight).map(({ target }) => target);
  const targets = [...new Set([lines[0].target, ...thickest])].slice(0, N_GUESSES).sort(ascending);
  const guess = (target) => {
    guesses.key = null;
    guesses.asked += 1;
    guesses.right += target === lines[0].target;
    paintLines();
    drawInvitation();
    show("live-notes");
    addNote(`Your guess was ${target === lines[0].target ? "right" : "wrong"}: ${guesses.right} of ${guesses.asked}.`);
  };
  const chips = targets.map((target) => chip(quoted(target), () => guess(target), `line-guess-${target}`));
  return [`One of ${lines.length} lines decides “${label(nextName(answer))}”. To which word does it go? `, ...chips];
}

// The change worth trying: it was found by computing it, but what it does is not said.
function turnButton() {
  const { turn } = decided();
  if (!turn) return null;
  const { edit } = turn;
  const does = edit.kind === "cut" ? `Cut the line to ${quoted(edit.target)}` : `Move the line to ${quoted(edit.other)}`;
  return button(`${does}: what then?`, () => makeChange(edit), "turn", { id: "turn" });
}

// A change of any head, which becomes the chosen one; by keyboard the next key takes it back.
function makeChange(edit) {
  past.push(state.edits);
  update({ ...choiceOf(edit), edits: [...state.edits, edit] });
  part("live-changes").querySelector("button").focus();
}

// What the probability of the next word loses without a line, or without the best line of a head; 0 for a thin one.
function lostBy(place, target) {
  const isWanted = (line) => isOfHead(line, place) && (target === undefined || line.target === target);
  return decided().lines.find(isWanted)?.lost ?? 0;
}

let sought = ""; // for which state a change is looked for

function isSearching() {
  return sought === searchKey();
}

// Make it say a word: the one exchange or cut that makes it the likeliest next word, or a note that none does.
function makeItSay(id) {
  update({ saying: false });
  const key = searchKey();
  sought = key;
  const name = `“${label(nextName(id))}”`;
  show("live-notes");
  addNote(`Looking for a change that makes it say ${name} …`);
  const isWanted = () => searchKey() === key;
  inSlices(sayings(id), isWanted, ({ best, n }) => {
    sought = "";
    show("live-notes");
    if (best) makeChange(best.edit);
    const said = best ? `${editName(best.edit)}: it says ${name} (${percent(best.chance)}), the likeliest of ${n} changes that were tried.` : `None of ${n} changes of one line makes it say ${name}.`;
    addNote(said);
  });
}

function* sayings(id) {
  let best = null;
  let n = 0;
  for (const line of allLines()) {
    for (const edit of [line.edit, ...exchangesOf(line)]) {
      const chances = chancesWith([edit]);
      n += 1;
      if (placeOfLargest(chances) === id && !(best?.chance >= chances[id])) best = { edit, chance: chances[id] };
      yield;
    }
  }
  return { best, n };
}
