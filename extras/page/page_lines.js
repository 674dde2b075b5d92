// The attention lines of all heads at the chosen word: the words along a line, arcs above them. The width of an arc is its
// weight, its colour what the next word loses without it (page_deciding.js). Where the sentence fits on one line, it is drawn
// once and large, and the field lies on it with unseen letters: what is typed is under its arcs.
// A click on a line cuts it, on a second line of the head exchanges both, on a word (or the bar under it) chooses that word.

const MOST_LINES = 24; // arcs of one head
const LEAST_WEIGHT = 0.005; // that has an arc
const LEAST_NAMED = 0.1; // that has its number above the arc, and an arc of another head
const MOST_FAINT = 8; // heads: with more, only the arcs of the chosen one are drawn
const SLANT = -60; // degrees, of labels that have no room side by side
const ROOM = 20; // pixels behind the word that is looked from
const SIZES = [34, 29, 25, 22, 19, 17]; // pixels of the letters of a sentence on one line
const START_ROOM = 64; // pixels before it, for (start)
const NEXT_ROOM = 170; // and behind it, for the next word, where the screen is wide
const NARROW = 600; // pixels of the picture
const WIDER = 0.6; // of the size of the letters, the most that is added to each space
const NO_LINE = /[\n\t\u0590-\u08ff]/; // a text of more lines, with a tab, or from right to left
const MENTIONS = { "the first mention": -2, "the second mention": -1 }; // places of probe/carry.py, among the nouns
let drawnFrom = null; // the place and the text of the present picture
const pen = document.createElement("canvas").getContext("2d");

let arcTo = null; // the arc of the present picture to a word
let painted = []; // of the present picture: lines (with their head and word, and perhaps a name) and cards of heads

// Have a node coloured by what the next word loses without a line, or without the best line of a head.
function paint(node, place, target, name) {
  painted.push({ node, place, target, name });
  return node;
}

// Colour what is drawn: when the lines have been cut, nothing is drawn again under the reader's pointer.
function paintLines() {
  const found = live && !isGuessing() && decided();
  const first = found && found.decides;
  for (const { node, place, target, name } of painted) {
    const lost = found ? lostBy(place, target) : 0;
    const share = lost > 0 ? Math.min(1, lost / found.chance) : 0;
    node.style.setProperty("--strong", `color-mix(in srgb, var(--orange) ${Math.round(100 * share)}%, var(--edge))`);
    const points = Math.round(100 * lost);
    if (target === undefined) {
      node.querySelector(".points").textContent = points > 0 ? `−${points}` : "";
      node.classList.toggle("decides", Boolean(first) && isOfHead(first, place));
    }
    if (!name) continue;
    const whole = lost ? `${name}; cut, “${label(nextName(found.answer))}” loses ${lost.toFixed(4)}` : name;
    node.setAttribute("aria-label", whole);
    node.querySelector("title").textContent = whole;
  }

  // The line that decides: its word, and its arc if it is of another head, which is chosen by its name above
  const isOther = first && !isOfHead(first);
  for (const word of document.querySelectorAll(".word")) word.classList.toggle("decides", word.dataset.name === `word-${first?.target}`);
  const about = isOther && { class: "arc deciding", "stroke-width": 1 + 8 * first.weight, d: arcTo(first.target).path };
  show("deciding", isOther && shape("path", about));
}

function drawLines() {
  painted = [];
  const { words, text } = state.sentence;
  const chosen = chosenWord();
  const region = scrolled("Lines of the chosen head", linesPicture());
  const left = document.querySelector("#live-lines .scroll")?.scrollLeft;
  show("live-lines", region);
  drawHeads();
  paintLines();

  // A long text is scrolled to the word that is looked from, until the reader scrolls; arrow keys move between lines,
  // words and heads.
  const drawn = `${chosen} ${text}`;
  if (region.firstChild.getAttribute("width") > state.width) {
    const word = region.querySelector(".word[aria-pressed=true]").getBBox();
    region.scrollLeft = drawn === drawnFrom ? left : word.x + word.width + ROOM - state.width;
  }
  drawnFrom = drawn;
  const lines = words.map((_, position) => region.querySelector(`[data-name=line-${position}]`));
  arrowKeys(lines.filter(Boolean), 1);
  arrowKeys([...region.querySelectorAll(".word")], 1);
}

