// The lesson, #lesson=1 to 5: large type, the field, the lines, the next word, one question, one button.

// The question of each lesson, and the changes that its button makes, from the facts of `lessonFacts`; the step it opens with.
const LESSONS = [
  {
    ask: () => `This small model has read many stories. It guesses the next word. Which word in your sentence do its
      guesses fit? Change frightened to feared, and look again.`,
  },
  {
    ask: ({ from, left }) => `Each line leads from “${from}” to a word that a head looks at. Choose the heads one after
      the other. Which of them look at “${left}”?`,
  },
  {
    edits: ({ heads }) => [{ kind: "remove", ...heads[0] }],
    act: ({ heads: [{ layer, head }] }) => `Remove ${headName(layer, head)}`,
    ask: ({ heads: [{ layer, head }] }) => `What will the guesses be without head ${headName(layer, head)}? Look. Then put
      it back and remove another one. What can you say about this head?`,
  },
  {
    edits: ({ heads, places }) => heads.map((head) => ({ kind: "exchange", ...head, ...places })),
    act: () => "Exchange the lines",
    ask: ({ from, left, right }) => `What will the guesses fit if the lines from “${from}” to “${left}” and “${right}”
      change places? Look. What does this show that removing a head does not?`,
  },
  {
    time: 0,
    ask: () => `These are the numbers of the model before it has read anything. Press “play training”. When do the
      lines appear?`,
  },
];

// The words that the lesson is about, and the heads of the found head's layer that look at the first noun.
function lessonFacts() {
  const sentence = current();
  const query = queryOf(sentence);
  const [target, other] = live.nouns.map((noun) => sentence.words.indexOf(noun));
  const [layer, chosen] = question()?.place ?? [0, 0];
  const looks = (head) => attentionRow(sentence, query, layer, head)[target] >= 0.5;
  const found = HEADS.filter((place) => place.layer === layer && looks(place.head));
  const heads = found.length ? found : [{ layer, head: chosen }];
  const [from, left, right] = [query, target, other].map((position) => label(sentence.words[position], 16));
  return { from, left, right, heads, places: { query, target, other } };
}

// Apply the changes of a lesson to its own sentence.
function applyChanges(edits) {
  if (current().text !== live.text) setText(live.text);
  changeTo(edits);
}

// Open the lesson of the address, #lesson=2. False if there is none: only the sentence of the stories has two known nouns.
function openLesson() {
  // The state
  const lesson = live?.nouns.length ? Number(/^#lesson=([1-5])$/.exec(location.hash)?.[1] ?? 0) : 0;
  document.documentElement.classList.toggle("lesson", lesson > 0);
  update({ lesson });
  if (!lesson) return false;
  stopPlaying();
  past = [];
  update({ edits: [], time: END });
  setText(live.text);
  const { edits, act, time = END, ask } = LESSONS[lesson - 1];
  const facts = lessonFacts();
  update({ time, ...facts.heads[0] });

  // The question
  const next = lesson < LESSONS.length ? `lesson=${lesson + 1}` : "";
  show(
    "lesson",
    element("h1", {}, element("b", {}, `${lesson} of ${LESSONS.length} `), ask(facts)),
    edits ? button(act(facts), () => applyChanges(edits(facts)), { "data-name": "act" }) : null,
    button(next ? "Next question" : "The whole page", () => (location.hash = next), { "data-name": "next" }),
  );
  document.getElementById("slider").hidden = steps.length === 0 || next !== "";
  scrollTo(0, 0);
  return true;
}
