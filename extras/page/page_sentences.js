// The sentences that the file holds: worked examples, tested texts, the user's own.

// Choose one by its id, as report.html#yours-1 does. Return whether there is one.
function selectSentence(id) {
  const stored = content.sentences.find((each) => each.id === id);
  if (!stored) return false;
  if (live) setText(stored.text);
  update({ sentence: live ? state.sentence : stored, query: stored.query, row: null });
  return true;
}

function drawSentences() {
  const from = (stored) => quoted(stored.query ?? stored.words.length - 1, stored);
  const names = content.sentences.map((stored) => [stored.id, `${stored.id}, from ${from(stored)}: ${label(stored.text, 80)}`]);
  const same = content.sentences.filter(({ text }) => text === state.sentence.text);
  const shown = same.find(({ query }) => query === state.query) ?? same[0];
  if (!shown) names.unshift(["–", "–"]);
  show(live ? "stored" : "live-chips", names.length > 1 && menu("Sentence", names, shown?.id ?? "–", selectSentence));
}
