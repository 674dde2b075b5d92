// The model in the page: model/transformer.py for one text, with edits of single heads. It knows no page and no document.
// T tokens, D d_model, H heads, K = D / H, V vocabulary. A matrix [rows, columns] is one Float32Array, row after row.

// Little-endian float16 as float32, by a table of all 65,536 values.
const HALVES = Float32Array.from({ length: 65536 }, (_, bits) => {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return fraction ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
});

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function floatsOf(base64, type) {
  const { buffer } = bytesOf(base64);
  return type === "float16" ? Float32Array.from(new Uint16Array(buffer), (bits) => HALVES[bits]) : new Float32Array(buffer);
}

// `shape`: the settings of the model; `parameters`: [name, number of weights] in the order of `all` weights.
function modelOf(shape, parameters, all) {
  const weights = {};
  let end = 0;
  for (const [name, size] of parameters) weights[name] = all.subarray(end, (end += size));
  const layers = Array.from({ length: shape.n_layer }, (_, layer) => {
    const of = (name) => weights[`blocks.${layer}.${name}`];
    // Tied projections are stored once.
    const query = of("attention.query.weight");
    const key = of("attention.key.weight") ?? query;
    const value = of("attention.value.weight") ?? key;
    const mlp = { gate: of("mlp.gate.weight"), up: of("mlp.up.weight"), down: of("mlp.down.weight") };
    return { query, key, value, output: of("attention.output.weight"), norm_1: of("norm_1.gain"), norm_2: of("norm_2.gain"), ...mlp };
  });
  const unembedding = weights["output_embedding.weight"] ?? weights["token_embedding.weight"];
  return { shape, weights, layers, unembedding, width: shape.d_model / shape.n_head };
}

// The pass over `tokens`. `edits` change the attention of one head, in their order:
//   {layer, head, kind: "remove"}                        its output is 0 at every token
//   {layer, head, kind: "cut", row, left}                at token `row` the weights on the tokens `left` are 0
//   {layer, head, kind: "exchange", row, left, right}    there two sets of tokens exchange their weights
// With `base`, a pass over the same tokens, only what edits from `layer` and the token `row` on change is computed anew.
function runModel(model, tokens, edits = [], base = null, layer = 0, row = 0) {
  const { shape, layers } = model;
  const width = shape.d_model;
  const x = base ? base.streams[layer].slice(row * width) : embed(model, tokens); // the tokens from `row` on
  const run = { model, tokens, edits, projected: [], weights: [], streams: [], stream: x };
  for (let index = layer; index < layers.length; index++) {
    const weights = layers[index];
    run.streams[index] = x.slice();
    const input = normalised(x, weights.norm_1, shape.norm_eps);
    const projected = { input };
    for (const name of ["query", "key", "value"]) {
      const made = product(input, weights[name], width);
      if (shape.position === "rope" && name !== "value") rotate(made, model, row);
      projected[name] = base ? joined(base.projected[index][name].subarray(0, row * width), made) : made;
    }
    const ofLayer = edits.filter((edit) => edit.layer === index);
    const mixed = attention(model, projected, ofLayer, row);
    run.projected[index] = projected;
    run.weights[index] = mixed.weights;
    add(x, product(mixed.output, weights.output, width));
    const middle = normalised(x, weights.norm_2, shape.norm_eps);
    const [gate, up] = [weights.gate, weights.up].map((weight) => product(middle, weight, width));
    const gated = gate.map((cell, i) => (cell / (1 + Math.exp(-cell))) * up[i]); // SwiGLU
    add(x, product(gated, weights.down, shape.d_mlp));
  }
  return run;
}

function joined(before, after) {
  const all = new Float32Array(before.length + after.length);
  all.set(before);
  all.set(after, before.length);
  return all;
}

// Logits [V] of the token after `position`, default: the last.
function logitsOf({ model, stream }, position = stream.length / model.shape.d_model - 1) {
  const width = model.shape.d_model;
  const row = rowOf(stream, position, width);
  return product(normalised(row, model.weights["final_norm.gain"], model.shape.norm_eps), model.unembedding, width);
}

function total(values) {
  return values.reduce((a, b) => a + b, 0);
}

function ascending(left, right) {
  return left - right;
}

function placeOfLargest(values) {
  return values.indexOf(Math.max(...values));
}

