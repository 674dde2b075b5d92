// The first weights and the batches of training in the page.

// The generator of torch on a CPU: Mersenne Twister (Matsumoto & Nishimura 1998), 32 bits a call.
function mersenneTwister(seed) {
  const state = new Uint32Array(624);
  state[0] = seed;
  for (let i = 1; i < 624; i++) state[i] = Math.imul(1812433253, state[i - 1] ^ (state[i - 1] >>> 30)) + i;
  let at = 624;
  return () => {
    if (at === 624) {
      for (let i = 0; i < 624; i++) {
        const both = (state[i] & 0x80000000) | (state[(i + 1) % 624] & 0x7fffffff);
        state[i] = state[(i + 397) % 624] ^ (both >>> 1) ^ (both & 1 ? 0x9908b0df : 0);
      }
      at = 0;
    }
    let bits = state[at++];
    bits ^= bits >>> 11;
    bits ^= (bits << 7) & 0x9d2c5680;
    bits ^= (bits << 15) & 0xefc60000;
    return (bits ^ (bits >>> 18)) >>> 0;
  };
}

// Fill with normal numbers of this standard deviation, as torch's normal_ does: pairs of uniform numbers eight places apart
// (Box & Muller 1958). Their number is a multiple of 16.
function drawNormal(values, sd, random) {
  for (let i = 0; i < values.length; i++) values[i] = (random() & 0xffffff) / 2 ** 24;
  for (let first = 0; first < values.length; first += 16) {
    for (let i = first; i < first + 8; i++) {
      const radius = Math.sqrt(-2 * Math.log(1 - values[i]));
      const angle = 2 * Math.PI * values[i + 8];
      values[i] = radius * Math.cos(angle) * sd;
      values[i + 8] = radius * Math.sin(angle) * sd;
    }
  }
}

// As `_initialise` of model/transformer.py: the same weights from the same seed, but for the last digit.
function initialise(trainer, parameters, seed) {
  const random = mersenneTwister(seed);
  for (const [name, size] of parameters) {
    const view = trainer.views[name].subarray(0, size);
    if (name.endsWith("gain")) view.fill(1);
    else if (/(output|down)\.weight$/.test(name)) view.fill(0);
    else drawNormal(view, name.endsWith("_embedding.weight") ? 0.02 : trainer.D ** -0.5, random);
  }
}

const WINDOW = 1000; // stories that are packed together, as in data/loader.py

// Places of the numbers from 0 to n - 1 in a random order.
function permutation(n, random) {
  const order = Uint32Array.from({ length: n }, (_, i) => i);
  for (let i = n - 1; i > 0; i--) {
    const other = random() % (i + 1);
    [order[i], order[other]] = [order[other], order[i]];
  }
  return order;
}

// Batches of `nRows` rows of `length` tokens, without an end: the stories in a random order, packed as `_epoch_rows` of
// data/loader.py packs them (best-fit decreasing). The last rows of an epoch begin the first batch of the next.
// A row is a list of stories [first place, number of tokens] in `tokens`, which ends with `end`.
function* batchesOf(tokens, end, nStories, nRows, length, seed) {
  const random = mersenneTwister(seed);
  const starts = [];
  for (let place = 0; place < tokens.length && starts.length <= nStories; place++) if (tokens[place] === end) starts.push(place);
  const stories = starts.slice(0, -1).map((start, i) => [start, starts[i + 1] - start]);
  let ahead = []; // packed rows that no batch has had
  while (true) {
    while (ahead.length >= nRows) yield ahead.splice(0, nRows);
    const order = [...permutation(stories.length, random)].map((i) => stories[i]);
    const rows = [];
    for (let first = 0; first < order.length; first += WINDOW) {
      const bySpace = Array.from({ length: length + 1 }, () => []);
      for (const story of order.slice(first, first + WINDOW).sort((a, b) => b[1] - a[1])) {
        const space = bySpace.findIndex((open, free) => free >= story[1] && open.length);
        const row = space < 0 ? [] : bySpace[space].pop();
        if (space < 0) rows.push(row);
        row.push(story);
        bySpace[(space < 0 ? length : space) - story[1]].push(row);
      }
    }
    for (const i of permutation(rows.length, random)) ahead.push(rows[i]);
  }
}

// A row as what the trainer reads; a target of -1 has no loss.
function rowOf(tokens, stories, length) {
  const row = { tokens: new Uint16Array(length), targets: new Int32Array(length).fill(-1), positions: new Uint16Array(length) };
  let at = 0;
  for (const [start, size] of stories) {
    for (let j = 0; j < size; j++, at++) {
      row.tokens[at] = tokens[start + j];
      row.targets[at] = tokens[start + j + 1];
      row.positions[at] = j;
    }
  }
  return row;
}
