// The sentences that the file holds: worked examples, tested texts, the user's own.

// Show a stored sentence: in the field, or without a live model as it was stored.
function selectSentence(sentence) {
  if (live) setText(sentence.text);
  update({ sentence: live ? "live-1" : sentence.id, query: sentence.query, row: null });
}

function drawSentences() {
  const names = content.sentences.map(({ id, text }) => [id, `${id}: ${label(text, 80)}`]);
  const shown = content.sentences.find(({ text }) => text === current()?.text);
  if (!shown) names.unshift([null, "–"]);
  const list = menu("Sentence", names, shown?.id ?? null, (id) => selectSentence(sentences.get(id)));
  show(live ? "stored" : "live-chips", names.length > 1 ? list : null);
}
