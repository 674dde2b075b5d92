// What the selected head attends to: the sentences of a group side by side, and the selected one in full.

const MOST_MATRIX = 48; // words of a sentence whose whole matrix is drawn
const MOST_LINES = 24; // lines of one picture
const LIVE_GROUP = { title: "Your live sentence", note: "The model computes these weights now, in this page, with your changes.", question: null };

function groupOf(name) {
  return content.groups[name] ?? LIVE_GROUP;
}

// The sentences of the question first, then those that belong to no other question.
function groupsNow() {
  const first = (question()?.sentences ?? []).map((id) => sentences.get(id));
  const others = [...sentences.values()].filter((sentence) => !first.includes(sentence) && !groupOf(sentence.group).question);
  return Map.groupBy([...first, ...others], ({ group }) => group);
}

function groupNow() {
  return sentences.get(state.sentence)?.group ?? null;
}

function selectSentence(sentence) {
  update({ sentence: sentence?.id ?? null, query: null, target: null, other: null });
}

function drawGroups() {
  const groups = groupsNow();
  const options = [...groups.keys()].map((name) => [name, groupOf(name).title]);
  const select = (name) => selectSentence(groups.get(name)[0]);
  show("group-choice", options.length > 1 ? menu("Sentences", options, groupNow(), select) : null);
  show("group-note", groups.size ? groupOf(groupNow()).note : "This page has no sentence for this question.");
}

// Small cards

function drawCards() {
  const members = groupsNow().get(groupNow()) ?? [];
  const strip = document.getElementById("cards");
  const focused = [...strip.children].indexOf(document.activeElement);
  show("cards", ...members.map(card));
  strip.children[focused]?.focus();
}

function card(sentence) {
  const pairs = mainWeights(sentence);
  const weights = pairs.map(({ name, weight }) => `${name} ${number(weight)}`).join(", ");
  const query = label(sentence.words[queryOf(sentence)]);
  const attributes = {
    type: "button",
    class: "card",
    "aria-pressed": String(sentence.id === state.sentence),
    "aria-label": `${short(sentence.text)} Attention from “${query}”: ${weights}`,
  };
  const text = element("span", { class: "card-text" }, short(sentence.text));
  const button = element("button", attributes, text, linesPicture(sentence, 14), ...pairs.map(weightBar));
  button.addEventListener("click", () => selectSentence(sentence));
  return button;
}

function short(text) {
  const characters = Array.from(text.slice(-400));
  return characters.length > 110 ? `…${characters.slice(-108).join("")}` : characters.join("");
}

// The weights on antecedent and distractor; where these are unknown, the two largest.
function mainWeights(sentence) {
  const weights = attentionRow(sentence, queryOf(sentence));
  const sum = (positions, role) => ({
    name: label(positions.map((position) => sentence.words[position]).join(", ")),
    role,
    weight: positions.reduce((total, position) => total + weights[position], 0),
  });
  if (!sentence.antecedents.length) return largest(weights, 2).map((position) => sum([position], "plain"));
  return [sum(sentence.antecedents, "antecedent"), sum(sentence.distractors, "distractor")];
}

function weightBar({ name, weight, role }) {
  const filled = element("i", { class: role });
  filled.style.setProperty("width", `${(100 * weight).toFixed(1)}%`);
  const track = element("span", { class: "bar-track" }, filled);
  return element("span", { class: "bar" }, element("span", { class: "bar-name" }, name), track, number(weight));
}

// Lines from the query on the left to the words on the right; the wider and darker, the larger the weight.
function linesPicture(sentence, rowHeight) {
  const query = queryOf(sentence);
  const weights = attentionRow(sentence, query);
  const strongest = [...weights.keys()].sort((a, b) => weights[a] - weights[b]).slice(-MOST_LINES);
  const step = Math.min(rowHeight, (22 * rowHeight) / sentence.words.length);
  const y = (position) => (position + 0.5) * step + 1;
  const picture = shape("svg", { class: "lines", viewBox: `0 0 ${16 * rowHeight} ${sentence.words.length * step + 2}`, "aria-hidden": "true" });
  const [left, right] = [5.7 * rowHeight, 10.3 * rowHeight];
  for (const position of strongest) picture.append(line([left, y(query)], [right, y(position)], weights[position], roleOf(sentence, position)));
  const mentions = [...sentence.antecedents, ...sentence.distractors];
  const named = step === rowHeight ? sentence.words.map((_, position) => position) : [...new Set([...mentions, ...strongest.slice(-2)])];
  for (const position of named) picture.append(word(sentence, position, right + 4, y(position), roleOf(sentence, position), "start"));
  for (const position of step === rowHeight ? named : [query]) {
    picture.append(word(sentence, position, left - 4, y(position), position === query ? "query" : "plain", "end"));
  }
  return picture;
}