// The heads, one row for each layer, and what the chosen one looks at.
function drawHeads() {
  const name = headName(state);
  const kind = HEADS.length > 16 ? "heads-row many" : "heads-row";
  const heads = element("div", { class: kind, role: "group", "aria-label": "Heads" }, ...HEADS.map(headCell));
  heads.style.setProperty("--n", nHead);
  const top = document.querySelector(".heads-row")?.scrollTop;
  const isOut = isRemoved();
  const does = { class: "line-name", "aria-label": `${isOut ? "Put back" : "Remove"} ${name}` };
  const remove = live && button(isOut ? "put back" : "remove", clickHead, "remove", does);
  const weights = attentionRow();
  const most = placeOfLargest(weights);
  const looks = `${name} looks from ${quoted(chosenWord())} most at ${quoted(most)} (${number(weights[most])}). `;
  const about = element("p", { class: "rule" }, bdi(isOut ? `${name} is removed. ` : looks), remove);
  show("live-heads", element("h2", {}, `${HEADS.length} heads${live ? ": points lost without their best line" : ""}`), heads, about);
  if (top) heads.scrollTop = top;
  arrowKeys([...heads.querySelectorAll(".pick")], nHead);
}

// The place of each word of a sentence that is drawn once, in one line with the field on it; null: there is no room for that.
function sentenceLayout() {
  const { text, spans } = state.sentence;
  const written = field.value;
  const isRead = written.trimEnd().length === text.trimEnd().length; // the model reads all of it
  if (!isRead || NO_LINE.test(written) || document.documentElement.classList.contains("embed")) return null;
  const isNarrow = state.width < NARROW;
  const { fontFamily } = getComputedStyle(field);
  const spaces = (end) => written.slice(0, end).split(" ").length - 1;
  let gap = 0;
  const wide = (size, end) => {
    pen.font = `${size}px ${fontFamily}`;
    return START_ROOM + pen.measureText(written.slice(0, end)).width + gap * spaces(end);
  };
  const room = state.width - (isNarrow ? 4 : NEXT_ROOM);
  const size = SIZES.find((each) => wide(each) <= room);
  if (!size) return null;
  gap = Math.min(WIDER * size, (room - wide(size)) / Math.max(1, spaces()));
  const edges = [[8, START_ROOM - 8], ...spans.map((span) => span.map((end) => wide(size, end)))];
  const texts = ["(start)", ...spans.map(([start, end]) => written.slice(start, end))];
  const x = edges.map(([from, to]) => (from + to) / 2);
  const below = 1.3 * size + (isNarrow ? 56 : 24); // where the screen is narrow, the next word stands below
  return { x, below, large: { size, gap, edges, texts, end: wide(size) } };
}

// Where each word stands, in pixels: side by side if there is room, else at equal distances with slanted labels.
function layoutOf(words, size) {
  const sentence = live && sentenceLayout();
  if (sentence) return sentence;
  pen.font = `${size}px system-ui`;
  const widths = words.map((word) => pen.measureText(label(word, 14)).width + 12);
  const all = total(widths);
  if (all > state.width) {
    const step = Math.max(size + 2, (state.width - 40) / words.length);
    const x = words.map((_, i) => 34 + step * (i + 0.5));
    return { width: 40 + step * words.length, x, isSteep: true, below: 5.2 * size };
  }
  const gap = Math.min(28, (state.width - all) / words.length);
  let end = (state.width - all - gap * words.length) / 2;
  const x = widths.map((width) => (end += width + gap) - (width + gap) / 2);
  return { x, below: 2.2 * size };
}

// The arcs of one picture from x[chosen] to each word, up to `height` above `base`: higher the longer; a loop at one word.
function arcsFrom(x, base, height) {
  const from = x[chosenWord()];
  const reach = Math.max(1, from - x[0]);
  return (target) => {
    const to = x[target];
    if (from === to) {
      const loop = `C${from - 18} ${base - 30} ${from + 18} ${base - 30} ${from + 4} ${base}`;
      return { path: `M${from - 4} ${base}${loop}`, top: base - 24 };
    }
    const wide = Math.abs(from - to);
    const high = 16 + (height - 16) * Math.sqrt(wide / reach);
    return { path: `M${from} ${base}A${wide / 2} ${high} 0 0 ${from > to ? 0 : 1} ${to} ${base}`, top: base - high };
  };
}

