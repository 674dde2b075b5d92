// The live section: type a sentence, change heads and links, see the next words. page_live_model.js computes.

const PRONOUNS = ["it", "they", "she", "he", "him", "her", "them", "his", "its", "their"];
const OTHER_PRONOUN = { it: "they", they: "it", she: "he", he: "she", him: "her", her: "him", his: "her", them: "it", its: "their", their: "its" };
const LONGEST_TEXT = 5000; // characters
const SLOW = 60; // milliseconds of a pass from which on the page waits for a pause in typing
const LIVE_TITLE = "Your sentence: an illustration, not a test (n = 1).";

let typingTimer = null;
let slowest = 0;

function liveSentence() {
  return sentences.get("live-1");
}

// One live sentence, or the four of a block, with the words of query, antecedent and distractor.
function setLive(entries) {
  for (let i = 1; i <= 4; i++) sentences.delete(`live-${i}`);
  entries.forEach(({ text, roles = [] }, i) => {
    const { words } = reading(text);
    const [query = queryIn(words), antecedent, distractor] = roles;
    const id = `live-${i + 1}`;
    const known = { antecedents: antecedent ? [antecedent] : [], distractors: distractor ? [distractor] : [] };
    sentences.set(id, { id, group: "live", title: LIVE_TITLE, text, words, query: [query], ...known, notes: [], next: [], weights: "", head: null });
  });
}

// The last pronoun of a text, else its last word.
function queryIn(words) {
  const pronoun = words.findLastIndex((text) => PRONOUNS.includes(text.toLowerCase()));
  return pronoun > 0 ? pronoun : words.length - 1;
}

// The text that fits the model, and what the user must know about it.
function fitted(text) {
  const whole = text.slice(0, LONGEST_TEXT).replace(/\p{Surrogate}/gu, "\ufffd");
  const limit = live.shape.context_length;
  const tokens = tokensOf(liveTokenizer, whole);
  if (tokens.length < limit) return { text: whole, note: whole.length < text.length ? `Cut after ${LONGEST_TEXT} characters.` : "" };
  const end = tokens[limit - 2].end;
  return { text: whole.slice(0, end), note: `This model reads ${limit - 1} tokens, so the text is cut after “${label(whole.slice(Math.max(0, end - 20), end))}”.` };
}

// Show what is typed, with a new sentence selected.
function typed(text) {
  const start = performance.now();
  const { text: shown, note } = fitted(text);
  setLive([{ text: shown }]);
  const { unknown } = reading(shown);
  const words = unknown.slice(0, 8).map((word) => label(word)).join(", ");
  const notes = [note, unknown.length ? `Not in the model's vocabulary, so read as the unknown word: ${words}.` : ""];
  show("live-notes", ...notes.filter(Boolean).map((line) => element("p", { class: "note" }, element("bdi", {}, line))));
  const isFirst = !isLive(sentences.get(state.sentence) ?? {});
  const place = isFirst && live.head ? { layer: live.head[0], head: live.head[1] } : {};
  update({ sentence: "live-1", query: null, target: null, revision: state.revision + 1, ...place });
  slowest = Math.max(slowest, performance.now() - start);
}

function onTyped(event) {
  const { value } = event.target;
  clearTimeout(typingTimer);
  if (slowest < SLOW) typed(value);
  else typingTimer = setTimeout(() => typed(value), 150);
}

// Programs and buttons change the text through its field.
function setText(text) {
  const field = document.getElementById("live-text");
  field.value = text;
  typed(text);
}

// The section

