// What a head looks at: small pictures of every sentence of a group side by side, and one of them large.

const ROW = 28; // pixels of a word's row in the large view, as in page.css
const MANY = 64; // words; of a longer text one word's lines are drawn at a time
const RANKED = 10; // links in the list
const FEW_NOTES = 3; // seen at once
const GROUPS = {
  cells: [
    "The four cells",
    "Only the pronoun and the order change. " +
      "A head that follows a place, or has a taste for one noun, is right in two of the four.",
  ],
  twins: [
    "Tired and soft",
    "At “it” both texts are still the same, and so are a causal model's rows; only the adjective tells them apart.",
  ],
  median: [
    "The median block",
    "Of all blocks of the hold-out, the one whose DD is the median for the chosen head: " +
      "a rule chose these four, not a person.",
  ],
  own: ["Your sentences", "What is meant here is not known to the page, so the words most looked at are shown."],
};

function groupsNow() {
  const asked = question();
  const named = asked ? asked.sentences.map((id) => sentences.get(id)).filter(Boolean) : [];
  // A head that one question chose may be looked at in the sentences of all; a median block is of its own question.
  const others = content.sentences.filter((one) => !named.includes(one) && (one.group !== "median" || !asked));
  const groups = new Map();
  for (const one of [...named, ...others]) groups.set(one.group, [...(groups.get(one.group) ?? []), one]);
  return groups;
}

function drawGroups() {
  const names = [...groupsNow().keys()];
  const options = names.map((name) => [name, (GROUPS[name] ?? [name])[0]]);
  show("view-groups", ...(names.length > 1 ? [choice("Sentences", "group", options, state.group, chooseGroup)] : []));
  const nothing = "This page holds no sentence for this question.";
  show("view-rule", state.group === null ? nothing : (GROUPS[state.group] ?? ["", ""])[1]);
}

// Beside the small pictures: whether they move with the slider.
function drawFilmNote() {
  const one = sentences.get(state.sentence);
  show("view-film", one ? lineNote(one) : "");
}

function chooseGroup(group) {
  chooseSentence((groupsNow().get(group) ?? [])[0] ?? null);
}

function chooseSentence(sentence) {
  const { group, id } = sentence ?? { group: null, id: null };
  update({ group, sentence: id, focus: null, hover: null, target: null });
}

// The small pictures

function drawStrip() {
  const members = groupsNow().get(state.group) ?? [];
  const strip = document.getElementById("strip");
  const place = [...strip.children].indexOf(document.activeElement);
  show("strip", ...members.map(miniCard));
  if (place >= 0 && strip.children[place]) strip.children[place].focus();
}

function miniCard(sentence) {
  const pairs = weighed(sentence);
  const looks = legible(sentence.words[askedPlace(sentence, "word")]);
  const weights = pairs.map((one) => `${one.name} ${told(one.weight)}`).join(", ");
  const label = `${brief(sentence.text)} At “${looks}”: ${weights}`;
  const card = make(
    "button",
    {
      type: "button",
      class: "mini",
      "aria-pressed": String(sentence.id === state.sentence),
      "aria-label": label,
    },
    make("span", { class: "mini-text" }, brief(sentence.text)),
    miniPicture(sentence),
    ...pairs.map(bar),
  );
  card.addEventListener("click", () => chooseSentence(sentence));
  return card;
}

function brief(text) {
  const letters = Array.from(text.slice(-400));
  return letters.length > 110 ? `…${letters.slice(-108).join("")}` : letters.join("");
}

// The two weights that matter: on what is meant and on the other; where that is not known, the two largest.
function weighed(sentence) {
  const row = rowOf(sentence, "word", askedPlace(sentence, "word"));
  const summed = (places, role) => ({
    name: legible(places.map((place) => sentence.words[place]).join(", ")),
    role,
    weight: places.reduce((sum, place) => sum + row[place], 0),
  });
  if (sentence.antecedents.length)
    return [summed(sentence.antecedents, "meant"), summed(sentence.distractors, "other")];
  return largest(row, 2, 1).map((place) => summed([place], "plain"));
}

// The places of the n largest of a row, from a place on.
function largest(row, n, from = 0) {
  const places = Array.from(row.keys())
    .slice(from)
    .filter((place) => row[place] > 0);
  return places.sort((a, b) => row[b] - row[a]).slice(0, n);
}

function bar({ name, weight, role }) {
  const filled = make("i", { class: role });
  filled.style.setProperty("width", `${(100 * weight).toFixed(1)}%`);
  return make(
    "span",
    { class: "bar" },
    make("span", { class: "bar-name" }, name),
    make("span", { class: "bar-track" }, filled),
    make("span", { class: "bar-value" }, told(weight)),
  );
}

