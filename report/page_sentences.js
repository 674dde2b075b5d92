// What the selected head attends to: the sentences of a group side by side, and the selected one in full.

const ROW = 14; // height of a word in a picture
const MOST_LINES = 24; // lines of one picture
const MOST_ROWS = 22; // words of a picture that names all of them
content.groups.live = { title: "Your live sentence", note: "The model computes these weights now, in this page, with your changes." };

// The sentences of the question first, then those that belong to no other question.
function groupsNow() {
  const first = (question()?.sentences ?? []).map((id) => sentences.get(id));
  const others = [...sentences.values()].filter((sentence) => !first.includes(sentence) && !content.groups[sentence.group].question);
  return Map.groupBy([...first, ...others], ({ group }) => group);
}

function groupNow() {
  return sentences.get(state.sentence)?.group ?? null;
}

// Without a sentence, the first of the question.
function selectSentence(sentence = [...groupsNow().values()][0]?.[0]) {
  update({ sentence: sentence?.id ?? null, query: null, target: null, other: null });
}

function drawGroups() {
  const groups = groupsNow();
  const options = [...groups.keys()].map((name) => [name, content.groups[name].title]);
  const select = (name) => selectSentence(groups.get(name)[0]);
  show("group-choice", options.length > 1 ? menu("Sentences", options, groupNow(), select) : null);
  show("group-note", groups.size ? content.groups[groupNow()].note : "This page has no sentence for this question.");
}

// Small cards

function drawCards() {
  show("cards", ...(groupsNow().get(groupNow()) ?? []).map(card));
}

function card(sentence) {
  const characters = Array.from(sentence.text.slice(-400));
  const text = characters.length > 110 ? `…${characters.slice(-108).join("")}` : characters.join("");
  const attributes = { class: "card", "aria-pressed": String(sentence.id === state.sentence), "data-name": sentence.id };
  const select = button("", () => selectSentence(sentence), attributes);
  select.append(element("span", { class: "card-text" }, text), linesPicture(sentence));
  for (const [role, weight] of mainWeights(sentence)) select.append(element("b", { class: role }, weight));
  return select;
}

// The weights on antecedent and distractor as [role, text]; where these are unknown, the two largest.
function mainWeights(sentence) {
  const weights = attentionRow(sentence, queryOf(sentence));
  const known = [["antecedent", sentence.antecedents], ["distractor", sentence.distractors]];
  const shown = sentence.antecedents.length ? known : largest(weights, 2).map((position) => ["plain", [position]]);
  return shown.map(([role, positions]) => {
    const names = label(positions.map((position) => sentence.words[position]).join(", "));
    return [role, `${names} ${number(positions.reduce((total, position) => total + weights[position], 0))}`];
  });
}

// Lines from the query on the left to the words on the right; the wider and darker, the larger the weight.
function linesPicture(sentence) {
  const { words, antecedents, distractors } = sentence;
  const query = queryOf(sentence);
  const weights = attentionRow(sentence, query);
  const strongest = [...weights.keys()].sort((a, b) => weights[a] - weights[b]).slice(-MOST_LINES);
  const named = words.length > MOST_ROWS ? [...new Set([...antecedents, ...distractors, ...strongest.slice(-2)])] : [...words.keys()];
  const step = Math.min(ROW, (MOST_ROWS * ROW) / words.length);
  const y = (position) => (position + 0.5) * step + 1;
  const [left, middle, right] = [80, 112, 144];
  const text = (position, x, role, anchor) => shape("text", { x, y: y(position) + 3.7, class: role, "text-anchor": anchor }, label(words[position], 12));

  // A line leaves and arrives horizontally, so that neighbouring lines stay apart.
  const picture = shape("svg", { class: "lines", viewBox: `0 0 224 ${words.length * step + 2}`, "aria-hidden": "true" });
  for (const position of strongest) {
    const weight = weights[position];
    picture.append(shape("path", {
      class: `line ${roleOf(sentence, position)}`,
      d: `M${left} ${y(query)}C${middle} ${y(query)} ${middle} ${y(position)} ${right} ${y(position)}`,
      "stroke-width": (0.5 + 4 * weight).toFixed(2),
      "stroke-opacity": Math.min(1, 0.05 + 0.95 * weight).toFixed(3),
    }));
  }
  picture.append(text(query, left - 4, "query", "end"), ...named.map((position) => text(position, right + 4, roleOf(sentence, position), "start")));
  return picture;
}

// The selected sentence

function drawSentence() {
  const sentence = sentences.get(state.sentence);
  show("sentence", ...(sentence ? [aboutSentence(sentence), wordButtons(sentence), targetMenu(sentence)] : []));
}

function aboutSentence(sentence) {
  const note = (text, kind = "note") => element("p", { class: kind }, element("bdi", {}, text.slice(0, 1000)));
  const notes = [...new Set(sentence.notes)].slice(0, 5);
  const isRemoved = ({ kind, layer, head }) => kind === "remove" && layer === state.layer && head === state.head;
  if (isLive(sentence) && state.edits.some(isRemoved)) {
    notes.unshift(`${headName(state.layer, state.head)} is removed: these are the weights that it would use; its output is 0.`);
  }
  const lines = [note(sentence.title, "rule"), ...notes.map((text) => note(text))];
  const expected = nextNow(sentence).filter(([, chance]) => chance >= 0.005).map(([text, chance]) => `${label(text)} ${number(chance)}`);
  if (expected.length) lines.push(note(`Most probable next words: ${expected.join(", ")}`, "rule"));
  if (state.time !== END && !hasHistory()) lines.push(note("This file has no weights of earlier steps: the attention is that of the trained model at every step.", "rule"));
  return element("div", { class: "about" }, ...lines);
}

// The sentence in reading order, each word tinted by its weight. A click makes a word the query.
function wordButtons(sentence) {
  const query = queryOf(sentence);
  const weights = attentionRow(sentence, query);
  const buttons = sentence.words.map((text, position) => {
    const isQuery = position === query;
    const word = button("", () => update({ query: position, target: null }), {
      class: roleOf(sentence, position),
      "aria-pressed": String(isQuery),
      tabindex: isQuery ? "0" : "-1",
      "data-name": position,
    });
    const weight = weights[position] >= 0.005 ? ` ${number(weights[position])}` : "";
    word.append(element("bdi", {}, label(text)), element("small", {}, weight));
    word.style.setProperty("--share", `${Math.round(70 * weights[position])}%`);
    return word;
  });
  arrowKeys(buttons, 1);
  const about = `Attention of ${headName(state.layer, state.head)} from “${label(sentence.words[query])}”. Click a word to see its attention.`;
  return element("div", {}, element("p", { class: "rule" }, about), element("div", { id: "words", role: "group", "aria-label": "Words" }, ...buttons));
}

function targetMenu(sentence) {
  if (state.score !== "weight") return null;
  const options = sentence.words.slice(0, queryOf(sentence) + 1).map((text, position) => [position, `${position} ${label(text)}`]);
  return menu("Colour the heads above by the weight on", options, targetOf(sentence), (target) => update({ target }));
}