function drawLive() {
  if (!live) return;
  const field = element("textarea", { id: "live-text", rows: 2, maxlength: LONGEST_TEXT, spellcheck: "false", autocapitalize: "off" });
  field.value = live.text;
  field.addEventListener("input", onTyped);
  const words = live.tokenizer.kind === "words" ? live.tokenizer.vocabulary.filter((word) => /\p{L}/u.test(word) && !word.startsWith("<|")) : [];
  show(
    "live-body",
    element("label", { class: "field" }, element("span", {}, "Sentence"), field),
    element("datalist", { id: "live-words" }, ...words.map((value) => element("option", { value }))),
    element("div", { id: "live-notes", "aria-live": "polite" }),
    element("div", { id: "live-answers", class: "answers", "aria-live": "polite" }),
    element("div", { id: "live-compare" }),
    element("div", { id: "live-edit" }),
    closedPart("Change a word, or make the four sentences", "live-words-tools", drawWordTools),
    closedPart("Link, Python and rounding", "live-share", drawShare),
  );
  setLive([{ text: live.text }]);
  redrawOn("sentence edits revision time pair", drawAnswers);
  redrawOn("sentence edits revision time pair", drawCompare);
  redrawOn("sentence edits revision layer head query target", drawEdit);
  redrawOn("sentence revision", drawWordTools);
  redrawOn("sentence edits revision layer head query target time", drawShare);
}

// A part that is drawn only while it is open: that halves the work of a key.
function closedPart(title, id, draw) {
  const part = element("details", {}, element("summary", {}, title), element("div", { id }));
  part.addEventListener("toggle", draw);
  return part;
}

function isOpen(id) {
  return document.getElementById(id).parentElement.open;
}

// The live sentence that the section is about: one of a block may be selected below.
function currentLive() {
  const selected = sentences.get(state.sentence);
  return selected && isLive(selected) ? selected : liveSentence();
}

function drawAnswers() {
  const { text } = currentLive();
  const now = passOf(text, state.edits);
  const columns = [answerList(state.edits.length ? "Next word, with your changes" : "Next word", now, "live-next")];
  if (state.edits.length) columns.unshift(answerList("Next word, as trained", passOf(text, []), "live-before"));
  const step = state.time !== END && hasHistory() ? element("p", { class: "rule" }, `Weights of step ${liveStep().toLocaleString("en")}, where the slider stands.`) : null;
  show("live-answers", ...columns, step);
}

function answerList(title, pass, id) {
  const items = nextWords(pass, 5).map(([text, chance]) => {
    const bar = element("i", { class: "plain" });
    bar.style.setProperty("width", `${(100 * chance).toFixed(1)}%`);
    return element("li", {}, element("bdi", {}, label(text)), " ", element("span", {}, number(chance)), element("span", { class: "bar-track", "aria-hidden": "true" }, bar));
  });
  return element("div", {}, element("h3", { id: `${id}-title` }, title), element("ol", { id, "aria-labelledby": `${id}-title` }, ...items));
}

// Two words: which of them comes next?

function drawCompare() {
  const { text } = currentLive();
  const pair = comparedWords(text);
  const inputs = pair.map((word, i) => wordInput(i ? "and" : "Compare", word, (value) => {
    const changed = pair.with(i, value.trim());
    update({ pair: changed.every(Boolean) ? changed : null });
  }));
  const focused = [...document.querySelectorAll("#live-compare input")].indexOf(document.activeElement);
  show("live-compare", element("p", { class: "actions" }, ...inputs), element("p", { class: "rule", id: "live-odds", "aria-live": "polite" }, oddsText(text, pair)));
  document.querySelectorAll("#live-compare input")[focused]?.focus();
}

function oddsText(text, pair) {
  const [before, after] = [comparison(passOf(text, []), pair), comparison(passOf(text, state.edits), pair)];
  const [left, right] = pair.map((word) => label(word));
  if (!before) return `“${left}” or “${right}” is not one token of this model, so they cannot be compared.`;
  const shown = (found) => `p(${left}) ${number(found.left)}, p(${right}) ${number(found.right)}, log p(${left}) − log p(${right}) = ${number(found.logOdds)}`;
  return state.edits.length ? `As trained: ${shown(before)}. With your changes: ${shown(after)}.` : `${shown(before)}.`;
}

