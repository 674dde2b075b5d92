// The attention lines of all heads at the chosen word: the words along a line, arcs above them, a colour for each head.
// A click on a line cuts it, on a second line of the head exchanges both, on a word chooses that word.

const MOST_LINES = 24; // arcs of one head
const LEAST_WEIGHT = 0.005; // that has an arc
const SLANT = -60; // degrees, of labels that have no room side by side
const pen = document.createElement("canvas").getContext("2d");

function hueOf(layer, head) {
  return `hue-${(layer * nHead + head) % 8}`;
}

function drawLines() {
  const sentence = current();
  if (!sentence) return;
  const word = label(sentence.words[queryOf(sentence)], 16);
  const title = element("h2", {}, "What each head looks at from ", element("bdi", { class: "picked" }, `“${word}”`));
  const picture = element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Lines of the chosen head" }, linesPicture(sentence));
  const cards = perHead((layer, head) => headCard(sentence, layer, head)).flat();
  const heads = element("div", { class: cards.length > 8 ? "heads-row many" : "heads-row", role: "group", "aria-label": "Heads" }, ...cards);
  show("live-lines", title, picture, heads);
  const [region] = document.querySelectorAll("#live-lines .scroll");
  region.scrollLeft = region.scrollWidth;
  arrowKeys([...region.querySelectorAll(".link[tabindex]")], 1);
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
    return { width: 40 + step * words.length, x: words.map((_, i) => 34 + step * (i + 0.5)), isSteep: true, below: 5.2 * size };
  }
  const gap = Math.min(28, (state.width - total) / words.length);
  let end = (state.width - total - gap * words.length) / 2;
  const x = widths.map((width) => (end += width + gap) - (width + gap) / 2);
  return { width: state.width, x, isSteep: false, below: 2.2 * size };
}

// Half an ellipse from word to word, higher the longer it is; a loop at one word.
function arcOf(from, to, base, height, reach) {
  if (from === to) return { path: `M${from - 4} ${base}C${from - 18} ${base - 30} ${from + 18} ${base - 30} ${from + 4} ${base}`, top: base - 24 };
  const wide = Math.abs(from - to);
  const high = 16 + (height - 16) * Math.sqrt(wide / reach);
  return { path: `M${from} ${base}A${wide / 2} ${high} 0 0 ${from > to ? 0 : 1} ${to} ${base}`, top: base - high };
}

function linesPicture(sentence) {
  // Places
  const { words } = sentence;
  const query = queryOf(sentence);
  const size = parseFloat(getComputedStyle(document.getElementById("live-lines")).fontSize);
  const { width, x, isSteep, below } = layoutOf(words, size);
  const height = state.width < 600 ? 110 : 170;
  const base = height + size + 10;
  const reach = Math.max(1, x[query] - x[0]);
  const arc = (target) => arcOf(x[query], x[target], base, height, reach);
  const picture = shape("svg", { class: "lines", width, height: base + below, role: "group", "aria-label": "Words and lines" });

  // Faint behind the chosen head: the others
  const others = nLayer * nHead > 8 ? [] : perHead((layer, head) => [layer, head]).flat();
  for (const [layer, head] of others) {
    if (layer === state.layer && head === state.head) continue;
    const weights = attentionRow(sentence, query, layer, head);
    for (const target of strongest(weights).filter((position) => weights[position] >= 0.1)) {
      picture.append(shape("path", { class: `arc faint ${hueOf(layer, head)}`, d: arc(target).path, "stroke-width": (1 + 5 * weights[target]).toFixed(2) }));
    }
  }

  // The lines of the chosen head, and the words
  const weights = attentionRow(sentence, query);
  const drawn = strongest(weights);
  const first = drawn.at(-1) ?? query;
  const labels = [];
  for (let target = 0; target <= query; target++) {
    const room = isSteep ? x[1] - x[0] : 24;
    const hit = shape("rect", { class: "hit", x: x[target] - room / 2, y: base - 14, width: room, height: 20 });
    const [left, right] = [target, query].map((position) => label(words[position], 16));
    const line = shape("g", { class: `link ${hueOf(state.layer, state.head)}`, "data-name": `line-${target}` }, hit);
    const change = changeAt(query, target);
    const name = `Line from “${right}” to “${left}”: ${number(weights[target])}${change ? `, ${CHANGED[change.kind]}` : ""}`;
    line.append(shape("title", {}, name));
    const { path, top } = arc(target);
    if (drawn.includes(target) || change) line.append(shape("path", { class: "hit", d: path }), arcShape(path, weights[target], change));
    const middle = Math.max(size * 2, Math.min(width - size * (change ? 4.5 : 2), (x[query] + x[target]) / 2));
    if (weights[target] >= 0.05 || change) labels.push(shape("text", { class: `weight ${hueOf(state.layer, state.head)}`, x: middle, y: top - 8, "text-anchor": "middle" }, `${number(weights[target])}${change ? ` ${CHANGED[change.kind]}` : ""}`));
    line.append(shape("circle", { class: change ? "end changed" : "end", cx: x[target], cy: base, r: 2.5 + 3 * weights[target] }));
    if (live) pressable(line, (event) => clickLine(target, event.shiftKey), { "aria-label": name, "aria-pressed": String(Boolean(change)), tabindex: target === first ? 0 : -1 });
    picture.append(line);
  }
  picture.append(...labels, ...words.map((_, position) => wordLabel(sentence, position, x[position], base + 8 + size, size, isSteep)));
  return picture;
}