// Leaves and arrives horizontally, so that neighbouring lines stay apart.
function line([x0, y0], [x1, y1], weight, role) {
  const middle = (x0 + x1) / 2;
  return shape("path", {
    class: `line ${role}`,
    d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}`,
    "stroke-width": (0.5 + 4 * weight).toFixed(2),
    "stroke-opacity": Math.min(1, 0.05 + 0.95 * weight).toFixed(3),
  });
}

function word(sentence, position, x, y, role, anchor) {
  return shape("text", { x, y: y + 3.7, class: role, "text-anchor": anchor }, label(sentence.words[position], 12));
}

// The selected sentence

function drawSentence() {
  const sentence = sentences.get(state.sentence);
  if (!sentence) return show("sentence");
  const hadFocus = document.getElementById("words")?.contains(document.activeElement);
  const matrix = sentence.words.length <= MOST_MATRIX ? matrixPicture(sentence) : null;
  show("sentence", aboutSentence(sentence), wordButtons(sentence), targetMenu(sentence), matrix, saveButtons(sentence));
  if (hadFocus) document.querySelector("#words [tabindex='0']").focus();
}

function aboutSentence(sentence) {
  const note = (text, kind = "rule") => element("p", { class: kind }, element("bdi", {}, text.slice(0, 1000)));
  const expected = nextNow(sentence).filter(([, chance]) => chance >= 0.005).map(([text, chance]) => `${label(text)} ${number(chance)}`);
  const lines = [note(sentence.title), ...liveNotes(sentence).map((text) => note(text, "note")), ...[...new Set(sentence.notes)].slice(0, 5).map((text) => note(text, "note"))];
  if (expected.length) lines.push(note(`Most probable next words: ${expected.join(", ")}`));
  if (state.time !== END && !hasHistory()) lines.push(note("This file has no weights of earlier steps: the attention is that of the trained model at every step."));
  return element("div", { class: "about" }, ...lines);
}

// The sentence in reading order, each word tinted by its weight. A click makes a word the query.
function wordButtons(sentence) {
  const query = queryOf(sentence);
  const weights = attentionRow(sentence, query);
  const buttons = sentence.words.map((text, position) => {
    const weight = weights[position] >= 0.005 ? ` ${number(weights[position])}` : "";
    const button = element(
      "button",
      {
        type: "button",
        class: roleOf(sentence, position),
        "aria-pressed": String(position === query),
        tabindex: position === query ? "0" : "-1",
      },
      element("bdi", {}, label(text)),
      element("small", {}, weight),
    );
    button.style.setProperty("--share", `${Math.round(70 * weights[position])}%`);
    button.addEventListener("click", () => update({ query: position, target: null }));
    return button;
  });
  arrowKeys(buttons, 1);
  const about = element("p", { class: "rule" }, `Attention of ${headName(state.layer, state.head)} from “${label(sentence.words[query])}”. Click a word to see its attention.`);
  return element("div", {}, about, element("div", { id: "words", role: "group", "aria-label": "Words" }, ...buttons));
}

function targetMenu(sentence) {
  if (state.score !== "weight") return null;
  const options = sentence.words.slice(0, queryOf(sentence) + 1).map((text, position) => [position, `${position} ${label(text)}`]);
  return menu("Colour the heads above by the weight on", options, targetOf(sentence), (target) => update({ target }));
}

// The weights of the head between all words: a row attends to the words of the columns.
function matrixPicture(sentence) {
  const n = sentence.words.length;
  const [size, margin] = [14, 76];
  const side = margin + n * size + 2;
  const name = "Attention matrix: each row attends to the words of the columns";
  const picture = shape("svg", { class: "matrix", width: 1.3 * side, viewBox: `0 0 ${side} ${side}`, role: "img", "aria-label": name });
  const query = queryOf(sentence);
  sentence.words.forEach((text, row) => {
    const middle = margin + (row + 0.6) * size;
    const rowName = label(text, 11);
    picture.append(shape("text", { x: margin - 5, y: middle + 2, "text-anchor": "end", class: row === query ? "query" : "plain" }, rowName));
    picture.append(shape("text", { transform: `translate(${middle} ${margin - 5}) rotate(-90)`, class: roleOf(sentence, row) }, rowName));
    attentionRow(sentence, row).forEach((weight, column) => {
      if (column > row) return;
      const box = { x: margin + column * size, y: margin + row * size, width: size - 1, height: size - 1 };
      const square = shape("rect", { ...box, class: roleOf(sentence, column), "fill-opacity": (0.04 + 0.96 * weight).toFixed(3) });
      square.append(shape("title", {}, `${rowName} → ${label(sentence.words[column])}: ${number(weight)}`));
      square.addEventListener("click", () => update({ query: row, target: column }));
      picture.append(square);
    });
  });
  picture.append(shape("rect", { class: "frame", x: margin - 0.5, y: margin + query * size - 0.5, width: (query + 1) * size, height: size }));
  return element("figure", { class: "matrix-figure" }, element("figcaption", {}, name), picture);
}