function wordInput(legend, value, change) {
  const input = element("input", { type: "text", size: 10, list: "live-words", maxlength: 60, autocapitalize: "off", spellcheck: "false" });
  input.value = value;
  input.addEventListener("change", () => change(input.value));
  return element("label", { class: "menu" }, element("span", {}, legend), input);
}

// Edits: of the selected head, and of the selected link

function drawEdit() {
  const sentence = currentLive();
  const isSelected = sentence.id === state.sentence;
  const words = sentence.words.map((text, position) => [position, `${position} ${label(text, 16)}`]);
  const query = isSelected ? queryOf(sentence) : sentence.query[0];
  const target = isSelected ? targetOf(sentence) : 0;
  const place = { layer: state.layer, head: state.head };
  const heads = perHead((layer, head) => [`${layer}.${head}`, headName(layer, head)]).flat();
  const select = (changes) => update({ sentence: sentence.id, ...changes });
  const others = words.slice(0, query + 1).filter(([position]) => position !== target);
  let other = others.find(([position]) => [...sentence.antecedents, ...sentence.distractors].includes(position))?.[0] ?? strongestOther(sentence, query, target);

  const focused = document.activeElement?.dataset?.name;
  const exchange = menu("with", others, other, (position) => (other = position));
  const rows = [
    element(
      "p",
      { class: "actions" },
      menu("Head", heads, `${state.layer}.${state.head}`, (name) => {
        const [layer, head] = name.split(".").map(Number);
        select({ layer, head });
      }),
      button("Remove this head", () => addEdit({ kind: "remove", ...place }), { "data-name": "remove" }),
    ),
    element(
      "p",
      { class: "actions" },
      menu("Its link from", words, query, (position) => select({ query: position, target: null })),
      menu("to", words.slice(0, query + 1), target, (position) => select({ target: position })),
      button("Cut this link", () => addEdit({ kind: "cut", ...place, query, target }), { "data-name": "cut" }),
      button("Exchange it", () => addEdit({ kind: "exchange", ...place, query, target, other }), { "data-name": "exchange" }),
      exchange,
    ),
    element("p", { class: "actions" }, button("Find the link that decides", findLink, { "data-name": "find" })),
  ];
  const edits = state.edits.map((edit, i) =>
    element("li", {}, `${editName(edit, sentence)} `, button("undo", () => update({ edits: state.edits.toSpliced(i, 1) }), { "aria-label": `Undo: ${editName(edit, sentence)}` })),
  );
  const list = edits.length ? element("ul", { class: "edits", "aria-label": "Your changes" }, ...edits) : null;
  const reset = edits.length ? element("p", { class: "actions" }, button("Reset all changes", () => update({ edits: [] }), { "data-name": "reset" })) : null;
  show("live-edit", element("h3", {}, "Change the model"), ...rows, list, reset);
  if (focused) document.querySelector(`#live-edit [data-name=${focused}]`)?.focus();
}

function strongestOther(sentence, query, target) {
  const weights = attentionRow(sentence, query);
  return largest(weights, 3).find((position) => position !== target && position <= query) ?? 0;
}

function addEdit(edit) {
  const sentence = currentLive();
  if (!tokenEdit(reading(sentence.text), edit)) return;
  update({ sentence: sentence.id, edits: [...state.edits, edit] });
}

function editName({ kind, layer, head, query, target, other }, { words }) {
  const name = (position) => (position < words.length ? `“${label(words[position], 16)}”` : `word ${position}`);
  const place = headName(layer, head);
  if (kind === "remove") return `${place} removed`;
  if (kind === "cut") return `${place}: link from ${name(query)} to ${name(target)} cut`;
  return `${place}: at ${name(query)}, the weights on ${name(target)} and ${name(other)} exchanged`;
}