function miniPicture(sentence) {
  const asked = askedPlace(sentence, "word");
  const row = rowOf(sentence, "word", asked);
  const n = sentence.words.length;
  const step = Math.min(14, 238 / n);
  const at = (place) => (place + 0.5) * step + 1;
  const picture = shape("svg", { viewBox: `0 0 220 ${Math.max(60, n * step + 2)}`, "aria-hidden": "true" });
  for (const place of largest(row, 24)) {
    if (row[place] >= 0.005)
      picture.append(link(80, at(asked), 140, at(place), row[place], roleOf(sentence, "word", place)));
  }
  // Where words stand too close to be written, those that matter are.
  const near = step >= 11 ? sentence.words.map((_, place) => place) : [];
  const shown = new Set([...near, ...sentence.antecedents, ...sentence.distractors]);
  for (const place of near.length ? near : [asked])
    picture.append(miniWord(sentence, place, 76, at(place), place === asked ? "looks" : "idle"));
  for (const place of shown.size ? shown : largest(row, 2, 1)) {
    picture.append(miniWord(sentence, place, 144, at(place), roleOf(sentence, "word", place)));
  }
  return picture;
}

function miniWord(sentence, place, x, y, kind) {
  const text = Array.from(legible(sentence.words[place]));
  return shape(
    "text",
    { x, y: y + 3.7, class: kind, "text-anchor": x < 110 ? "end" : "start" },
    text.length > 12 ? text.slice(0, 11).join("") + "…" : text.join(""),
  );
}

// The large picture: its lists are built once for a sentence, its lines whenever something moves.

let large = null; // {sentence, nodes, looks, seen, svg, ranked, list: what scrolls}: what is drawn on

function drawLarge() {
  const sentence = sentences.get(state.sentence);
  if (!sentence) {
    large = null;
    return show("large");
  }
  const nodes = nodesOf(sentence, state.unit);
  const looks = listOf(nodes, "Words that look", (place) => update({ focus: place, hover: null }));
  const seen = listOf(nodes, "Words looked at", (place) => update({ target: place }));
  // A hundred units wide whatever its width in pixels, so that the lines fit a window or a sheet of any size.
  const height = nodes.labels.length * ROW;
  const svg = shape("svg", {
    class: "lines",
    "aria-hidden": "true",
    height,
    viewBox: `0 0 100 ${height}`,
    preserveAspectRatio: "none",
  });
  const frame = make("div", { class: "frame" }, looks.list, svg, seen.list);
  large = {
    sentence,
    nodes,
    looks: looks.items,
    seen: seen.items,
    svg,
    ranked: make("div", { class: "ranked" }),
    list: frame,
  };
  looks.items.forEach((item, place) =>
    item.addEventListener("pointerenter", (event) => {
      if (event.pointerType === "mouse") update({ hover: place });
    }),
  );
  looks.list.addEventListener("pointerleave", () => update({ hover: null }));
  show("large", aboutSentence(sentence), lineControls(sentence), make("div", { class: "pair" }, frame, large.ranked));
  drawLines();
  // A long text opens where it is asked.
  frame.scrollTop = (askedPlace(sentence, state.unit) + 1) * ROW - frame.clientHeight;
}

function listOf(nodes, label, choose) {
  const list = make("div", {
    class: label === "Words that look" ? "looks" : "seen",
    role: "listbox",
    "aria-label": label,
  });
  const items = nodes.labels.map((text) =>
    make(
      "div",
      { role: "option", tabindex: "-1", "aria-selected": "false" },
      make("span", { class: "word" }, legible(text)),
      make("span", { class: "weight" }),
    ),
  );
  items.forEach((item, place) => item.addEventListener("click", () => choose(place)));
  roving(items, 1, choose);
  list.append(...items);
  return { list, items };
}

function aboutSentence(sentence) {
  const about = make(
    "div",
    { class: "about" },
    make("blockquote", { dir: "auto" }, sentence.text.length > 1200 ? brief(sentence.text) : sentence.text),
    make(
      "p",
      { class: "rule" },
      make("bdi", {}, sentence.title.slice(0, 300)),
      sentence.item ? ` (line ${sentence.item.line} of items.jsonl)` : "",
    ),
  );
  const likely = sentence.next.filter(([, chance]) => chance >= 0.005);
  if (likely.length) {
    const words = likely.map(([word, chance]) => `${legible(word)} ${told(chance)}`).join(", ");
    about.append(make("p", { class: "rule" }, `What the model expects next: ${words}`));
  }
  about.append(...notesOf(sentence));
  return about;
}

// What the linter says of the text; in a long one it says the same of many pronouns.
function notesOf({ notes }) {
  const lines = [...new Set(notes)].map((note) => make("p", { class: "note" }, make("bdi", {}, note.slice(0, 1000))));
  if (lines.length <= FEW_NOTES) return lines;
  const more = lines.slice(FEW_NOTES);
  const summary = make("summary", {}, `${more.length} more notes`);
  return [...lines.slice(0, FEW_NOTES), make("details", {}, summary, ...more)];
}