function linesPicture() {
  const { words } = state.sentence;
  const chosen = chosenWord();
  const size = parseFloat(getComputedStyle(part("live-lines")).fontSize);
  const { width = state.width, x, isSteep, below, large } = layoutOf(words, size);
  const usual = state.width < NARROW ? 96 : 160;
  const height = isLesson() && innerHeight < 800 ? Math.max(40, innerHeight / 6) : usual;
  const base = height + size + 10;
  placeField(base, large);
  const whole = base + below;
  arcTo = arcsFrom(x, base, height);
  const place = { width, height: whole, viewBox: `0 0 ${width} ${whole}` };
  const picture = shape("svg", { class: "lines", role: "group", "aria-label": "Words and lines", ...place });

  // Faint behind the chosen head: the others
  const others = HEADS.filter((other) => !isOfHead(other));
  for (const other of HEADS.length > MOST_FAINT ? [] : others) {
    const weights = attentionRow(other);
    for (const target of strongest(weights, LEAST_NAMED)) {
      const faint = { class: "arc faint", "stroke-width": 1 + 5 * weights[target], d: arcTo(target).path };
      picture.append(paint(shape("path", faint), other, target));
    }
  }
  picture.append(shape("g", { id: "deciding" }));

  // The lines of the chosen head: an arc, and an end at the word that can be clicked where there is no arc
  const weights = attentionRow();
  const drawn = strongest(weights);
  const room = isSteep ? x[1] - x[0] : 24;
  const isPending = pendingCut();
  const labels = [];
  const order = placesOfLargest(weights.slice(0, chosen + 1)).reverse(); // a click hits the thickest
  for (const target of order) {
    const weight = weights[target];
    const change = changeAt(target);
    const { path, top } = arcTo(target);
    const mark = change ? "changed" : isPending ? "asked" : "";
    const line = shape("g", { class: "link", "data-name": `line-${target}` });
    line.append(shape("rect", { class: "hit", x: x[target] - room / 2, y: base - 14, width: room, height: 20 }));
    if (drawn.includes(target) || change) line.append(...arcShapes(path, weight, change, target));
    line.append(shape("circle", { class: `end ${mark}`, cx: x[target], cy: base, r: 2.5 + 3 * weight }));
    const text = number(weight) + (change ? `, ${change.kind === "cut" ? "cut" : "exchanged"}` : "");
    pressLine(line, target, text, change, target === order.at(-1));
    picture.append(line);

    // The numbers of the thickest arc and of the changed ones, one below the other where they would overlap
    const isNamed = weight >= LEAST_NAMED && target === drawn.at(-1);
    const middle = Math.max(size * 2, Math.min(width - size * (change ? 4.5 : 2), (x[chosen] + x[target]) / 2));
    let y = top - 8;
    while (labels.some((other) => Math.abs(other.x - middle) < 6 * size && Math.abs(other.y - y) < size)) y += size;
    if (isNamed || change) labels.push({ x: middle, y, text });
  }
  const texts = labels.map(({ text, ...at }) => shape("text", { class: "weight", "text-anchor": "middle", ...at }, text));
  const named = words.map((_, position) => wordLabel(position, x[position], base, size, isSteep, large));
  picture.append(...texts, ...named);
  return picture;
}

// The field stands on the words of the picture, and the next word behind them; or above the picture.
function placeField(base, large) {
  const stage = part("stage");
  stage.classList.toggle("whole", Boolean(large));
  stage.classList.toggle("narrow", state.width < NARROW);
  if (!large) return;
  const places = { top: base + 8, left: START_ROOM, size: large.size, gap: large.gap, end: large.end };
  for (const [name, value] of Object.entries(places)) stage.style.setProperty(`--${name}`, `${value}px`);
}

// The numbers of a line are its tooltip; a click changes the live model.
function pressLine(line, target, text, change, isFirst) {
  const name = `Line from ${quoted(chosenWord())} to ${quoted(target)}: ${text}`;
  paint(line, state, target, name);
  line.append(shape("title", {}, name));
  const about = { "aria-label": name, "aria-pressed": String(Boolean(change)), tabindex: isFirst ? 0 : -1 };
  if (live) pressable(line, (event) => clickLine(target, event.shiftKey), about);
}

