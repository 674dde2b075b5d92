// The attention lines of all heads at the chosen word: the words along a line, arcs above them, a colour for each head.
// A click on a line cuts it, on a second line of the head exchanges both, on a word chooses that word.

const MOST_LINES = 24; // arcs of one head
const LEAST_WEIGHT = 0.005; // that has an arc
const SLANT = -60; // degrees, of labels that have no room side by side
const ROOM = 20; // pixels behind the word that is looked from
let drawnFrom = null; // the place and the text of the present picture
const pen = document.createElement("canvas").getContext("2d");

function hueOf(layer, head) {
  return `hue-${(layer * nHead + head) % 8}`;
}

function drawLines() {
  const sentence = current();
  if (!sentence) return;
  const name = headName(state.layer, state.head);
  const removed = isRemoved(state.layer, state.head) ? ` (${name} is removed)` : "";
  const title = element("h2", {}, "What each head looks at from ", element("bdi", {}, quoted(sentence, queryOf(sentence))), removed);
  const picture = linesPicture(sentence);
  const region = scrolled("Lines of the chosen head", picture);
  const cards = HEADS.map(({ layer, head }) => headCard(sentence, layer, head));
  const kind = cards.length > 16 ? "heads-row many" : "heads-row";
  const heads = element("div", { class: kind, role: "group", "aria-label": "Heads" }, ...cards);
  heads.style.setProperty("--n", nHead); // a row for each layer
  const left = document.querySelector("#live-lines .scroll")?.scrollLeft;
  const drawn = `${queryOf(sentence)} ${sentence.text}`;
  const top = document.querySelector("#live-lines .heads-row")?.scrollTop ?? 0;
  show("live-lines", title, region, heads);

  // A long text is scrolled to the word that is looked from, until the reader scrolls; arrow keys move between lines,
  // words and heads.
  const word = region.querySelector(".word[aria-pressed=true]").getBBox();
  region.scrollLeft = drawn === drawnFrom ? left : word.x + word.width + ROOM - state.width;
  drawnFrom = drawn;
  if (top) heads.scrollTop = top;
  arrowKeys(sentence.words.map((_, word) => region.querySelector(`[data-name=line-${word}]`)).filter(Boolean), 1);
  arrowKeys([...region.querySelectorAll(".word")], 1);
  arrowKeys([...heads.querySelectorAll(".pick")], nHead);
}

// Where each word stands, in pixels: side by side if there is room, else at equal distances with slanted labels.
function layoutOf(words, size) {
  pen.font = `${size}px system-ui`;
  const widths = words.map((word) => pen.measureText(label(word, 14)).width + 12);
  const total = widths.reduce((a, b) => a + b);
  if (total > state.width) {
    const step = Math.max(size + 2, (state.width - 40) / words.length);
    const x = words.map((_, i) => 34 + step * (i + 0.5));
    return { width: 40 + step * words.length, x, isSteep: true, below: 5.2 * size };
  }
  const gap = Math.min(28, (state.width - total) / words.length);
  let end = (state.width - total - gap * words.length) / 2;
  const x = widths.map((width) => (end += width + gap) - (width + gap) / 2);
  return { width: state.width, x, isSteep: false, below: 2.2 * size };
}

// Half an ellipse from word to word, higher the longer it is; a loop at one word.
function arcOf(from, to, base, height, reach) {
  if (from === to) {
    const loop = `C${from - 18} ${base - 30} ${from + 18} ${base - 30} ${from + 4} ${base}`;
    return { path: `M${from - 4} ${base}${loop}`, top: base - 24 };
  }
  const wide = Math.abs(from - to);
  const high = 16 + (height - 16) * Math.sqrt(wide / reach);
  return { path: `M${from} ${base}A${wide / 2} ${high} 0 0 ${from > to ? 0 : 1} ${to} ${base}`, top: base - high };
}

