// The live section: type a sentence, change heads and links, see the next words. page_live_model.js computes.

const PRONOUNS = ["it", "they", "she", "he", "him", "her", "them", "his", "its", "their"];
const OTHER_PRONOUN = { it: "they", they: "it", she: "he", he: "she", him: "her", her: "him", his: "her", them: "it", its: "their", their: "its" };
// Words before a noun, and words that are none: enough to guess which two words of a sentence are its nouns.
const DETERMINERS = "the a an some his her my your our their this that".split(" ");
const NO_NOUNS = [...PRONOUNS, ...DETERMINERS, ..."one once you we i and or but so because when then there not on in at to of with near by for from was were is are did had".split(" ")];
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
  const cut = text.slice(0, LONGEST_TEXT).replace(/\p{Surrogate}/gu, "\ufffd");
  const whole = liveTokenizer.kind === "bpe" ? cut.replace(/ +$/, "") : cut; // its tokens begin with their space
  const limit = live.shape.context_length;
  const tokens = tokensOf(liveTokenizer, whole);
  if (tokens.length < limit) return { text: whole, note: cut.length < text.length ? `Cut after ${LONGEST_TEXT} characters.` : "" };
  const end = tokens[limit - 2].end;
  return { text: whole.slice(0, end), note: `This model reads ${limit - 1} tokens, so the text is cut after “${label(whole.slice(Math.max(0, end - 20), end))}”.` };
}

// Show what is typed, with a new sentence selected. Changes of links stay as long as their words do.
function typed(text) {
  const start = performance.now();
  const { text: shown, note } = fitted(text);
  const before = currentLive().words;
  setLive([{ text: shown }]);
  const { unknown, words } = reading(shown);
  const edits = state.edits.filter(({ query, target, other }) =>
    [query, target, other].every((position) => position === undefined || words[position] === before[position]),
  );
  const dropped = state.edits.length - edits.length;
  const names = unknown.slice(0, 8).map((word) => `“${label(word)}”`).join(", ");
  showLiveNotes([
    note,
    unknown.length ? `Not in the model's vocabulary, so read as the unknown word: ${names}.` : "",
    dropped ? `${dropped} of your changes named words that are gone, so they were dropped.` : "",
  ]);
  const isFirst = !isLive(sentences.get(state.sentence) ?? {});
  const place = isFirst && live.head ? { layer: live.head[0], head: live.head[1] } : {};
  update({ sentence: "live-1", query: null, target: null, other: null, edits, revision: state.revision + 1, ...place });
  slowest = Math.max(slowest, performance.now() - start);
}

function showLiveNotes(notes) {
  show("live-notes", ...notes.filter(Boolean).map((line) => element("p", { class: "note" }, element("bdi", {}, line))));
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
    closedPart(live.rounding ? "Link, Python and rounding" : "Link and Python", "live-share", drawShare),
  );
  setLive([{ text: live.text }]);
  redrawOn("sentence edits revision time pair", drawAnswers);
  redrawOn("sentence edits revision time pair", drawCompare);
  redrawOn("sentence edits revision layer head query target other", drawEdit);
  redrawOn("sentence revision", drawWordTools);
  redrawOn("sentence edits revision layer head query target other time pair", drawShare);
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
  const notes = [];
  if (text !== fitted(document.getElementById("live-text").value).text) notes.push(`After “${short(text)}”.`);
  show("live-answers", ...columns, ...notes.map((line) => element("p", { class: "rule" }, element("bdi", {}, line))));
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
  let inputs = [...document.querySelectorAll("#live-compare input")];
  if (!inputs.length) {
    const labels = ["Compare", "and"].map((legend) => wordInput(legend, "", () => update({ pair: pairTyped() })));
    show("live-compare", element("p", { class: "actions" }, ...labels), element("p", { class: "rule", id: "live-odds", "aria-live": "polite" }));
    inputs = [...document.querySelectorAll("#live-compare input")];
  }
  inputs.forEach((input, i) => (input.value = pair[i]));
  show("live-odds", oddsText(text, pair));
}

function pairTyped() {
  const words = [...document.querySelectorAll("#live-compare input")].map((input) => input.value.trim());
  return words.every(Boolean) ? words : null;
}

function oddsText(text, pair) {
  const [before, after] = [comparison(passOf(text, []), pair), comparison(passOf(text, state.edits), pair)];
  const [left, right] = pair.map((word) => label(word));
  if (!before) return `“${left}” or “${right}” is not one token of this model, so they cannot be compared.`;
  const chance = (value) => (value < 0.005 ? "below 0.01" : number(value));
  const shown = (found) => `p(${left}) ${chance(found.left)}, p(${right}) ${chance(found.right)}, log p(${left}) − log p(${right}) = ${number(found.logOdds)}`;
  const odds = state.edits.length ? `As trained: ${shown(before)}. With your changes: ${shown(after)}.` : `${shown(before)}.`;
  return [odds, ...pair.map(formsNote).filter(Boolean)].join(" ");
}