function lineControls(sentence) {
  const controls = make("div", { class: "controls" });
  controls.append(
    choice(
      "Level",
      "unit",
      [
        ["word", "words"],
        ["piece", "pieces"],
      ],
      state.unit,
      (unit) => update({ unit, focus: null, hover: null, target: null }),
    ),
  );
  const out = make("output", {}, told(state.threshold));
  const range = make("input", {
    type: "range",
    id: "threshold",
    min: "0",
    max: "0.5",
    step: "0.01",
    value: state.threshold,
  });
  range.addEventListener("input", () => {
    out.textContent = told(Number(range.value));
    update({ threshold: Number(range.value) });
  });
  controls.append(make("label", { class: "menu" }, make("span", {}, "Hide lines below"), range, out));
  if (nodesOf(sentence, state.unit).labels.length <= MANY) {
    const box = make("input", { type: "checkbox", id: "all", checked: state.all });
    box.addEventListener("change", () => update({ all: box.checked }));
    controls.append(make("label", { class: "menu" }, box, make("span", {}, "all words' lines")));
  }
  return controls;
}

function drawLines() {
  if (!large || large.sentence.id !== state.sentence) return;
  const { sentence, nodes, svg } = large;
  const from = lookingPlace(sentence);
  const many = state.all && state.hover === null && nodes.labels.length <= MANY;
  const links = many ? nodes.labels.flatMap((_, place) => linksFrom(sentence, place)) : linksFrom(sentence, from);
  const at = (place) => (place + 0.5) * ROW;
  // Weak lines first, so that the strong ones lie above them.
  links.sort((a, b) => a.weight - b.weight);
  svg.replaceChildren(
    ...links.map((one) => link(0, at(one.from), 100, at(one.to), one.weight, roleOf(sentence, state.unit, one.to))),
  );
  markWords(from, many);
  drawRanked(links.reverse(), nodes);
}

function linksFrom(sentence, from) {
  const row = rowOf(sentence, state.unit, from);
  const places = [...row.keys()].filter((to) => row[to] > 0 && row[to] >= state.threshold);
  return places.map((to) => ({ from, to, weight: row[to] }));
}

function markWords(from, many) {
  const { sentence, looks, seen } = large;
  const row = rowOf(sentence, state.unit, from);
  const target = targetPlace(sentence);
  const asked = askedPlace(sentence, state.unit);
  const questioned = new Set(sentence.asked.map((word) => placeOf(sentence, state.unit, word)));
  const focus = state.focus ?? asked;
  looks.forEach((item, place) => {
    item.className = place === from ? "on" : many ? "" : "off";
    item.setAttribute("aria-selected", String(place === focus));
    item.tabIndex = place === focus ? 0 : -1;
    item.lastChild.textContent = questioned.has(place) ? "asked" : "";
  });
  seen.forEach((item, place) => {
    const role = roleOf(sentence, state.unit, place);
    item.className = `${role} ${row[place] >= state.threshold || many ? "" : "off"}`;
    item.setAttribute("aria-selected", String(place === target));
    item.tabIndex = place === target ? 0 : -1;
    const shown = place <= from && row[place] >= state.threshold && row[place] > 0 ? told(row[place]) : "";
    item.lastChild.textContent = [shown, { meant: "meant", other: "not meant" }[role]].filter(Boolean).join(" ");
  });
}

// The strongest lines as a list; each leads to the word that it looks at.
function drawRanked(links, { labels }) {
  const entry = ({ from, to, weight }, place) => {
    const button = make(
      "button",
      { type: "button", tabindex: place ? "-1" : "0", class: roleOf(large.sentence, state.unit, to) },
      make("bdi", {}, legible(labels[from])),
      " → ",
      make("bdi", {}, legible(labels[to])),
      " ",
      make("b", {}, told(weight)),
    );
    button.addEventListener("click", () => leadTo(to));
    return button;
  };
  const buttons = links.slice(0, RANKED).map(entry);
  roving(buttons, 1);
  const rest = links.length > RANKED ? [make("p", { class: "rule" }, `and ${links.length - RANKED} weaker`)] : [];
  large.ranked.replaceChildren(
    make("h3", {}, `Strongest lines of ${headName(state.layer, state.head)}`),
    links.length
      ? make("ol", {}, ...buttons.map((button) => make("li", {}, button)))
      : make("p", {}, "No line is as strong as the slider asks for."),
    ...rest,
  );
}

function leadTo(place) {
  const { list } = large;
  update({ target: place });
  list.scrollTop = (place + 0.5) * ROW - list.clientHeight / 2;
}

function lineNote(sentence) {
  if (state.time === END) return "";
  if (!hasFilm(sentence)) return "Of this sentence only the end was kept: these lines do not move with the slider.";
  return `These lines are those of step ${emergence.film.steps[frameAt(state.time)]}.`;
}