// Positions with an arc, the largest weight last, so that it is on top.
function strongest(weights, least = LEAST_WEIGHT) {
  const largest = placesOfLargest(weights, MOST_LINES);
  return largest.filter((position) => weights[position] >= least).reverse();
}

function arcShapes(path, weight, change, target) {
  const isDashed = change?.kind === "cut" || isRemoved();
  const visible = shape("path", { class: isDashed ? "arc cut" : "arc", d: path, "stroke-opacity": 0.25 + 0.75 * weight });
  moveTo(visible, `${headName(state)} ${target}`, "strokeWidth", `${1 + 8 * weight}px`);
  return [shape("path", { class: "hit", d: path }), visible];
}

function wordLabel(position, x, base, size, isSteep, large) {
  const { words, unknown } = state.sentence;
  const isChosen = position === chosenWord();
  const text = label(large?.texts[position] ?? words[position], large ? 99 : 14);
  const isUnknown = live && unknown.includes(words[position]);
  const y = base + 8 + (large ? 1.02 * large.size : size);
  const slant = { "text-anchor": "end", transform: `rotate(${SLANT} ${x} ${y - size / 2})`, x: x + 2, y: y - size / 4 };
  const place = isSteep ? slant : { "text-anchor": "middle", x, y };
  const node = shape("g", { class: large ? "word large" : "word", "data-name": `word-${position}` });
  const letters = large && position ? { "font-size": large.size } : {};
  node.append(shape("text", { class: isUnknown && "unknown", ...place, ...letters }, text));
  if (large) {
    const [from, to] = large.edges[position];
    const bar = { x: from, width: Math.max(6, to - from), y: base + 12 + 1.3 * large.size };
    node.append(shape("rect", { class: "bar", ...bar, height: 3 }), shape("rect", { class: "hit", ...bar, height: 14 }));
  }
  const read = isUnknown ? `${text}: a word that the model does not know` : text;
  const name = position ? read : START;
  if (name !== text) node.append(shape("title", {}, name));
  const about = { "aria-label": name, "aria-pressed": String(isChosen), tabindex: isChosen ? 0 : -1 };
  return pressable(node, () => clickWord(position), about);
}

// Look from a word; after a cut, the line to it takes the place of the cut one. A noun shows the head that, by the verdict, feeds
// those which carry the answer.
function clickWord(position) {
  if (pendingCut() && position < chosenWord()) return clickLine(position);
  const feed = feedAt(position);
  const [layer, head] = feed?.[0] ?? [state.layer, state.head];
  update({ query: position, row: null, layer, head });
  if (!feed) return;
  const { question, carriers } = content.findings[state.question];
  const fed = carriers.map(headAt).map(headName).join(" and ");
  addNote(`Where the mark comes from: over the tested sentences of “${question}”, ${headName({ layer, head })} at ${feed[1]} feeds ${fed} (${number(feed[2])} of the answer).`);
}

// What feeds at a mention: of the heads of the verdict the one without which this answer loses most; undefined: none.
function feedAt(position) {
  const { words } = state.sentence;
  const nouns = [...words.keys()].slice(0, -1).filter((at) => live && NOUNS.includes(words[at]));
  const feeds = state.here === null ? (content.findings[state.question]?.feeds ?? []) : []; // else it is another model
  const found = feeds.filter(([, place]) => place in MENTIONS && nouns.at(MENTIONS[place]) === position);
  if (!found.length) return undefined;
  const answer = placeOfLargest(logitsOf(passOf()));
  const without = ([[layer, head]]) => softmax(logitsOf(passOf([...state.edits, { kind: "remove", layer, head }])))[answer];
  return found.sort((a, b) => without(a) - without(b))[0];
}

// A head: its name, and what the next word loses without its best line. A click shows its lines.
function headCell(place) {
  const isChosen = isOfHead(place);
  const name = headName(place);
  const kind = isRemoved(place) ? "pick removed" : "pick";
  const about = { class: kind, "aria-pressed": String(isChosen), tabindex: isChosen ? 0 : -1 };
  const cell = button(name, () => update(choiceOf(place)), name, about);
  cell.append(" ", element("span", { class: "points" }));
  return paint(cell, place);
}