// The tokens that p(word) is the sum of; "" if that is the word alone.
function formsNote(word) {
  const forms = formsOf(word).map((id) => rawToken(liveTokenizer, id));
  return forms.join() === word ? "" : `p(${label(word)}): ${forms.map((form) => `“${label(form)}”`).join(" + ")}.`;
}

function wordInput(legend, value, change) {
  const input = element("input", { type: "text", size: 10, list: "live-words", maxlength: 60, autocapitalize: "off", spellcheck: "false" });
  input.value = value;
  input.addEventListener("change", () => change(input.value));
  return element("label", { class: "menu" }, element("span", {}, legend), input);
}

// Edits: of the selected head, and of the selected link

// The link that the buttons change. It stays when another head is selected or something is changed.
function linkOf(sentence) {
  const isSelected = sentence.id === state.sentence;
  const query = isSelected ? queryOf(sentence) : sentence.query[0];
  const [first, second] = likelyNouns(sentence, query);
  const known = [...sentence.antecedents, ...sentence.distractors];
  const target = (isSelected ? state.target : null) ?? known[0] ?? first;
  const others = [isSelected ? state.other : null, known[1], second, first, 0, 1];
  return { query, target, other: others.find((position) => position !== null && position !== undefined && position !== target && position <= query) };
}

// Two words before `query`: those after a determiner or with a capital letter first, then those that a head attends to.
function likelyNouns(sentence, query) {
  const pass = passOf(sentence.text, []);
  const attended = new Float64Array(sentence.words.length);
  perHead((layer, head) => wordRow(pass, query, layer, head).forEach((weight, i) => (attended[i] = Math.max(attended[i], weight))));
  const found = [];
  sentence.words.slice(0, query).forEach((word, position) => {
    if (!position || !/\p{L}/u.test(word) || NO_NOUNS.includes(word.toLowerCase())) return;
    const isLikely = /^\p{Lu}/u.test(word) || DETERMINERS.includes(sentence.words[position - 1].toLowerCase());
    found.push([position, attended[position] + (isLikely ? 1 : 0)]);
  });
  return [...found.sort(([, a], [, b]) => b - a).map(([position]) => position), 0, 1].slice(0, 2);
}

function drawEdit() {
  keepFocus("live-edit", showEdit, "[data-name=remove]");
}

function showEdit() {
  const sentence = currentLive();
  const words = sentence.words.map((text, position) => [position, `${position} ${label(text, 16)}`]);
  const link = linkOf(sentence);
  const earlier = words.slice(0, link.query + 1);
  const others = earlier.filter(([position]) => position !== link.target);
  const place = { layer: state.layer, head: state.head };
  const heads = perHead((layer, head) => [`${layer}.${head}`, headName(layer, head)]).flat();
  const select = (changes) => update({ sentence: sentence.id, ...changes });
  const selectHead = (name) => {
    const [layer, head] = name.split(".").map(Number);
    select({ layer, head });
  };
  const add = (edit) => () => addEdit({ ...edit, ...place });
  const { query, target, other } = link;
  const rows = [
    [menu("Head", heads, `${state.layer}.${state.head}`, selectHead), button("Remove this head", add({ kind: "remove" }), { "data-name": "remove" })],
    [
      menu("Its link from", words, query, (position) => select({ query: position, target: null, other: null })),
      menu("to", earlier, target, (position) => select({ target: position })),
      button("Cut the link", add({ kind: "cut", query, target }), { "data-name": "cut" }),
      menu("or exchange its weight with that of", others, other, (position) => select({ other: position })),
      button("Exchange", add({ kind: "exchange", query, target, other }), { "data-name": "exchange" }),
    ],
    [button("Find the link that decides", findLink, { "data-name": "find" })],
  ].map((controls) => element("p", { class: "actions" }, ...controls));
  const edits = state.edits.map((edit, i) => {
    const name = editName(edit, sentence);
    const undo = () => update({ edits: state.edits.filter((_, position) => position !== i) });
    return element("li", {}, `${name} `, button("undo", undo, { "aria-label": `Undo: ${name}`, "data-name": `undo-${i}` }));
  });
  const list = edits.length ? element("ul", { class: "edits", "aria-label": "Your changes" }, ...edits) : null;
  const reset = edits.length ? element("p", { class: "actions" }, button("Reset all changes", () => update({ edits: [] }), { "data-name": "reset" })) : null;
  show("live-edit", element("h3", {}, "Change the model"), ...rows, list, reset);
}

