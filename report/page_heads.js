// All heads as a grid of buttons (layers down, heads across), coloured by one score.

const SCORES_OF_SENTENCE = ["weight", "effect"]; // of the selected sentence, not of the test

function drawScoreChoice() {
  const possible = { weight: content.sentences.length > 0 || live, effect: live };
  const names = Object.keys(SCORES).filter((name) => possible[name] ?? content.questions.length);
  const options = names.map((name) => [name, SCORES[name].name]);
  show("score-choice", options.length > 1 ? menu("Colour by", options, state.score, (score) => update({ score })) : null);
}

function drawHeads() {
  const scores = scoresNow();
  const numbers = Array.from({ length: nHead }, (_, head) => element("th", { scope: "col" }, `H${head}`));
  const rows = perHead((layer, head) => headButton(layer, head, scores)).map((buttons, layer) =>
    element("tr", {}, element("th", { scope: "row" }, `L${layer}`), ...buttons.map((button) => element("td", {}, button))),
  );
  const table = element(
    "table",
    { class: nHead > 6 ? "heads small" : "heads", role: "grid", "aria-label": `Heads by ${SCORES[state.score].name}` },
    element("thead", {}, element("tr", {}, element("td"), ...numbers)),
    element("tbody", {}, ...rows),
  );
  const hadFocus = document.getElementById("heads-grid").contains(document.activeElement);
  show("heads-grid", table);
  arrowKeys([...table.querySelectorAll("button")], nHead);
  if (hadFocus) table.querySelector("[aria-pressed=true]").focus();
  show("heads-legend", ...legend(scores));
}

function headButton(layer, head, scores) {
  const value = scores ? scores[layer][head] : null;
  const isSelected = layer === state.layer && head === state.head;
  const isMarked = state.time === END && !SCORES_OF_SENTENCE.includes(state.score) && isSignificant(layer, head);
  const button = element(
    "button",
    {
      type: "button",
      "aria-pressed": String(isSelected),
      tabindex: isSelected ? "0" : "-1",
      "aria-label": headLabel(layer, head, value, isMarked),
      "data-head": headName(layer, head),
      class: isChosen(layer, head) ? "chosen" : null,
    },
    number(value),
    isMarked ? element("i", { class: "dot" }) : null,
  );
  const tint = tintOf(value, scores);
  button.style.setProperty("--hue", tint < 0 ? "var(--orange-tint)" : "var(--blue-tint)");
  button.style.setProperty("--share", `${Math.round(100 * Math.abs(tint))}%`);
  button.addEventListener("click", () => update({ layer, head }));
  return button;
}

function headLabel(layer, head, value, isMarked) {
  const facts = [`layer ${layer} head ${head}`, `${SCORES[state.score].name} ${number(value)}`];
  if (isMarked) facts.push("significant after correction for all heads");
  if (isChosen(layer, head)) facts.push("chosen by the probe");
  return facts.join(", ");
}

// -1: full orange (to the distractor), 0: no colour, 1: full blue (to the antecedent).
function tintOf(value, scores) {
  if (value === null) return 0;
  if (["pronoun_contrast", "effect"].includes(state.score)) return value / Math.max(0.1, ...scores.flat().map(Math.abs));
  const { centre } = SCORES[state.score];
  return Math.max(-1, Math.min(1, (value - centre) / (1 - centre)));
}

function legend(scores) {
  const [left, right] = state.score === "effect" && scores ? comparedWords(sentences.get(state.sentence).text).map((word) => label(word)) : [];
  const key = (kind, text) => element("span", { class: "key" }, element("i", { class: kind }), ` ${text}`);
  const keys = [];
  if (content.questions.length) {
    keys.push(key("ring", "chosen by the probe"), key("dot", `corrected p below ${content.max_p}, trained model`));
  }
  if (left) keys.push(key("swatch blue", `towards “${left}”`), key("swatch orange", `towards “${right}”`));
  if (["accuracy", "pronoun_contrast"].includes(state.score)) {
    keys.push(key("swatch blue", "to the antecedent"), key("swatch orange", "to the distractor"));
  }
  return [meaning(scores), element("span", { class: "keys" }, ...keys)];
}

function meaning(scores) {
  if (state.score === "effect") return effectMeaning();
  if (state.score === "weight") {
    const sentence = sentences.get(state.sentence);
    if (!sentence) return "";
    const [query, target] = [queryOf(sentence), targetOf(sentence)].map((word) => label(sentence.words[word]));
    return `The attention weight of each head from “${query}” to “${target}” in the sentence below.`;
  }
  const { name, means } = SCORES[state.score];
  if (state.time === END) return `${name}: ${means}. Measured on the hold-out “${question().holdout}”.`;
  return `${name}: ${means}. During training: ${scores ? "measured on a small fixed set of dev sentences" : "not measured"}.`;
}
