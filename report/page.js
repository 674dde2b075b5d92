// The page put together: what is chosen, what follows from it, and which part is drawn again when something changes.

const MOST_RADIOS = 8; // questions; more stand in a menu

function drawQuestions() {
  const options = content.questions.map((one, place) => [place, [one.name, make("small", {}, ` ${one.verdict}`)]]);
  if (options.length < 2) return show("questions");
  const pick = (place) => chooseQuestion(Number(place));
  const plain = content.questions.map((one, place) => [place, `${one.name.slice(0, 80)}: ${one.verdict}`]);
  show(
    "questions",
    options.length > MOST_RADIOS
      ? menu("Question", plain, state.question, pick)
      : choice("Question", "question", options, state.question, pick),
  );
}

function chooseQuestion(place) {
  const { layer, head } = content.questions[place];
  update({ question: place, layer, head });
  const groups = groupsNow();
  // Its own sentences come first; whoever reads medians or texts of their own goes on with those.
  const stays = ["median", "own"].includes(state.group) && groups.has(state.group);
  chooseGroup(stays ? state.group : ([...groups.keys()][0] ?? null));
}

function showQuestion() {
  for (const block of document.querySelectorAll("[data-question]")) {
    block.hidden = Number(block.dataset.question) !== state.question;
  }
}

function hideWhatIsEmpty() {
  document.getElementById("explorer").hidden = content.sentences.length === 0 && !question();
  document.getElementById("view").hidden = content.sentences.length === 0;
  document.getElementById("time").hidden = steps.length === 0;
  document.getElementById("timeline").hidden = steps.length === 0;
}

// The sentence that the address names, as in report.html#own-1.
function wanted() {
  const sentence = sentences.get(location.hash.slice(1));
  return sentence ? [sentence] : null;
}

function begin() {
  document.documentElement.classList.add("scripts");
  hideWhatIsEmpty();
  if (question()) Object.assign(state, { layer: question().layer, head: question().head });
  else state.score = "weight";
  const first = wanted() ?? [...groupsNow().values()][0];
  if (first) Object.assign(state, { group: first[0].group, sentence: first[0].id });
  redraw("question", showQuestion);
  redraw("score", drawMapControls);
  redraw("question group", drawGroups);
  redraw("question group sentence layer head time", drawStrip);
  redraw("sentence time", drawFilmNote);
  redraw("sentence unit", drawLarge);
  redraw("layer head time threshold all focus hover target", drawLines);
  redraw("question layer head score time sentence unit focus hover target", drawMapOf);
  redraw("question layer head", drawFacts);
  redraw("layer head", announceHead);
  redraw("question layer head", drawCurves);
  redraw("time", drawCursor);
  redraw("time", drawStep);
  drawQuestions();
  drawTimeline();
  drawWhy();
  for (const { draw } of parts) if (draw !== announceHead) draw();
}

let mapOf = ""; // what the map was last drawn of

// The sentence moves the map only where the map shows its weights.
function drawMapOf() {
  const { question: asked, layer, head, score: by, time, sentence, unit, focus, hover, target } = state;
  const now = JSON.stringify([
    asked,
    layer,
    head,
    by,
    time,
    ...(by === "weight" ? [sentence, unit, focus, hover, target] : []),
  ]);
  if (now !== mapOf) drawMap();
  mapOf = now;
}

begin();
