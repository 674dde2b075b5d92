// Starts the page: draws what stays, then all views of the state, again after each change.

function drawQuestions() {
  if (content.findings.length < 2) return;
  const items = content.findings.map(({ question: name, verdict }, i) => [i, `${label(name, 80)}: ${verdict}`]);
  const select = (question) => update({ question, ...placeOf(question), row: null });
  show("questions", menu("Question", items, state.question, select));
}

function showQuestion() {
  for (const block of document.querySelectorAll("[data-question]")) {
    block.hidden = Number(block.dataset.question) !== state.question;
  }
}

// What the address asks for: a lesson, a state, a stored sentence, or the page as it opens.
function openAddress() {
  const { hash } = location;
  const wasLesson = isLesson();
  const card = live && lessonCard();
  document.documentElement.classList.toggle("embed", /[#&]embed(&|$)/.test(hash));
  document.documentElement.classList.toggle("lesson", Boolean(card));
  stopPlaying();
  past = [];
  update({ edits: [], time: END, guess: {}, card: card || state.card });
  const isLink = live && openLink();
  if (card) return scrollTo(0, 0); // with the sentence of the address, or that which is there
  if (isLink) return;
  if (live && !wasLesson && /^(#embed)?$/.test(hash)) setText(live.text);
  if (selectSentence(hash.slice(1))) scrollTo(0, 0); // report.html#yours-1
}

document.documentElement.classList.add("scripts");
part("live").hidden = !state.sentence && !live;
drawQuestions();
drawSlider();
if (live) openField();
if (live) drawTools();
if (live?.training) drawTraining();
state.width = part("live-lines").clientWidth || state.width;
views.push(showQuestion);
if (state.sentence) views.push(drawLines, drawAnswers, drawSentences);
if (live) views.push(drawChips, drawInvitation, drawFirst, drawChanges, drawSource, searchLines);
if (live) below.push(drawHow, drawCard, drawShare);
openAddress();
if (live) views.push(followState);
addEventListener("hashchange", openAddress);
const resized = new ResizeObserver(([{ contentRect: { width } }]) => {
  if (!width || width === state.width) return;
  state.width = width;
  drawLines();
});
resized.observe(part("live-lines"));
