// The address that holds the state of the page, and the Python that makes the same changes.

const FOLLOW = 300; // milliseconds after the last change
let followTimer = null;

// Beside the page's name: a link to what is shown, and a picture of it.
function drawTools() {
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(addressNow());
      addNote("The link is copied. It opens this sentence with these changes.");
    } catch {
      part("share").open = true; // where the browser does not copy, the link stands there
      part("share").scrollIntoView();
    }
  };
  // The second click of a double one would hit the button that moved into the place of the first.
  part("live-actions").addEventListener("click", (event) => event.detail > 1 && event.stopPropagation(), true);
  part("tools").prepend(button("Copy link", copy), button("Save picture", savePng, "save-png", { id: "save-png" }));
}

function drawShare() {
  if (!part("share").open) return;
  const address = element("input", { type: "text", readonly: true, id: "live-link", "aria-label": "Link to this state" });
  address.value = addressNow();
  address.addEventListener("focus", () => address.select());
  show(
    "live-share",
    element("p", { class: "actions" }, address, button("Save as SVG", saveSvg, "save-svg", { id: "save-svg" })),
    remark("The part from # on works with every copy of this file. With #embed& in the place of # it shows lines and next words only, for a frame in another page. The same in Python, in the folder of the program:"),
    element("pre", { tabindex: 0 }, element("code", { id: "live-code" }, pythonCode())),
  );
}

function addressNow() {
  const fields = new URLSearchParams(isLesson() ? { lesson: state.card } : {});
  fields.set("text", field.value);
  fields.set("head", headName(state));
  if (state.query !== null) fields.set("query", state.query);
  for (const edit of state.edits) {
    fields.append(edit.kind, [headName(edit), ...POSITIONS[edit.kind].map((name) => edit[name])].join("."));
  }
  if (state.time !== END) fields.set("step", steps[state.time]);
  return `${pageAddress()}#${fields}`;
}

// The address follows the state, so that a reload keeps it, without an entry in the history; a frame keeps its own.
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
  const about = `Antecedent: ${content.run.name}, ${stepName()}, head ${headName(state)}. `;
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
  const wanted = [...fields].filter(([kind]) => Object.hasOwn(POSITIONS, kind));
  const edits = wanted.map(([kind, value]) => editIn(kind, value)).filter(Boolean);
  const place = headIn(fields.get("head"));
  const query = numberIn(fields.get("query"));
  const hasWord = query < state.sentence.words.length;
  const step = numberIn(fields.get("step"));
  const time = steps.length && step < live.step ? Math.max(0, steps.findLastIndex((each) => each <= step)) : END;
  update({ edits, query: hasWord ? query : null, time, ...placeOf(state.question), ...place }); // not the head of before
  const lost = wanted.length - edits.length;
  if (lost) addNote(`Left out, because they do not fit this model or text: ${lost} of the link's changes.`);
  const isFound = { head: place, query: hasWord, step: step === liveStep() };
  for (const [name, found] of Object.entries(isFound)) {
    if (fields.has(name) && !found) addNote(`There is no ${name} ${label(fields.get(name))} here.`);
  }
  return true;
}

// NaN for what is no whole number.
function numberIn(text) {
  return /^\d+$/.test(text) ? Number(text) : NaN;
}

function headIn(text) {
  return HEADS.find((place) => headName(place) === text);
}

// The edit that a field of the address asks for; null if this model or text has none such.
function editIn(kind, value) {
  const [place, ...positions] = value.split(".");
  const numbers = positions.map(numberIn);
  if (!headIn(place) || numbers.length !== POSITIONS[kind].length) return null;
  const [query, target, other] = numbers;
  const edit = { kind, ...headIn(place), query, target, other };
  return tokenEdit(edit) && edit;
}

function pythonCode() {
  const edits = tokenEdits(state.edits).map(({ kind, layer, head, row, left, right }) => {
    if (kind === "remove") return `remove_head(${layer}, ${head})`;
    if (kind === "cut") return `cut_link(${layer}, ${head}, ${row}, [${left.join(", ")}])`;
    return `exchange_links(${layer}, ${head}, ${row}, [${left.join(", ")}], [${right.join(", ")}])`;
  });
  const about = [];
  const isBefore = live.before && state.time !== END;
  if (liveStep() !== live.step && !isBefore && state.here === null) about.push(`# the trained model, step ${live.step}: the weights of the slider's step are in this file only`);
  const reads = live.chosen_tokenizer ? `tokenizer=${JSON.stringify(live.chosen_tokenizer)}, ` : "";
  if (state.here !== null) about.push("# the model of the file: that which was trained in the page is in the page only");
  if (live.type === "float16" || isBefore) about.push("# exact weights: those of this file are rounded to float16");
  return [
    ...about,
    "import torch",
    "from antecedent_lab import cut_link, exchange_links, open_model, remove_head",
    `opened = open_model(${JSON.stringify(isBefore ? live.before : live.source)}, ${reads}device="cpu")`,
    `tokens = torch.tensor([opened.tokenize(${JSON.stringify(state.sentence.text)}).tokens])`,
    `edits = [${edits.join(", ")}]  # layer, head, token, tokens`,
    "logits = opened.model.logits(tokens, edits=edits)[0, -1]",
    "chances = logits.softmax(-1)",
    "for chance, token in zip(*chances.topk(5)):",
    "    print(opened.decode(int(token)), round(float(chance), 2))",
  ].join("\n");
}