// Positions with an arc, the largest weight last, so that it is on top.
function strongest(weights) {
  const large = [...weights.keys()].filter((position) => weights[position] >= LEAST_WEIGHT);
  return large.sort((a, b) => weights[a] - weights[b]).slice(-MOST_LINES);
}

function arcShape(path, weight, change) {
  const kind = change?.kind === "cut" ? "arc cut" : "arc";
  return shape("path", { class: kind, d: path, "stroke-width": (1 + 8 * weight).toFixed(2), "stroke-opacity": (0.25 + 0.75 * weight).toFixed(2) });
}

function wordLabel(sentence, position, x, y, size, isSteep) {
  const isQuery = position === queryOf(sentence);
  const text = label(sentence.words[position], 14);
  const isUnknown = isLive(sentence) && position > 0 && reading(sentence.text).unknown.includes(sentence.words[position]);
  const place = isSteep ? { "text-anchor": "end", transform: `rotate(${SLANT} ${x} ${y - size / 2})`, x: x + 2, y: y - size / 4 } : { "text-anchor": "middle", x, y };
  const node = shape("g", { class: "word", "data-name": `word-${position}` }, shape("text", { class: isUnknown ? "unknown" : null, ...place }, text));
  const name = isUnknown ? `${text}: a word that the model does not know` : text;
  if (isUnknown) node.append(shape("title", {}, name));
  return pressable(node, () => update({ query: position }), { "aria-label": name, "aria-pressed": String(isQuery), tabindex: isQuery ? 0 : -1 });
}

// Small pictures

function smallPicture(sentence, layer, head) {
  const query = queryOf(sentence);
  const weights = attentionRow(sentence, query, layer, head);
  const x = (position) => 8 + ((position + 0.5) * 144) / sentence.words.length;
  const picture = shape("svg", { class: "small", viewBox: "0 0 160 44", "aria-hidden": "true" });
  for (const position of sentence.words.keys()) picture.append(shape("circle", { class: "end", cx: x(position), cy: 39, r: position === query ? 2.5 : 1.3 }));
  for (const target of strongest(weights)) {
    const { path } = arcOf(x(query), x(target), 39, 33, Math.max(1, x(query) - x(0)));
    picture.append(shape("path", { class: "arc", d: path, "stroke-width": (0.3 + 3.2 * weights[target]).toFixed(2), "stroke-opacity": (0.15 + 0.85 * weights[target]).toFixed(2) }));
  }
  return picture;
}

function headCard(sentence, layer, head) {
  const weights = attentionRow(sentence, queryOf(sentence), layer, head);
  const most = weights.indexOf(Math.max(...weights));
  const isRemoved = state.edits.some((edit) => edit.kind === "remove" && edit.layer === layer && edit.head === head);
  const isChosen = layer === state.layer && head === state.head;
  const name = headName(layer, head);
  const pick = button("", () => update({ layer, head }), { class: "pick", "aria-pressed": String(isChosen), tabindex: isChosen ? 0 : -1, "data-name": name });
  pick.append(element("b", {}, name), smallPicture(sentence, layer, head), element("bdi", {}, `${label(sentence.words[most], 10)} ${number(weights[most])}`));
  const remove = button(isRemoved ? "put back" : "remove", () => clickHead(layer, head), { class: "remove", "aria-label": `${isRemoved ? "Put back" : "Remove"} ${name}`, "data-name": `remove-${name}` });
  return element("div", { class: `head-card ${hueOf(layer, head)}${isRemoved ? " removed" : ""}` }, pick, live ? remove : null);
}