// The places of the n largest values (by default all), the largest first.
function placesOfLargest(values, n) {
  return [...values.keys()].sort((a, b) => values[b] - values[a]).slice(0, n);
}

function dot(left, right) {
  let sum = 0;
  for (let i = 0; i < left.length; i++) sum += left[i] * right[i];
  return sum;
}

function softmax(scores) {
  let largest = -Infinity;
  for (const score of scores) if (score > largest) largest = score;
  const powers = new Float64Array(scores.length);
  for (let i = 0; i < scores.length; i++) powers[i] = Math.exp(scores[i] - largest);
  const sum = total(powers);
  for (let i = 0; i < scores.length; i++) powers[i] /= sum;
  return powers;
}

function rowOf(x, row, width) {
  return x.subarray(row * width, (row + 1) * width);
}

function rowsOf(x, width) {
  return Array.from({ length: x.length / width }, (_, row) => rowOf(x, row, width));
}

// x [rows, inside] times the transpose of `weight` [outside, inside]. Most of the time is spent here: four sums at a time, no
// views of rows and one type of numbers: a row takes a third of the time that it takes with `dot`.
function product(x, weight, inside) {
  const [rows, columns] = [x.length / inside, weight.length / inside];
  const result = new Float32Array(rows * columns);
  const whole = inside - (inside % 4);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const [left, right] = [row * inside, column * inside];
      let [a, b, c, d] = [0, 0, 0, 0];
      for (let i = 0; i < whole; i += 4) {
        a += x[left + i] * weight[right + i];
        b += x[left + i + 1] * weight[right + i + 1];
        c += x[left + i + 2] * weight[right + i + 2];
        d += x[left + i + 3] * weight[right + i + 3];
      }
      for (let i = whole; i < inside; i++) a += x[left + i] * weight[right + i];
      result[row * columns + column] = a + b + (c + d);
    }
  }
  return result;
}

function add(x, update, factor = 1) {
  for (let i = 0; i < x.length; i++) x[i] += factor * update[i];
}

// The cells [K] of a head in the row of a token in x [T, D]; what is written into them is written into x.
function cellsOf({ shape, width }, x, token, head) {
  const start = token * shape.d_model + head * width;
  return x.subarray(start, start + width);
}

// RMSNorm of each row.
function normalised(x, gain, eps) {
  const width = gain.length;
  const result = x.slice();
  for (const row of rowsOf(result, width)) {
    const scale = 1 / Math.sqrt(dot(row, row) / width + eps);
    row.forEach((cell, i) => (row[i] = cell * scale * gain[i]));
  }
  return result;
}

function embed({ shape, weights }, tokens) {
  const width = shape.d_model;
  const table = weights["token_embedding.weight"];
  const x = new Float32Array(tokens.length * width);
  tokens.forEach((token, position) => {
    for (let i = 0; i < width; i++) {
      let value = table[token * width + i];
      if (shape.position === "learned") value += weights["position_embedding.weight"][position * width + i];
      if (shape.position === "sinusoidal") value += sinusoid(position, i, width);
      x[position * width + i] = value;
    }
  });
  return x;
}

// Sines in the first half of the width, cosines in the second.
function sinusoid(position, i, width) {
  const half = Math.floor(width / 2);
  const angle = Math.fround(position * Math.fround(10000 ** (-(i % half) / half)));
  return (i < half ? Math.sin(angle) : Math.cos(angle)) / Math.sqrt(width);
}

// RoPE, in place, of the tokens from `first` on: the pair (i, i + K/2) turns by its angle. torch computes the angles in
// float32, so they are rounded here.
function rotate(x, model, first) {
  const { shape, width } = model;
  const half = width / 2;
  for (let i = 0; i < half; i++) {
    const frequency = Math.fround(1 / Math.fround(shape.rope_theta ** Math.fround((2 * i) / width)));
    for (let position = 0; position < x.length / shape.d_model; position++) {
      const angle = Math.fround((first + position) * frequency);
      const [cos, sin] = [Math.fround(Math.cos(angle)), Math.fround(Math.sin(angle))];
      for (let head = 0; head < shape.n_head; head++) {
        const cells = cellsOf(model, x, position, head);
        const [left, right] = [cells[i], cells[i + half]];
        cells[i] = left * cos - right * sin;
        cells[i + half] = right * cos + left * sin;
      }
    }
  }
}