function linesPicture(sentence) {
  const { words } = sentence;
  const query = queryOf(sentence);
  const size = parseFloat(getComputedStyle(document.getElementById("live-lines")).fontSize);
  const { width, x, isSteep, below } = layoutOf(words, size);
  const height = isLesson() && innerHeight < 800 ? Math.max(40, innerHeight / 6) : state.width < 600 ? 110 : 170;
  const base = height + size + 10;
  const reach = Math.max(1, x[query] - x[0]);
  const arc = (target) => arcOf(x[query], x[target], base, height, reach);
  const about = { role: "group", "aria-label": "Words and lines" };
  const area = { width, height: base + below, viewBox: `0 0 ${width} ${base + below}` };
  const picture = shape("svg", { class: "lines", ...area, ...about });

  // Faint behind the chosen head: the others
  const others = HEADS.length > 8 ? [] : HEADS.filter((other) => !isOfHead(other));
  for (const { layer, head } of others) {
    const weights = attentionRow(sentence, query, layer, head);
    for (const target of strongest(weights).filter((position) => weights[position] >= 0.1)) {
      const faint = { class: `arc faint ${hueOf(layer, head)}`, "stroke-width": (1 + 5 * weights[target]).toFixed(2) };
      picture.append(shape("path", { d: arc(target).path, ...faint }));
    }
  }

  // The lines of the chosen head: an arc, and an end at the word that can be clicked where there is no arc
  const weights = attentionRow(sentence, query);
  const drawn = strongest(weights);
  const hue = hueOf(state.layer, state.head);
  const room = isSteep ? x[1] - x[0] : 24;
  const labels = [];
  const order = [...weights.keys()].slice(0, query + 1).sort((a, b) => weights[a] - weights[b]); // a click hits the thickest
  for (const target of order) {
    const change = changeAt(query, target);
    const { path, top } = arc(target);
    const hit = { class: "hit", x: x[target] - room / 2, y: base - 14, width: room, height: 20 };
    const isAsked = pendingCut(query) && !change;
    const end = { class: `end${change ? " changed" : ""}${isAsked ? " asked" : ""}`, cx: x[target], cy: base, r: 2.5 + 3 * weights[target] };
    const line = shape("g", { class: `link ${hue}`, "data-name": `line-${target}` }, shape("rect", hit));
    if (drawn.includes(target) || change) line.append(...arcShapes(path, weights[target], change, target));
    line.append(shape("circle", end));
    pressLine(line, sentence, target, weights[target], change, target === (drawn.at(-1) ?? query));
    picture.append(line);
    const isNamed = weights[target] >= 0.1 && drawn.slice(-2).includes(target);
    const middle = Math.max(size * 2, Math.min(width - size * (change ? 4.5 : 2), (x[query] + x[target]) / 2));
    let y = top - 8;
    while (labels.some((other) => Math.abs(other.x - middle) < 6 * size && Math.abs(other.y - y) < size)) y += size;
    const text = number(weights[target]) + (change ? `, ${changeLabel(change)}` : "");
    if (isNamed || change) labels.push({ x: middle, y, text });
  }
  const texts = labels.map(({ text, ...at }) => shape("text", { class: `weight ${hue}`, "text-anchor": "middle", ...at }, text));
  const named = words.map((_, position) => wordLabel(sentence, position, x[position], base + 8 + size, size, isSteep));
  picture.append(...texts, ...named);
  return picture;
}

// The number of a line is its tooltip; a click changes the live model.
function pressLine(line, sentence, target, weight, change, isFirst) {
  const [from, to] = [queryOf(sentence), target].map((position) => quoted(sentence, position));
  const name = `Line from ${from} to ${to}: ${number(weight)}${change ? `, ${changeLabel(change)}` : ""}`;
  line.append(shape("title", {}, name));
  if (!live) return;
  const about = { "aria-label": name, "aria-pressed": String(Boolean(change)), tabindex: isFirst ? 0 : -1 };
  pressable(line, (event) => clickLine(target, event.shiftKey), about);
}

// Positions with an arc, the largest weight last, so that it is on top.
function strongest(weights) {
  const large = [...weights.keys()].filter((position) => weights[position] >= LEAST_WEIGHT);
  return large.sort((a, b) => weights[a] - weights[b]).slice(-MOST_LINES);
}

