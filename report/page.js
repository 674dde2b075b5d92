// Starts the page: registers which view depends on which part of the state, and draws everything once.

function drawQuestions() {
  const list = content.questions;
  if (list.length < 2) return;
  const items = list.map(({ question: name, verdict }, i) => [i, `${name.slice(0, 80)}: ${verdict}`]);
  show("questions", menu("Question", items, state.question, selectQuestion));
}

function selectQuestion(i) {
  const { layer, head } = content.questions[i];
  const group = groupNow();
  update({ question: i, layer, head });
  const groups = groupsNow();
  const stays = ["median", "yours"].includes(group) && groups.has(group);
  selectSentence((stays ? groups.get(group) : [...groups.values()][0])?.[0]);
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
if (question()) Object.assign(state, { layer: question().layer, head: question().head });
else state.score = "weight";
drawLive();
selectSentence([...groupsNow().values()][0]?.[0]);
redrawOn("question", showQuestion);
redrawOn("question layer head score time sentence query target edits revision pair", drawHeads);
redrawOn("question sentence", drawGroups);
redrawOn("question sentence layer head time query edits revision", drawCards);
redrawOn("sentence layer head time score query target edits revision", drawSentence);
redrawOn("question layer head time", drawCharts);
for (const draw of [drawQuestions, drawScoreChoice, drawSlider]) draw();
for (const { draw } of views) draw();
if (!openLink()) openNamed();
addEventListener("hashchange", () => {
  if (openLink()) return;
  if (live && !location.hash) setText(live.text);
  openNamed();
});
