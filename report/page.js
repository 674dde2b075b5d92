// Starts the page: registers which view depends on which part of the state, and draws everything once.

function drawQuestions() {
  if (content.findings.length < 2) return;
  const items = content.findings.map(({ question: name, verdict }, i) => [i, `${name.slice(0, 80)}: ${verdict}`]);
  show("questions", menu("Question", items, state.question, selectQuestion));
}

// The head and a score of the question, and its sentences; the user's own, or the same kind of group, stay.
function selectQuestion(i) {
  const before = groupNow();
  const [layer, head] = content.findings[i].place;
  const names = [...measuresOf(content.findings[i]), ...Object.keys(OF_SENTENCE)];
  update({ question: i, layer, head, score: names.includes(state.score) ? state.score : names[0] });
  const groups = groupsNow();
  const stays = (name) => name === before ? before === "yours" : before && groupOf(before).question && groupOf(name).title === groupOf(before).title;
  selectSentence(groups.get([...groups.keys()].find(stays) ?? [...groups.keys()][0])?.[0]);
}

function showQuestion() {
  for (const block of document.querySelectorAll("[data-question]")) {
    block.hidden = Number(block.dataset.question) !== state.question;
  }
}

document.documentElement.classList.add("scripts");
const largerType = button("Larger type", () => {
  const isLarger = document.documentElement.classList.toggle("larger");
  largerType.setAttribute("aria-pressed", String(isLarger));
}, { "aria-pressed": "false" });
show("type-size", largerType);
document.getElementById("explorer").hidden = sentences.size === 0 && !question() && !live;
document.getElementById("attention").hidden = content.sentences.length === 0 && !live;
document.getElementById("training").hidden = !training;
document.getElementById("slider").hidden = steps.length === 0;
if (question()) [state.layer, state.head, state.score] = [...question().place, measuresOf(question())[0] ?? "weight"];
drawLive();
selectSentence([...groupsNow().values()][0]?.[0]);
redrawOn("question", showQuestion);
redrawOn("question layer head score time sentence query target edits revision pair", drawHeads);
redrawOn("question sentence", drawGroups);
redrawOn("question sentence layer head time query edits revision", drawCards);
redrawOn("sentence layer head time score query target edits revision", drawSentence);
redrawOn("question layer head time", drawCharts);
redrawOn("question", drawScoreChoice);
for (const draw of [drawQuestions, drawSlider]) draw();
for (const { draw } of views) draw();
if (!openLink()) openNamed();
addEventListener("hashchange", () => {
  if (openLink()) return;
  if (live && !location.hash) setText(live.text);
  openNamed();
});