// A second removal or cut of the same would change nothing.
function addEdit(edit) {
  const sentence = currentLive();
  if (!tokenEdit(reading(sentence.text), edit)) return showLiveNotes(["There is no such link: a word attends to itself and to earlier words."]);
  const isKnown = edit.kind !== "exchange" && state.edits.some((known) => JSON.stringify(known) === JSON.stringify(edit));
  const { query = state.query, target = state.target, other = state.other } = edit;
  update({ sentence: sentence.id, query, target, other, edits: isKnown ? state.edits : [...state.edits, edit] });
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
  if (!found) return showLiveNotes(["No link found: the two compared words must be one token each, and the text needs a word."]);
  const { layer, head, query, target, change, pair } = found;
  const [left, right] = pair.map((word) => label(word));
  update({ sentence: sentence.id, layer, head, query, target, other: null });
  const link = `${headName(layer, head)} from “${label(sentence.words[query])}” to “${label(sentence.words[target])}”`;
  showLiveNotes([`Of all links from the last word, cutting ${link} changes log p(${left}) − log p(${right}) most: by ${number(change)}.`]);
}

// What the user must know when the selected head of a live sentence is changed.
function liveNotes(sentence) {
  if (!isLive(sentence)) return [];
  const isRemoved = state.edits.some(({ kind, layer, head }) => kind === "remove" && layer === state.layer && head === state.head);
  return isRemoved ? [`${headName(state.layer, state.head)} is removed: these are the weights that it would use; its output is 0.`] : [];
}

// Words: exchange one, or make the block of four sentences

function drawWordTools() {
  if (isOpen("live-words-tools")) keepFocus("live-words-tools", showWordTools, "button");
}

function showWordTools() {
  const sentence = currentLive();
  const { words } = sentence;
  const choices = words.map((text, position) => [position, `${position} ${label(text, 16)}`]).slice(1);
  if (choices.length < 3) return show("live-words-tools", "Type at least three words.");
  const pronoun = queryIn(words);
  const [first, second] = sentence.antecedents.length ? [...sentence.antecedents, ...sentence.distractors] : likelyNouns(sentence, pronoun);
  const chosen = { word: first, by: "", first, second, pronoun, other: OTHER_PRONOUN[words[pronoun].toLowerCase()] ?? "" };
  const changed = (changes) => withWords(sentence.text, reading(sentence.text).spans, changes);
  const pick = (name) => (value) => (chosen[name] = value);
  const replace = () => chosen.by.trim() && setText(changed([[chosen.word, chosen.by.trim()]]));
  const rows = [
    [menu("Word", choices, chosen.word, pick("word")), wordInput("becomes", "", pick("by")), button("Replace the word", replace, { "data-name": "replace" })],
    [menu("The pronoun", choices, pronoun, pick("pronoun")), menu("means", choices, first, pick("first"))],
    [wordInput("and the other pronoun", chosen.other, pick("other")), menu("means the word", choices, second, pick("second"))],
    [button("Make the four sentences", () => makeBlock(changed, words, chosen), { "data-name": "block" })],
  ].map((controls) => element("p", { class: "actions" }, ...controls));
  const why = "The four sentences have both orders of two nouns and both pronouns. A head that links a pronoun to its antecedent is right in all four; one that follows position, or prefers a noun, in two.";
  rows.splice(1, 0, element("p", { class: "rule" }, why));
  show("live-words-tools", ...rows);
}

// The text with other words in some places; a capital letter stays a capital letter.
function withWords(text, spans, changes) {
  let result = text;
  for (const [position, word] of changes.toSorted(([a], [b]) => b - a)) {
    const [start, end] = spans[position - 1];
    const isCapital = /^\p{Lu}/u.test(text.slice(start, end));
    const written = isCapital ? word.slice(0, 1).toUpperCase() + word.slice(1) : word;
    const [before, after] = [result.slice(0, start), result.slice(end)];
    const isWord = /[\p{L}\p{N}]$/u;
    const space = (left, right) => (isWord.test(left) && /^[\p{L}\p{N}]/u.test(right) ? " " : "");
    result = before + space(before, written) + written + space(written, after) + after;
  }
  return result;
}

function makeBlock(changed, words, { first, second, pronoun, other }) {
  const places = [first, second, pronoun];
  if (!other.trim() || places.includes(0) || new Set(places).size < 3) return showLiveNotes(["The four sentences need two different nouns and two pronouns."]);
  const swapped = [[first, words[second].toLowerCase()], [second, words[first].toLowerCase()]];
  const entries = [];
  for (const order of [[], swapped]) {
    const [places, otherPlaces] = order.length ? [[second, first], [first, second]] : [[first, second], [second, first]];
    entries.push({ text: changed(order), roles: [pronoun, ...places] });
    entries.push({ text: changed([...order, [pronoun, other.trim()]]), roles: [pronoun, ...otherPlaces] });
  }
  setLive(entries);
  update({ sentence: "live-1", query: null, target: null, other: null, revision: state.revision + 1 });
  document.getElementById("attention").scrollIntoView();
}