function arcShapes(path, weight, change, target) {
  const isDashed = change?.kind === "cut" || isRemoved(state.layer, state.head);
  const visible = shape("path", { class: isDashed ? "arc cut" : "arc", d: path, "stroke-opacity": 0.25 + 0.75 * weight });
  visible.style.setProperty("stroke-width", `${1 + 8 * weight}px`);
  moveFrom(visible, `${headName(state.layer, state.head)} ${target}`, "strokeWidth", `${1 + 8 * weight}px`);
  return [shape("path", { class: "hit", d: path }), visible];
}

function wordLabel(sentence, position, x, y, size, isSteep) {
  const isQuery = position === queryOf(sentence);
  const text = label(sentence.words[position], 14);
  const unknown = live && position ? reading(sentence.text).unknown : [];
  const isRead = !unknown.includes(sentence.words[position]);
  const slant = { "text-anchor": "end", transform: `rotate(${SLANT} ${x} ${y - size / 2})`, x: x + 2, y: y - size / 4 };
  const place = isSteep ? slant : { "text-anchor": "middle", x, y };
  const shown = shape("text", { class: isRead ? null : "unknown", ...place }, text);
  const node = shape("g", { class: "word", "data-name": `word-${position}` }, shown);
  const name = !position ? START : isRead ? text : `${text}: a word that the model does not know`;
  if (name !== text) node.append(shape("title", {}, name));
  const about = { "aria-label": name, "aria-pressed": String(isQuery), tabindex: isQuery ? 0 : -1 };
  return pressable(node, () => clickWord(position), about);
}

// Look from a word; after a cut, the line to it takes the place of the cut one.
function clickWord(position) {
  const query = queryOf(current());
  const isAsked = live && pendingCut(query) && position < query;
  if (isAsked) clickLine(position);
  else update({ query: position, row: null });
}

function smallPicture(sentence, layer, head) {
  const query = queryOf(sentence);
  const weights = attentionRow(sentence, query, layer, head);
  const x = (position) => 8 + ((position + 0.5) * 144) / sentence.words.length;
  const picture = shape("svg", { class: "small", viewBox: "0 0 160 44", "aria-hidden": "true" });
  for (const position of sentence.words.keys()) {
    picture.append(shape("circle", { class: "end", cx: x(position), cy: 39, r: position === query ? 2.5 : 1.3 }));
  }
  for (const target of strongest(weights)) {
    const { path } = arcOf(x(query), x(target), 39, 33, Math.max(1, x(query) - x(0)));
    const strength = { "stroke-width": 0.3 + 3.2 * weights[target], "stroke-opacity": 0.15 + 0.85 * weights[target] };
    picture.append(shape("path", { class: "arc", d: path, ...strength }));
  }
  return picture;
}

// A head: its lines, where its largest weight is, and a button that removes it.
function headCard(sentence, layer, head) {
  const weights = attentionRow(sentence, queryOf(sentence), layer, head);
  const most = weights.indexOf(Math.max(...weights));
  const isOut = isRemoved(layer, head);
  const isChosen = isOfHead({ layer, head });
  const name = headName(layer, head);
  const about = { class: "pick", "aria-pressed": String(isChosen), tabindex: isChosen ? 0 : -1, "data-name": name };
  const pick = button("", () => update({ layer, head, row: null }), about);
  const largestWeight = `${label(sentence.words[most], 10)} ${number(weights[most])}`;
  pick.append(element("b", {}, name), smallPicture(sentence, layer, head), element("bdi", {}, largestWeight));
  const does = { class: "remove", "aria-label": `${isOut ? "Put back" : "Remove"} ${name}`, "data-name": `remove-${name}` };
  const remove = button(isOut ? "put back" : "remove", () => clickHead(layer, head), does);
  const kind = `head-card ${hueOf(layer, head)}${isOut ? " removed" : ""}`;
  return element("div", { class: kind }, pick, live ? remove : null);
}