function findLink() {
  const sentence = currentLive();
  const found = decidingLink(sentence.text);
  if (!found) return;
  const { layer, head, query, target } = found;
  update({ sentence: sentence.id, layer, head, query, target });
}

// Words: exchange one, or make the block of four sentences

function drawWordTools() {
  if (!isOpen("live-words-tools")) return;
  const sentence = currentLive();
  const { words } = sentence;
  const choices = words.map((text, position) => [position, `${position} ${label(text, 16)}`]).slice(1);
  if (choices.length < 3) return show("live-words-tools", "Type at least three words.");
  const chosen = { word: 1, by: "", first: 1, second: 2, pronoun: queryIn(words), other: "" };
  const [first, second] = sentence.antecedents.length ? [...sentence.antecedents, ...sentence.distractors] : likelyNouns(sentence, chosen.pronoun);
  Object.assign(chosen, { word: first, first, second, other: OTHER_PRONOUN[words[chosen.pronoun].toLowerCase()] ?? "" });
  const changed = (changes) => withWords(sentence.text, reading(sentence.text).spans, changes);
  const pick = (name) => (value) => (chosen[name] = value);
  const exchangeWord = () => chosen.by.trim() && setText(changed([[chosen.word, chosen.by.trim()]]));
  show(
    "live-words-tools",
    element(
      "p",
      { class: "actions" },
      menu("Word", choices, chosen.word, pick("word")),
      wordInput("becomes", "", pick("by")),
      button("Exchange the word", exchangeWord),
    ),
    element("p", { class: "rule" }, "The four sentences have both orders of two nouns and both pronouns. A head that links a pronoun to its antecedent is right in all four; one that follows position, or prefers a noun, in two."),
    element(
      "p",
      { class: "actions" },
      menu("The pronoun", choices, chosen.pronoun, pick("pronoun")),
      menu("means", choices, chosen.first, pick("first")),
      wordInput("the other pronoun", chosen.other, pick("other")),
      menu("means", choices, chosen.second, pick("second")),
      button("Make the four sentences", () => makeBlock(changed, words, chosen)),
    ),
  );
}

// The two words before the pronoun that the selected head attends to most.
function likelyNouns(sentence, query) {
  const found = largest(attentionRow(sentence, query), sentence.words.length).filter((position) => position < query && /\p{L}/u.test(sentence.words[position]));
  return [...found, 1, 2].slice(0, 2);
}

// The text with other words in some places; a capital letter stays a capital letter.
function withWords(text, spans, changes) {
  let result = text;
  for (const [position, word] of changes.toSorted(([a], [b]) => b - a)) {
    const [start, end] = spans[position - 1];
    const isCapital = /^\p{Lu}/u.test(text.slice(start, end));
    const written = isCapital ? word.slice(0, 1).toUpperCase() + word.slice(1) : word;
    result = result.slice(0, start) + written + result.slice(end);
  }
  return result;
}

function makeBlock(changed, words, { first, second, pronoun, other }) {
  if (!other.trim() || new Set([first, second, pronoun]).size < 3) return;
  const swapped = [[first, words[second].toLowerCase()], [second, words[first].toLowerCase()]];
  const entries = [];
  for (const order of [[], swapped]) {
    const [places, otherPlaces] = order.length ? [[second, first], [first, second]] : [[first, second], [second, first]];
    entries.push({ text: changed(order), roles: [pronoun, ...places] });
    entries.push({ text: changed([...order, [pronoun, other.trim()]]), roles: [pronoun, ...otherPlaces] });
  }
  setLive(entries);
  update({ sentence: "live-1", query: null, target: null, revision: state.revision + 1 });
  document.getElementById("attention").scrollIntoView();
}

// Link, Python, rounding