// The concatenated heads of the tokens from `first` on, and the weights of each head [T, T], 0 before.
function attention(model, { query, key, value }, edits, first) {
  const { shape } = model;
  const rows = query.length / shape.d_model;
  const output = new Float32Array(query.length - first * shape.d_model);
  const weights = Array.from({ length: shape.n_head }, (_, head) => {
    const ofHead = edits.filter((edit) => edit.head === head);
    const isRemoved = ofHead.some((edit) => edit.kind === "remove");
    const all = new Float32Array(rows * rows); // 0 on later tokens
    for (let row = first; row < rows; row++) {
      const ofRow = all.subarray(row * rows, row * rows + row + 1);
      ofRow.set(weightsOf(model, scoresOf(model, query, key, head, row)));
      for (const { kind, left, right } of ofHead.filter((edit) => edit.row === row)) {
        if (kind === "cut") cutWeights(ofRow, left);
        if (kind === "exchange") exchangeWeights(ofRow, left, right);
      }
      const mixture = cellsOf(model, output, row - first, head);
      if (!isRemoved) ofRow.forEach((weight, token) => add(mixture, cellsOf(model, value, token, head), weight));
    }
    return all;
  });
  return { output, weights };
}

// The scores [row + 1] of the token `row` on itself and all tokens before it.
function scoresOf(model, query, key, head, row) {
  const scale = model.shape.scale === "none" ? 1 : 1 / Math.sqrt(model.width);
  const asking = cellsOf(model, query, row, head);
  return Float64Array.from({ length: row + 1 }, (_, token) => dot(asking, cellsOf(model, key, token, head)) * scale);
}

// The weights that scores give; they sum to 1.
function weightsOf({ shape }, scores) {
  if (shape.weighting !== "sum") return softmax(scores);
  const above = scores.map((score) => Math.max(score, 0) + 1e-4);
  const sum = total(above);
  return above.map((score) => score / sum);
}

// As cut_weights and exchange_weights of model/edits.py.
function cutWeights(weights, left) {
  for (const token of left) weights[token] = 0;
  const sum = total(weights);
  weights.forEach((weight, i) => (weights[i] = weight / Math.max(sum, 1e-37)));
}

function exchangeWeights(weights, left, right) {
  const [ofLeft, ofRight] = [left, right].map((tokens) => total(tokens.map((token) => weights[token])));
  const distribute = (tokens, before, after) => {
    for (const token of tokens) weights[token] = after * (before > 0 ? weights[token] / before : 1 / tokens.length);
  };
  distribute(left, ofLeft, ofRight);
  distribute(right, ofRight, ofLeft);
}

// How the weights of a head at the token `row` come about: one row for each token, with K cells each. `weight` is with the
// run's edits, `share` without those of this head; `moved` is weight times value. A later token is masked: its weight is 0.
function explained({ model, tokens, edits, projected, weights }, layer, head, row) {
  const { query: queries, key: keys, value: values } = projected[layer];
  const scores = scoresOf(model, queries, keys, head, row);
  const shares = weightsOf(model, scores);
  const query = cellsOf(model, queries, row, head);
  const isRemoved = edits.some((edit) => edit.kind === "remove" && edit.layer === layer && edit.head === head);
  const rows = tokens.map((_, token) => {
    const key = cellsOf(model, keys, token, head);
    const value = cellsOf(model, values, token, head);
    const products = key.map((cell, i) => cell * query[i]);
    const weight = weights[layer][head][row * tokens.length + token];
    const moved = value.map((cell) => (isRemoved ? 0 : weight * cell));
    return { key, products, sum: dot(key, query), score: scores[token] ?? -Infinity, share: shares[token] ?? 0, weight, value, moved };
  });
  return { query, rows };
}

// The vector [K] whose product with the output of a head at the token `row` is what the head adds there to the logit of the
// token `id`; the divisor of the final norm is held fixed.
function pulledBack({ model, stream }, layer, head, row, id) {
  const { shape, weights, layers, unembedding, width } = model;
  const inside = shape.d_model;
  const gain = weights["final_norm.gain"];
  const at = rowOf(stream, row, inside);
  const scale = 1 / Math.sqrt(dot(at, at) / inside + shape.norm_eps);
  const result = new Float64Array(width);
  for (let out = 0; out < inside; out++) {
    const direction = scale * gain[out] * unembedding[id * inside + out];
    for (let i = 0; i < width; i++) result[i] += direction * layers[layer].output[out * inside + head * width + i];
  }
  return result;
}