// Link, Python, rounding

function drawShare() {
  if (!isOpen("live-share")) return;
  const { text } = currentLive();
  const address = element("input", { type: "text", readonly: true, id: "live-link", "aria-label": "Link to this state" });
  address.value = linkNow();
  address.addEventListener("focus", () => address.select());
  const copied = element("span", { role: "status" });
  const copy = button("Copy the link", () => {
    address.select(); // for browsers that copy nothing from a file
    navigator.clipboard?.writeText(address.value).then(() => (copied.textContent = "Copied."), () => {});
  });
  show(
    "live-share",
    element("p", { class: "actions" }, address, copy, copied),
    element("p", { class: "rule" }, "From # on, the link works behind the name of any copy of this file."),
    element("p", { class: "rule" }, "The same in Python, in the folder of the program:"),
    element("pre", { tabindex: 0 }, element("code", { id: "live-code" }, pythonCode(text))),
    live.rounding ? element("p", { class: "rule" }, live.rounding) : null,
  );
}

function linkNow() {
  const fields = new URLSearchParams({ text: currentLive().text, head: headName(state.layer, state.head) });
  if (state.query !== null) fields.set("query", state.query);
  if (state.target !== null) fields.set("target", state.target);
  if (state.other !== null) fields.set("other", state.other);
  for (const { kind, layer, head, query, target, other } of state.edits) {
    fields.append(kind, [headName(layer, head), query, target, other].filter((part) => part !== undefined).join("."));
  }
  if (state.pair) fields.set("pair", state.pair.join(","));
  if (state.time !== END) fields.set("step", steps[state.time]);
  return `${location.href.split("#")[0]}#${fields}`;
}

// A link to a stored sentence, report.html#yours-1: the sentence selected, in the field, and in view.
function openNamed() {
  const named = sentences.get(location.hash.slice(1));
  if (!named) return;
  if (live) setText(named.text);
  selectSentence(named);
  document.getElementById(live ? "live" : "attention").scrollIntoView();
}

// The state of a link: report.html#text=...&head=L1H0&cut=L1H0.11.6&step=1200. False if it has no text.
function openLink() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const text = fields.get("text");
  if (!live || text === null) return false;
  document.getElementById("live-text").value = text;
  update({ edits: [], query: null, target: null, other: null });
  typed(text);

  // Changes of heads and links that this text has; the others are counted.
  const { words } = liveSentence();
  const edits = [];
  let nWrong = 0;
  for (const [kind, value] of fields) {
    const nPositions = { remove: 0, cut: 2, exchange: 3 }[kind];
    if (nPositions === undefined) continue;
    const parts = /^L(\d+)H(\d+)((?:\.\d+)*)$/.exec(value);
    const positions = parts?.[3].split(".").slice(1).map(Number) ?? [];
    const [layer, head] = [Number(parts?.[1]), Number(parts?.[2])];
    const edit = { kind, layer, head };
    ["query", "target", "other"].slice(0, nPositions).forEach((name, i) => (edit[name] = positions[i]));
    const isPossible = layer < nLayer && head < nHead && positions.length === nPositions && tokenEdit(reading(liveSentence().text), edit);
    if (isPossible) edits.push(edit);
    else nWrong++;
  }
  if (nWrong) showLiveNotes([`${nWrong} of the link's changes do not fit this model or text.`]);

  const position = (name, last = words.length - 1) => (/^\d+$/.test(fields.get(name) ?? "") && Number(fields.get(name)) <= last ? Number(fields.get(name)) : null);
  const query = position("query");
  const lastTarget = query ?? liveSentence().query[0];
  const place = /^L(\d+)H(\d+)$/.exec(fields.get("head") ?? "");
  const isPlace = place && Number(place[1]) < nLayer && Number(place[2]) < nHead;
  const time = /^\d+$/.test(fields.get("step") ?? "") ? steps.indexOf(Number(fields.get("step"))) : -1;
  const pair = fields.get("pair")?.split(",") ?? [];
  update({
    edits,
    query,
    target: position("target", lastTarget),
    other: position("other", lastTarget),
    pair: pair.length === 2 && pair.every(Boolean) ? pair : null,
    ...(isPlace ? { layer: Number(place[1]), head: Number(place[2]) } : {}),
  });
  moveSlider(time < 0 ? END : time);
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
  const about = [];
  if (liveStep() !== live.step) about.push(`# the trained model, step ${live.step}: the weights of the slider's step are in this file only`);
  if (live.type === "float16") about.push("# exact weights: those of this file are rounded to float16");
  return [
    ...about,
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
