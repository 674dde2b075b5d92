// The sentences that the file holds, in groups side by side: one block, real passages, the user's own.

// The sentences of the question first, then those that belong to no other question.
function groupsNow() {
  const first = (question()?.sentences ?? []).map((id) => sentences.get(id));
  const isShared = (sentence) => !content.groups[sentence.group].question;
  const others = content.sentences.filter((sentence) => !first.includes(sentence) && isShared(sentence));
  return Map.groupBy([...first, ...others], ({ group }) => group);
}

// Show a stored sentence above: in the field, or without a live model as it was stored.
function selectSentence(sentence) {
  if (live) setText(sentence.text);
  update({ sentence: live ? "live-1" : sentence.id, query: sentence.query[0] ?? null, row: null });
}

function drawGroups() {
  const groups = groupsNow();
  if (!groups.has(state.group)) state.group = [...groups.keys()][0];
  const options = [...groups.keys()].map((name) => [name, content.groups[name].title]);
  show("group-choice", options.length > 1 ? menu("Sentences", options, state.group, (group) => update({ group })) : null);
  show("group-note", groups.size ? content.groups[state.group].note : "This page has no sentence for this question.");
  show("cards", ...(groups.get(state.group) ?? []).map(card));
}

function card(sentence) {
  const characters = Array.from(sentence.text.slice(-400));
  const text = characters.length > 110 ? `…${characters.slice(-108).join("")}` : characters.join("");
  const isShown = String(sentence.text === current()?.text);
  const attributes = { class: `card ${hueOf(state.layer, state.head)}`, "aria-pressed": isShown, "data-name": sentence.id };
  const select = button("", () => selectSentence(sentence), attributes);
  select.append(element("span", { class: "card-text" }, text), smallPicture(sentence, state.layer, state.head));
  for (const weight of mainWeights(sentence)) select.append(element("b", {}, weight));
  return select;
}

// The weights on antecedent and distractor; where these are unknown, the two largest.
function mainWeights(sentence) {
  const weights = attentionRow(sentence, queryOf(sentence));
  const known = [sentence.antecedents, sentence.distractors];
  const shown = sentence.antecedents.length ? known : largest(weights, 2).map((position) => [position]);
  return shown.map((positions) => {
    const names = label(positions.map((position) => sentence.words[position]).join(", "));
    return `${names} ${number(positions.reduce((total, position) => total + weights[position], 0))}`;
  });
}
