// How well each head finds the antecedent while a model learns: as `point` of probe/by_attention.py, on the same sentences.

const N_FLIPS = 1000; // N_SIGN_FLIPS there is 400: with so few the bar of the verb was .9 or 1, by the random signs

// Items in rows of `length` tokens: {tokens, positions, end, items: [item, its first place]}.
function packItems(items, length) {
  const rows = [];
  for (const item of items) {
    const size = item.tokens.length;
    if (!rows.length || rows.at(-1).end + size > length) rows.push({ tokens: new Uint16Array(length), positions: new Uint16Array(length), end: 0, items: [] });
    const row = rows.at(-1);
    row.tokens.set(item.tokens, row.end);
    row.positions.set([...item.tokens.keys()], row.end);
    row.items.push([item, row.end]);
    row.end += size;
  }
  return rows;
}

// 1 if the first is larger, 0 if it is smaller; .5 if they are equal
const isLarger = (left, right) => (Math.sign(left - right) + 1) / 2;

// Of each head whether its weight from the last token on the word that is meant is the largest of all mentions (a word's weight
// is the sum of its tokens'), and whether the answer is right.
function itemScores({ layers, views, H, T, W }, { tokens, meant, other, answers, foils }, first) {
  const last = first + tokens.length - 1;
  const heads = [];
  for (const { weights } of layers) {
    for (let head = 0; head < H; head++) {
      const row = (head * T + last) * T + first;
      const largest = (words) => Math.max(...words.map((places) => places.reduce((sum, place) => sum + weights[row + place], 0)));
      heads.push(isLarger(largest(meant), largest(other)));
    }
  }
  const chance = (ids) => ids.reduce((sum, id) => sum + Math.exp(views.logits[last * W + id]), 0);
  return { heads, answer: isLarger(chance(answers), chance(foils)) };
}

// The 95th percentile of the best head's accuracy if no head were above .5: the signs of whole clusters of blocks are
// flipped, as `chance_level` of probe/statistics.py does. `blocks`: [block][head], mean scores less .5.
function barOf(blocks, clusterings) {
  const random = mersenneTwister(0);
  const best = new Float64Array(N_FLIPS).map(() => {
    const totals = blocks[0].map(() => 0);
    for (const clusters of clusterings) {
      const signs = clusters.flat().map(() => (random() & 1 ? 1 : -1)); // more than there are clusters
      clusters.forEach((ids, block) => ids.forEach((id) => blocks[block].forEach((score, head) => (totals[head] += signs[id] * score))));
    }
    return Math.max(...totals) / blocks.length;
  });
  return Math.min(1, 0.5 + best.sort()[Math.floor(0.95 * N_FLIPS)]);
}

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

// Of each question its best head [layer, head], with its accuracy and the bar, and the share of right answers.
function watch(trainer, questions, rows) {
  const scores = new Map();
  trainer.readWeights();
  for (const row of rows) {
    trainer.forward(row);
    for (const [item, first] of row.items) scores.set(item, itemScores(trainer, item, first));
  }
  return questions.map(({ name, items, clusterings }) => {
    const of = items.map((item) => scores.get(item));
    const columns = (each) => each[0].heads.map((_, head) => mean(each.map(({ heads }) => heads[head])));
    const accuracies = columns(of);
    const accuracy = Math.max(...accuracies);
    const head = accuracies.indexOf(accuracy);
    const size = items.length / clusterings[0].length; // texts of a block
    const blocks = clusterings[0].map((_, block) => columns(of.slice(block * size, (block + 1) * size)).map((value) => value - 0.5));
    return { name, head: [Math.floor(head / trainer.H), head % trainer.H], accuracy, bar: barOf(blocks, clusterings), answers: mean(of.map(({ answer }) => answer)) };
  });
}
