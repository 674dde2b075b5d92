// Every head: a grid of buttons, layers down and heads across, coloured by a score whose number stands in each cell.

function drawMapControls() {
  const names = content.questions.length ? ["accuracy", "pronoun_contrast", "block_accuracy", "p", "weight"] : ["weight"];
  const options = names
    .filter((name) => name !== "weight" || content.sentences.length)
    .map((name) => [name, SCORES[name].name]);
  show(
    "map-controls",
    ...(options.length > 1 ? [choice("Colour by", "score", options, state.score, (score) => update({ score }))] : []),
  );
}

function drawMap() {
  const values = scoresNow();
  const head = make(
    "tr",
    {},
    make("td"),
    ...Array.from({ length: nHead }, (_, i) => make("th", { scope: "col" }, `H${i}`)),
  );
  const table = make(
    "table",
    { class: nHead > 6 ? "map small" : "map", role: "grid", "aria-label": `Heads by ${SCORES[state.score].name}` },
    make("thead", {}, head),
    make("tbody"),
  );
  for (let layer = 0; layer < nLayer; layer++) {
    const row = make("tr", {}, make("th", { scope: "row" }, `L${layer}`));
    for (let one = 0; one < nHead; one++) row.append(make("td", {}, cell(layer, one, values)));
    table.tBodies[0].append(row);
  }
  const hadFocus = document.getElementById("map").contains(document.activeElement);
  show("map", table);
  roving([...table.querySelectorAll("button")], nHead);
  if (hadFocus) table.querySelector("[aria-pressed=true]").focus();
  show("map-legend", ...legendOf(values));
}

function cell(layer, head, values) {
  const value = values ? values[layer][head] : null;
  const marked = state.time === END && state.score !== "weight" && isSignificant(layer, head);
  const mine = layer === state.layer && head === state.head;
  const button = make(
    "button",
    {
      type: "button",
      "aria-pressed": String(mine),
      tabindex: mine ? "0" : "-1",
      "aria-label": cellLabel(layer, head, value, marked),
      "data-head": headName(layer, head),
      class: isChosen(layer, head) ? "chosen" : null,
    },
    make("span", {}, score(value)),
    make("i", { class: marked ? "dot" : "dot none" }),
  );
  const tint = tintOf(value, values);
  button.style.setProperty("--pole", tint < 0 ? "var(--orange-cell)" : "var(--blue-cell)");
  button.style.setProperty("--part", `${Math.round(100 * Math.abs(tint))}%`);
  button.addEventListener("click", () => update({ layer, head }));
  return button;
}

function score(value) {
  return state.score === "p" ? toldP(value) : told(value);
}

function cellLabel(layer, head, value, marked) {
  const words = [`layer ${layer} head ${head}`, `${SCORES[state.score].name} ${score(value)}`];
  if (marked) words.push("significant after correction for all heads");
  if (isChosen(layer, head)) words.push("chosen by the probe");
  return words.join(", ");
}

// From -1, all orange, by 0, none, to 1, all blue.
function tintOf(value, values) {
  if (value === null) return 0;
  if (state.score === "p") return Math.min(1, Math.max(0, -Math.log10(Math.max(value, 1e-4)) / 4));
  const { centre } = SCORES[state.score];
  if (state.score !== "pronoun_contrast") return Math.max(-1, Math.min(1, (value - centre) / (1 - centre)));
  const reach = Math.max(
    0.1,
    ...values
      .flat()
      .filter((one) => one !== null)
      .map(Math.abs),
  );
  return value / reach;
}

function legendOf(values) {
  const { name, means } = SCORES[state.score];
  const line = state.score === "weight" ? pairLegend() : `${name}: ${means}. ${whereMeasured(values)}`;
  const marks = [];
  if (content.questions.length) {
    marks.push(
      make("span", { class: "key" }, make("i", { class: "dot" }), ` corrected p < ${told(content.max_p).slice(1)}, at the end`),
      make("span", { class: "key" }, make("i", { class: "ring" }), " chosen by the probe"),
    );
  }
  if (["accuracy", "pronoun_contrast"].includes(state.score)) {
    marks.push(
      make("span", { class: "key" }, make("i", { class: "swatch blue" }), " to the antecedent"),
      make("span", { class: "key" }, make("i", { class: "swatch orange" }), " to the distractor"),
    );
  }
  return [line, make("span", { class: "keys" }, ...marks)];
}

function whereMeasured(values) {
  if (state.time === END) return `Measured on the hold-out “${question().holdout}”.`;
  if (values) return "While training: on a small fixed set of sentences of the kind it was trained on.";
  return "Not measured while training: only the end has it.";
}

function pairLegend() {
  const sentence = sentences.get(state.sentence);
  if (!sentence) return "";
  const { labels } = nodesOf(sentence, state.unit);
  const [from, to] = [lookingPlace(sentence), targetPlace(sentence)].map((place) => legible(labels[place]));
  const lost = leavesOut(sentence, state.unit) ? " –: too small to be kept in this file." : "";
  return `The weight each head gives “${to}” at “${from}”, as chosen in the sentence below.${lost}`;
}

function drawFacts() {
  const { layer, head } = state;
  const asked = question();
  const title = [
    make("h3", {}, headName(layer, head)),
    make(
      "p",
      {},
      isChosen(layer, head) ? "the head that the probe chose, on other sentences" : `layer ${layer}, head ${head}`,
    ),
  ];
  if (!asked) return show("facts", ...title);
  const list = make("dl");
  for (const name of ["accuracy", "block_accuracy", "pronoun_contrast", "p"]) {
    const value = asked.heads[name][layer][head];
    list.append(
      make("div", {}, make("dt", {}, SCORES[name].name, make("small", {}, ` ${SCORES[name].short}`)), make("pronoun_contrast", {}, name === "p" ? toldP(value) : told(value, 3))),
    );
  }
  show("facts", ...title, list, make("p", { class: "rule" }, `On the hold-out “${asked.holdout}”, at the end.`));
}

function announceHead() {
  const { layer, head, score: by } = state;
  const asked = question();
  if (!asked) return show("live", `Selected: layer ${layer} head ${head}`);
  const value = by === "weight" ? null : asked.heads[by][layer][head];
  show("live", `Selected: ${cellLabel(layer, head, value, isSignificant(layer, head))}`);
}
