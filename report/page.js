// Starts the page: registers which view depends on which part of the state, and draws everything once.

function drawQuestions() {
  if (content.findings.length < 2) return;
  const items = content.findings.map(({ question: name, verdict }, i) => [i, `${name.slice(0, 80)}: ${verdict}`]);
  show("questions", menu("Question", items, state.question, selectQuestion));
}

// The head, the first score and the first sentences of a question.
function selectQuestion(i) {
  const [layer, head] = content.findings[i].place;
  update({ question: i, layer, head, score: measuresOf(content.findings[i])[0] ?? "weight" });
  selectSentence();
}

function showQuestion() {
  for (const block of document.querySelectorAll("[data-question]")) {
    block.hidden = Number(block.dataset.question) !== state.question;
  }
}

document.documentElement.classList.add("scripts");
document.getElementById("explorer").hidden = sentences.size === 0 && !question() && !live;
document.getElementById("attention").hidden = content.sentences.length === 0 && !live;
document.getElementById("training").hidden = !training;
document.getElementById("slider").hidden = steps.length === 0;
drawLive();
if (question()) selectQuestion(0);
else selectSentence();
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