function drawShare() {
  if (!isOpen("live-share")) return;
  const { text } = currentLive();
  const address = element("input", { type: "text", readonly: true, id: "live-link", "aria-label": "Link to this state" });
  address.value = linkNow();
  address.addEventListener("focus", () => address.select());
  const copy = button("Copy the link", () => {
    address.select();
    navigator.clipboard?.writeText(address.value).catch(() => {}); // the field is selected in any case
  });
  show(
    "live-share",
    element("p", { class: "actions" }, address, copy),
    element("p", { class: "rule" }, "The same in Python, in the folder of the program:"),
    element("pre", { tabindex: 0 }, element("code", { id: "live-code" }, pythonCode(text))),
    live.rounding ? element("p", { class: "rule" }, live.rounding) : null,
  );
}

function linkNow() {
  const fields = new URLSearchParams({ text: currentLive().text, head: headName(state.layer, state.head) });
  if (state.query !== null) fields.set("query", state.query);
  if (state.target !== null) fields.set("target", state.target);
  for (const { kind, layer, head, query, target, other } of state.edits) {
    fields.append(kind, [headName(layer, head), query, target, other].filter((part) => part !== undefined).join("."));
  }
  if (state.pair) fields.set("pair", state.pair.join(","));
  if (state.time !== END) fields.set("step", steps[state.time]);
  return `${location.href.split("#")[0]}#${fields}`;
}

// The state of a link: report.html#text=...&head=L1H0&cut=L1H0.11.6&step=1200. False if it has no text.
function openLink() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const text = fields.get("text");
  if (!live || text === null) return false;
  const edits = [];
  for (const [kind, value] of fields) {
    const parts = /^L(\d+)H(\d+)((?:\.\d+)*)$/.exec(value);
    if (!["remove", "cut", "exchange"].includes(kind) || !parts) continue;
    const [layer, head] = [Number(parts[1]), Number(parts[2])];
    const [query, target, other] = parts[3].split(".").slice(1).map(Number);
    if (layer < nLayer && head < nHead) edits.push({ kind, layer, head, query, target, other });
  }
  const place = /^L(\d+)H(\d+)$/.exec(fields.get("head") ?? "");
  const isPlace = place && place[1] < nLayer && place[2] < nHead;
  const time = steps.indexOf(Number(fields.get("step") ?? NaN));
  const pair = fields.get("pair")?.split(",");
  document.getElementById("live-text").value = text;
  typed(text);
  const { length } = liveSentence().words;
  const position = (name) => (fields.has(name) && Number(fields.get(name)) < length ? Number(fields.get(name)) : null);
  update({
    edits,
    query: position("query"),
    target: position("target"),
    pair: pair?.length === 2 ? pair : null,
    time: time < 0 ? END : time,
    ...(isPlace ? { layer: Number(place[1]), head: Number(place[2]) } : {}),
  });
  return true;
}

function pythonCode(text) {
  const { members } = reading(text);
  const edits = state.edits.map((edit) => {
    const { kind, layer, head } = edit;
    const inTokens = tokenEdit({ members }, edit);
    if (kind === "remove") return `remove_head(${layer}, ${head})`;
    if (!inTokens) return null;
    const sets = [inTokens.left, inTokens.right].filter((tokens) => tokens.length).map((tokens) => `[${tokens.join(", ")}]`);
    return `${kind === "cut" ? "cut_link" : "exchange_links"}(${layer}, ${head}, ${inTokens.row}, ${sets.join(", ")})`;
  });
  return [
    "import torch",
    "from antecedent_lab import cut_link, exchange_links, open_model, remove_head",
    `opened = open_model(${JSON.stringify(live.source)}, device="cpu")`,
    `tokens = torch.tensor([opened.tokenize(${JSON.stringify(text)}).tokens])`,
    `edits = [${edits.filter((edit) => edit !== null).join(", ")}]  # layer, head, token, tokens`,
    "chances = opened.model.logits(tokens, edits=edits)[0, -1].softmax(-1)",
    "for chance, token in zip(*chances.topk(5)):",
    "    print(opened.decode(int(token)), round(float(chance), 2))",
  ].join("\n");
}
