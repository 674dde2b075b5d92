// The live section: type a sentence, change heads and links, see the next words. page_live_model.js computes.

const OTHER_PRONOUN = { __proto__: null, it: "they", they: "it", she: "he", he: "she", him: "her", her: "him", his: "her", them: "it", its: "their", their: "its" };
const PRONOUNS = Object.keys(OTHER_PRONOUN);
// Words before a noun, and words that are none: enough to guess which two words of a sentence are its nouns.
const DETERMINERS = "the a an some his her my your our their this that".split(" ");
const NO_NOUNS = [...PRONOUNS, ...DETERMINERS, ..."one once you we i and or but so because when then there not on in at to of with near by for from was were is are did had".split(" ")];
const LONGEST_TEXT = 5000; // characters
const POSITIONS = { remove: [], cut: ["query", "target"], exchange: ["query", "target", "other"] }; // the words of an edit

let typingTimer = null;

function liveSentence() {
  return sentences.get("live-1");
}

// Heads are read at the last pronoun of a text, else at its last word.
function setLive(text) {
  const { words } = reading(text);
  const pronoun = words.findLastIndex((word) => PRONOUNS.includes(word.toLowerCase()));
  const query = [pronoun > 0 ? pronoun : words.length - 1];
  const title = "Your sentence: an illustration, not a test (n = 1).";
  sentences.set("live-1", { id: "live-1", group: "live", title, text, words, query, antecedents: [], distractors: [], notes: [], next: [], weights: "" });
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

// Show what is typed, with the live sentence selected. Changes of links stay as long as their words do.
function typed(text) {
  const { text: shown, note } = fitted(text);
  const before = liveSentence().words;
  setLive(shown);
  const { unknown, words } = reading(shown);
  const edits = state.edits.filter((edit) => POSITIONS[edit.kind].every((name) => words[edit[name]] === before[edit[name]]));
  const dropped = state.edits.length - edits.length;
  const names = unknown.slice(0, 8).map((word) => `“${label(word)}”`).join(", ");
  showLiveNotes([
    note,
    unknown.length ? `Not in the model's vocabulary, so read as the unknown word: ${names}.` : "",
    dropped ? `${dropped} of your changes named words that are gone, so they were dropped.` : "",
  ]);
  update({ sentence: "live-1", query: null, target: null, other: null, edits, revision: state.revision + 1 });
}

function showLiveNotes(notes) {
  show("live-notes", ...notes.filter(Boolean).map((line) => element("p", { class: "note" }, element("bdi", {}, line))));
}

// Keys that were pressed during a slow pass are read together.
function onTyped({ target: { value } }) {
  clearTimeout(typingTimer);
  typingTimer = setTimeout(typed, 0, value);
}

// Links change the text through its field.
function setText(text) {
  document.getElementById("live-text").value = text;
  typed(text);
}

function drawLive() {
  if (!live) return;
  const field = element("textarea", { id: "live-text", rows: 2, maxlength: LONGEST_TEXT, spellcheck: "false", autocapitalize: "off" });
  field.value = live.text;
  field.addEventListener("input", onTyped);
  // Drawn only while it is open, which halves the work of a key
  const share = element("details", {}, element("summary", {}, "Link and Python"), element("div", { id: "live-share" }));
  share.addEventListener("toggle", drawShare);
  show(
    "live-body",
    element("label", { class: "field" }, element("span", {}, "Sentence"), field),
    element("div", { id: "live-notes", "aria-live": "polite" }),
    element("div", { id: "live-answers", class: "answers", "aria-live": "polite" }),
    element("p", { id: "live-pair", class: "actions" }, wordInput("Compare"), wordInput("and")),
    element("p", { id: "live-odds", class: "rule", "aria-live": "polite" }),
    element("div", { id: "live-edit" }),
    share,
  );
  setLive(live.text);
  redrawOn("edits revision time", drawAnswers);
  redrawOn("edits revision time pair", drawCompare);
  redrawOn("sentence edits revision layer head query target other", drawEdit);
  redrawOn("sentence edits revision layer head query target other time pair", drawShare);
}

function drawAnswers() {
  const { text } = liveSentence();
  const columns = [answerList(state.edits.length ? "Next word, with your changes" : "Next word", passOf(text, state.edits), "live-next")];
  if (state.edits.length) columns.unshift(answerList("Next word, as trained", passOf(text, []), "live-before"));
  show("live-answers", ...columns);
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

function pairInputs() {
  return [...document.querySelectorAll("#live-pair input")];
}

function wordInput(legend) {
  const input = element("input", { type: "text", size: 10, maxlength: 60, autocapitalize: "off", spellcheck: "false" });
  input.addEventListener("change", () => {
    const words = pairInputs().map(({ value }) => value.trim());
    update({ pair: words.every(Boolean) ? words : null });
  });
  return element("label", { class: "menu" }, element("span", {}, legend), input);
}

function drawCompare() {
  const { text } = liveSentence();
  const pair = comparedWords(text);
  pairInputs().forEach((input, i) => (input.value = pair[i]));
  show("live-odds", oddsText(text, pair));
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

// Edits: of the selected head, and of the selected link

// The link that the buttons change. It stays when another head is selected or something is changed.
function linkNow() {
  const sentence = liveSentence();
  const chosen = state.sentence === sentence.id ? state : { query: null, target: null, other: null };
  const query = chosen.query ?? sentence.query[0];
  const [first, second] = likelyNouns(sentence, query);
  const target = chosen.target ?? first;
  const other = [chosen.other, second, first, 0, 1].find((position) => position !== null && position !== target && position <= query);
  return { query, target, other };
}

// Two words before `query`: those after a determiner or with a capital letter.
function likelyNouns({ words }, query) {
  const isNoun = (position) => {
    const word = words[position];
    const isLikely = /^\p{Lu}/u.test(word) || DETERMINERS.includes(words[position - 1]?.toLowerCase());
    return position && /\p{L}/u.test(word) && isLikely && !NO_NOUNS.includes(word.toLowerCase());
  };
  return [...words.keys()].slice(0, query).filter(isNoun).concat(0, 1).slice(0, 2);
}

function drawEdit() {
  // A row of controls for the head, and one for its link
  const sentence = liveSentence();
  const words = sentence.words.map((text, position) => [position, `${position} ${label(text, 16)}`]);
  const { query, target, other } = linkNow();
  const earlier = words.slice(0, query + 1);
  const heads = perHead((layer, head) => [headName(layer, head), headName(layer, head)]).flat();
  const select = (changes) => update({ sentence: sentence.id, ...changes });
  const add = (edit) => () => addEdit({ ...edit, layer: state.layer, head: state.head });
  const rows = [
    [menu("Head", heads, headName(state.layer, state.head), (name) => select(headIn(name))), button("Remove this head", add({ kind: "remove" }), { "data-name": "remove" })],
    [
      menu("Its link from", words, query, (position) => select({ query: position, target: null, other: null })),
      menu("to", earlier, target, (position) => select({ target: position })),
      button("Cut the link", add({ kind: "cut", query, target }), { "data-name": "cut" }),
      menu("or exchange its weight with that of", earlier.filter(([position]) => position !== target), other, (position) => select({ other: position })),
      button("Exchange", add({ kind: "exchange", query, target, other }), { "data-name": "exchange" }),
    ],
    [button("Find the link that decides", findLink, { "data-name": "find" })],
  ];

  // The changes, each with a way back
  const edits = state.edits.map((edit, i) => {
    const name = editName(edit, sentence);
    const undo = () => update({ edits: state.edits.filter((_, position) => position !== i) });
    return element("li", {}, `${name} `, button("undo", undo, { "aria-label": `Undo: ${name}`, "data-name": `undo-${i}` }));
  });
  if (edits.length) rows.push([button("Reset all changes", () => update({ edits: [] }), { "data-name": "reset" })]);
  const list = edits.length ? element("ul", { class: "edits", "aria-label": "Your changes" }, ...edits) : null;
  show("live-edit", element("h3", {}, "Change the model"), ...rows.map((controls) => element("p", { class: "actions" }, ...controls)), list);
}

// A second removal or cut of the same would change nothing.
function addEdit(edit) {
  const sentence = liveSentence();
  if (!tokenEdit(reading(sentence.text), edit)) return showLiveNotes(["There is no such link: a word attends to itself and to earlier words."]);
  const isKnown = edit.kind !== "exchange" && state.edits.some((known) => JSON.stringify(known) === JSON.stringify(edit));
  const { query = state.query, target = state.target, other = state.other } = edit;
  update({ sentence: sentence.id, query, target, other, edits: isKnown ? state.edits : [...state.edits, edit] });
}

function editName({ kind, layer, head, query, target, other }, { words }) {
  const name = (position) => `“${label(words[position], 16)}”`;
  const place = headName(layer, head);
  if (kind === "remove") return `${place} removed`;
  if (kind === "cut") return `${place}: link from ${name(query)} to ${name(target)} cut`;
  return `${place}: at ${name(query)}, the weights on ${name(target)} and ${name(other)} exchanged`;
}

function findLink() {
  const sentence = liveSentence();
  const found = decidingLink(sentence.text);
  if (!found) return showLiveNotes(["No link found: the two compared words must be one token each, and the text needs a word."]);
  const { layer, head, query, target, change, pair } = found;
  const [left, right] = pair.map((word) => label(word));
  update({ sentence: sentence.id, layer, head, query, target, other: null });
  const link = `${headName(layer, head)} from “${label(sentence.words[query])}” to “${label(sentence.words[target])}”`;
  showLiveNotes([`Of all links from the last word, cutting ${link} changes log p(${left}) − log p(${right}) most: by ${number(change)}.`]);
}

// Link and Python

function drawShare() {
  if (!document.querySelector("#live details").open) return;
  const address = element("input", { type: "text", readonly: true, id: "live-link", "aria-label": "Link to this state" });
  address.value = addressNow();
  address.addEventListener("focus", () => address.select());
  show(
    "live-share",
    element("p", { class: "actions" }, address),
    element("p", { class: "rule" }, "From # on, the link works behind the name of any copy of this file. The same in Python, in the folder of the program:"),
    element("pre", { tabindex: 0 }, element("code", { id: "live-code" }, pythonCode(liveSentence().text))),
  );
}

function addressNow() {
  const fields = new URLSearchParams({ text: liveSentence().text, head: headName(state.layer, state.head) });
  for (const name of POSITIONS.exchange) if (state[name] !== null) fields.set(name, state[name]);
  for (const edit of state.edits) {
    fields.append(edit.kind, [headName(edit.layer, edit.head), ...POSITIONS[edit.kind].map((name) => edit[name])].join("."));
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
  update({ edits: [], query: null, target: null, other: null });
  setText(text);

  // Changes of heads and links that this text has; the others are counted.
  const wanted = [...fields].filter(([kind]) => Object.hasOwn(POSITIONS, kind)).map(([kind, value]) => editIn(kind, value));
  const edits = wanted.filter((edit) => edit !== null);
  if (edits.length < wanted.length) showLiveNotes([`${wanted.length - edits.length} of the link's changes do not fit this model or text.`]);

  // What is selected
  const { words, query: [first] } = liveSentence();
  const position = (name, last) => {
    const value = numberIn(fields.get(name));
    return value <= last ? value : null;
  };
  const query = position("query", words.length - 1);
  const [target, other] = ["target", "other"].map((name) => position(name, query ?? first));
  const pair = fields.get("pair")?.split(",") ?? [];
  update({ edits, query, target, other, pair: pair.length === 2 && pair.every(Boolean) ? pair : null, ...headIn(fields.get("head")) });
  const time = steps.indexOf(numberIn(fields.get("step")));
  update({ time: time < 0 ? END : time });
  return true;
}

// NaN for what is no whole number.
function numberIn(text) {
  return /^\d+$/.test(text ?? "") ? Number(text) : NaN;
}

function headIn(text) {
  const [, layer, head] = /^L(\d+)H(\d+)$/.exec(text ?? "") ?? [];
  return layer < nLayer && head < nHead ? { layer: Number(layer), head: Number(head) } : null;
}

function editIn(kind, value) {
  const [place, ...positions] = value.split(".");
  const names = POSITIONS[kind];
  if (!headIn(place) || positions.length !== names.length) return null;
  const edit = { kind, ...headIn(place), ...Object.fromEntries(names.map((name, i) => [name, numberIn(positions[i])])) };
  return tokenEdit(reading(liveSentence().text), edit) ? edit : null;
}

function pythonCode(text) {
  const edits = tokenEdits(reading(text), state.edits).map(({ kind, layer, head, row, left, right }) => {
    if (kind === "remove") return `remove_head(${layer}, ${head})`;
    const sets = [left, right].filter((tokens) => tokens.length).map((tokens) => `[${tokens.join(", ")}]`);
    return `${kind === "cut" ? "cut_link" : "exchange_links"}(${layer}, ${head}, ${row}, ${sets.join(", ")})`;
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
    `edits = [${edits.join(", ")}]  # layer, head, token, tokens`,
    "chances = opened.model.logits(tokens, edits=edits)[0, -1].softmax(-1)",
    "for chance, token in zip(*chances.topk(5)):",
    "    print(opened.decode(int(token)), round(float(chance), 2))",
  ].join("\n");
}
