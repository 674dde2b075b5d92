// Starts the page: registers which view depends on which part of the state, and draws everything once.

function drawQuestions() {
  if (content.findings.length < 2) return;
  const items = content.findings.map(({ question: name, verdict }, i) => [i, `${name.slice(0, 80)}: ${verdict}`]);
  show("questions", menu("Question", items, state.question, selectQuestion));
}

function selectQuestion(i) {
  const [layer, head] = content.findings[i].place;
  update({ question: i, layer, head, row: null });
}

function showQuestion() {
  for (const block of document.querySelectorAll("[data-question]")) {
    block.hidden = Number(block.dataset.question) !== state.question;
  }
}

// What the address asks for: a lesson, a state, a stored sentence, or the page as it opens.
function openAddress() {
  const wasLesson = isLesson();
  const card = live ? lessonCard() : 0;
  document.documentElement.classList.toggle("embed", /[#&]embed(&|$)/.test(location.hash));
  document.documentElement.classList.toggle("lesson", card > 0);
  stopPlaying();
  past = [];
  update({ edits: [], time: END, guess: {}, card: card || state.card });
  const isLink = live && openLink();
  if (card) return scrollTo(0, 0); // with the sentence of the address, or that which is there
  if (isLink) return;
  if (live && !wasLesson && /^(#embed)?$/.test(location.hash)) setText(live.text);
  const named = sentences.get(location.hash.slice(1)); // report.html#yours-1
  if (!named) return;
  selectSentence(named);
  scrollTo(0, 0);
}

document.documentElement.classList.add("scripts");
document.getElementById("live").hidden = sentences.size === 0 && !live;
state.sentence = content.sentences[0]?.id ?? null;
drawLive();
if (question()) selectQuestion(0);
redrawOn("question", showQuestion);
for (const draw of [drawQuestions, drawSlider]) draw();
state.width = document.getElementById("live-lines").clientWidth || state.width;
for (const { draw } of views) draw();
openAddress();
if (live) redrawOn("sentence query edits revision layer head time card", followState);
addEventListener("hashchange", openAddress);
const resized = new ResizeObserver(([{ contentRect }]) => contentRect.width && update({ width: contentRect.width }));
resized.observe(document.getElementById("live-lines"));
