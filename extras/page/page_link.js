// The address that holds the state of the page, and the Python that makes the same changes.

const FOLLOW = 300; // milliseconds after the last change

function drawShare() {
  if (!document.getElementById("share").open) return;
  const address = element("input", { type: "text", readonly: true, id: "live-link", "aria-label": "Link to this state" });
  address.value = addressNow();
  address.addEventListener("focus", () => address.select());
  show(
    "live-share",
    element("p", { class: "actions" }, address),
    element("p", { class: "actions" }, button("Save as SVG", saveSvg, { id: "save-svg" }), button("Save as PNG", savePng, { id: "save-png" })),
    element("p", { class: "rule" }, "The part from # on works with every copy of this file. With #embed& in the place of # it shows lines and next words only, for a frame in another page. The same in Python, in the folder of the program:"),
    element("pre", { tabindex: 0 }, element("code", { id: "live-code" }, pythonCode(current().text))),
  );
}

function addressNow() {
  const fields = new URLSearchParams(isLesson() ? { lesson: state.card } : {});
  fields.set("text", document.getElementById("live-text").value);
  fields.set("head", headName(state.layer, state.head));
  if (state.query !== null) fields.set("query", state.query);
  for (const edit of state.edits) {
    const dose = edit.percent < 100 ? [edit.percent] : [];
    fields.append(edit.kind, [headName(edit.layer, edit.head), ...POSITIONS[edit.kind].map((name) => edit[name]), ...dose].join("."));
  }
  if (state.time !== END) fields.set("step", steps[state.time]);
  return `${pageAddress()}#${fields}`;
}

// The address follows the state, so that a reload keeps it, without an entry in the history; a frame keeps its own.
let followTimer = null;

function followState() {
  clearTimeout(followTimer);
  if (document.documentElement.classList.contains("embed")) return;
  const { hash } = location;
  followTimer = setTimeout(() => {
    if (location.hash === hash) history.replaceState(null, "", new URL(addressNow()).hash); // else one is being opened
  }, FOLLOW);
}

// In a frame of another page: what is drawn there, and the way to the whole page.
function drawSource() {
  const about = `Antecedent: ${content.run.name}, ${stepName()}, head ${headName(state.layer, state.head)}. `;
  show("source", about, element("a", { href: addressNow(), target: "_blank", rel: "noopener" }, "Open the page"));
}

// Where the page is published, or else where it is.
function pageAddress() {
  return (document.querySelector("link[rel=canonical]")?.href ?? location.href).split("#")[0];
}

// The state of a link: report.html#text=...&head=L1H0&cut=L1H0.11.6&step=1200. False if it has no field.
function openLink() {
  const fields = new URLSearchParams(location.hash.slice(1));
  if (!["text", "head", "query", "step", ...Object.keys(POSITIONS)].some((name) => fields.has(name))) return false;
  setText(fields.get("text") ?? live.text);

  // Changes of heads and links that this text has; the others are counted.
  const wanted = [...fields].filter(([kind]) => Object.hasOwn(POSITIONS, kind)).map(([kind, value]) => editIn(kind, value));
  const edits = wanted.filter((edit) => edit !== null);
  const query = numberIn(fields.get("query"));
  const [layer, head] = question()?.place ?? [0, 0]; // not that of the address before
  const named = headIn(fields.get("head"));
  update({ edits, query: query < current().words.length ? query : null, layer, head, ...named });
  const step = numberIn(fields.get("step"));
  update({ time: step < live.step ? Math.max(0, steps.findLastIndex((each) => each <= step)) : END });
  if (edits.length < wanted.length) addNote(`${wanted.length - edits.length} of the link's changes do not fit this model or text.`);
  const isFound = { head: named !== null, query: query < current().words.length, step: step === liveStep() };
  for (const [name, found] of Object.entries(isFound)) {
    if (fields.has(name) && !found) addNote(`There is no ${name} ${label(fields.get(name))} here.`);
  }
  return true;
}

// NaN for what is no whole number.
function numberIn(text) {
  return /^\d+$/.test(text ?? "") ? Number(text) : NaN;
}

function headIn(text) {
  return HEADS.find(({ layer, head }) => headName(layer, head) === text) ?? null;
}

function editIn(kind, value) {
  const [place, ...positions] = value.split(".");
  const hasDose = kind === "exchange" && positions.length === 4;
  const names = [...POSITIONS[kind], ...(hasDose ? ["percent"] : [])];
  if (!headIn(place) || positions.length !== names.length || (hasDose && !(numberIn(positions[3]) <= 100))) return null;
  const edit = { kind, ...headIn(place), ...Object.fromEntries(names.map((name, i) => [name, numberIn(positions[i])])) };
  return tokenEdit(reading(current().text), edit) ? edit : null;
}

function pythonCode(text) {
  const edits = tokenEdits(reading(text), state.edits).map(({ kind, layer, head, row, left, right, share }) => {
    if (kind === "remove") return `remove_head(${layer}, ${head})`;
    const sets = [left, right].filter((tokens) => tokens.length).map((tokens) => `[${tokens.join(", ")}]`);
    const dose = share < 1 ? `, share=${share}` : "";
    return `${kind === "cut" ? "cut_link" : "exchange_links"}(${layer}, ${head}, ${row}, ${sets.join(", ")}${dose})`;
  });
  const about = [];
  const isBefore = live.before && state.time !== END;
  if (liveStep() !== live.step && !isBefore) about.push(`# the trained model, step ${live.step}: the weights of the slider's step are in this file only`);
  const reads = live.chosen_tokenizer ? `tokenizer=${JSON.stringify(live.chosen_tokenizer)}, ` : "";
  if (live.type === "float16" || isBefore) about.push("# exact weights: those of this file are rounded to float16");
  return [
    ...about,
    "import torch",
    "from antecedent_lab import cut_link, exchange_links, open_model, remove_head",
    `opened = open_model(${JSON.stringify(isBefore ? live.before : live.source)}, ${reads}device="cpu")`,
    `tokens = torch.tensor([opened.tokenize(${JSON.stringify(text)}).tokens])`,
    `edits = [${edits.join(", ")}]  # layer, head, token, tokens`,
    "logits = opened.model.logits(tokens, edits=edits)[0, -1]",
    "chances = logits.softmax(-1)",
    "for chance, token in zip(*chances.topk(5)):",
    "    print(opened.decode(int(token)), round(float(chance), 2))",
  ].join("\n");
}
