// The sentences that the file holds: worked examples, tested texts, the user's own.

function selectSentence(sentence) {
  if (live) setText(sentence.text);
  update({ sentence: live ? "live-1" : sentence.id, query: sentence.query, row: null });
}

function drawSentences() {
  const from = (stored) => quoted(stored, stored.query ?? stored.words.length - 1);
  const names = content.sentences.map((stored) => [stored.id, `${stored.id}, from ${from(stored)}: ${label(stored.text, 80)}`]);
  const same = content.sentences.filter(({ text }) => text === current()?.text);
  const shown = same.find(({ query }) => query === state.query) ?? same[0];
  if (!shown) names.unshift([null, "–"]);
  const list = menu("Sentence", names, shown?.id ?? null, (id) => selectSentence(sentences.get(id)));
  show(live ? "stored" : "live-chips", names.length > 1 ? list : null);
}
