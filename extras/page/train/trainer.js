// Training in the page: model/transformer.py on packed stories, one row of a batch after another, forward and backward: what
// a row needs stays in the cache of the processor. It knows no page and runs in a worker. The matrix products are those of
// kernel.wat, and attention too is made of them: a row has several stories, and what lies outside of one is set to 0.
// T tokens of a row; D d_model, F d_mlp, H heads, K = D / H; V vocabulary, padded to a multiple of 16 (W).

// Views of float32 in one memory: {name: size} to {name: Float32Array}.
function layOut(sizes) {
  const rounded = (size) => (size + 15) & ~15; // each begins at a multiple of 64 bytes
  const total = Object.values(sizes).reduce((sum, size) => sum + rounded(size), 0);
  const memory = new WebAssembly.Memory({ initial: Math.ceil((total * 4) / 65536) });
  let at = 0;
  const views = {};
  for (const [name, size] of Object.entries(sizes)) {
    views[name] = new Float32Array(memory.buffer, at, size);
    at += 4 * rounded(size);
  }
  return { memory, views };
}

// How the kernel reads a view whose rows have `width` numbers, from place `first` on; and how it reads its transpose.
const matrix = (view, width, first = 0) => [view.byteOffset + 4 * first, width, 1];
const transpose = (view, width, first = 0) => [view.byteOffset + 4 * first, 1, width];

const clear = (...all) => all.forEach((view) => view.fill(0));

const POWERS = Float64Array.from({ length: 2048 }, (_, i) => 2 ** (i / 8 - 128));

// e^x within 2e-7 of it: a power of 2^(1/8) from the table, and the series of e^r, |r| <= .044, up to r^3. Math.exp is a
// call; there are three million of them in a step.
function exp(x) {
  const scaled = (x < -87 ? -1008 : x > 87 ? 1008 : x * 8 * Math.LOG2E) + 1024.5;
  const n = scaled | 0;
  const r = (scaled - n - 0.5) * (Math.LN2 / 8);
  return POWERS[n] * (1 + r * (1 + r * (1 / 2 + r * (1 / 6))));
}

class Trainer {
  // `kernel`: a compiled module; `shape`: as in the page; `parameters`: [name, size].
  constructor(kernel, shape, parameters) {
    const { d_model: D, d_mlp: F, n_head: H, context_length: T } = shape;
    const K = D / H;
    const V = parameters[0][1] / D;
    const W = (V + 15) & ~15;
    const by = shape.scale === "none" ? 1 : 1 / Math.sqrt(K);
    Object.assign(this, { shape, D, F, H, T, V, W, K, by, names: parameters.map(([name]) => name) });
    const sizes = {};
    for (const [name, size] of parameters) for (const of of ["", "d ", "turned "]) sizes[of + name] = name.startsWith("token_embedding") ? W * D : size;
    const kept = { x: D, input: D, query: D, key: D, value: D, mixed: D, middle: D, normed: D, gate: F, up: F, sigmoid: F, gated: F, weights: H * T, norm_1: 1, norm_2: 1 };
    const passing = { end: D, final: D, norm: 1, logits: W, dx: D, dh: D, dmixed: D, dquery: D, dkey: D, dvalue: D, dgated: F, dgate: F, dup: F, dweights: T, turned: D };
    for (const [name, width] of Object.entries(passing)) sizes[name] = T * width;
    for (let layer = 0; layer < shape.n_layer; layer++) for (const [name, width] of Object.entries(kept)) sizes[`${layer} ${name}`] = T * width;
    for (const name of ["x", "xT", "update"]) sizes[`muon ${name}`] = D * Math.max(F, D);
    for (const name of ["gram", "squared"]) sizes[`muon ${name}`] = D * D;
    const { memory, views } = layOut(sizes);
    this.views = views;
    this.multiply = new WebAssembly.Instance(kernel, { env: { memory } }).exports.multiply;
    this.layers = Array.from({ length: shape.n_layer }, (_, layer) => {
      const own = Object.keys(kept).map((name) => [name, views[`${layer} ${name}`]]);
      const weights = this.names.filter((name) => name.startsWith(`blocks.${layer}.`)).map((name) => [`W_${name.split(".").at(-2)}`, this.weight(name)]);
      return Object.fromEntries([...own, ...weights]);
    });
    this.table = this.weight("token_embedding.weight");
    this.gain = this.weight("final_norm.gain");
    this.matrices = [this.table, ...this.layers.flatMap(Object.values)].filter(({ inside }) => inside);
    const angles = Float64Array.from({ length: (T * K) / 2 }, (_, at) => {
      const frequency = Math.fround(1 / Math.fround(shape.rope_theta ** Math.fround((2 * (at % (K / 2))) / K)));
      return Math.fround(Math.floor((2 * at) / K) * frequency);
    });
    [this.cos, this.sin] = [angles.map(Math.cos), angles.map(Math.sin)];
  }

  // A weight with its gradient; of a matrix [out, inside] also the place of its transpose.
  weight(name) {
    const [W, dW, turned] = ["", "d ", "turned "].map((of) => this.views[of + name]);
    if (name.endsWith("gain")) return { W, dW };
    const inside = name.includes("down") ? this.F : this.D;
    return { W, dW, turned, inside, out: W.length / inside };
  }

  // C [m, n] += A [m, k] B [k, n]
  times(m, n, k, [A, down, along], [B, widthB], [C, widthC]) {
    this.multiply(m, n, k, A, 4 * down, 4 * along, B, 4 * widthB, C, 4 * widthC);
  }

  turn(x, rows, columns, turned) {
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) turned[j * rows + i] = x[i * columns + j];
  }

  // y [T, out] += x [T, inside] W^T
  linear(x, { turned, inside, out }, y) {
    this.times(this.T, out, inside, matrix(x, inside), matrix(turned, out), matrix(y, out));
  }

  // dx += dy W and dW += dy^T x
  linearBack(dy, x, { W, dW, inside, out }, dx) {
    this.times(out, inside, this.T, transpose(dy, out), matrix(x, inside), matrix(dW, inside));
    this.times(this.T, inside, out, matrix(dy, out), matrix(W, inside), matrix(dx, inside));
  }

  // RMSNorm; `scale` [T] keeps 1 / the norm.
  norm(x, { W: gain }, y, scale) {
    const { T, D, shape } = this;
    for (let t = 0, at = 0; t < T; t++, at += D) {
      let sum = 0;
      for (let i = 0; i < D; i++) sum += x[at + i] * x[at + i];
      const by = 1 / Math.sqrt(sum / D + shape.norm_eps);
      scale[t] = by;
      for (let i = 0; i < D; i++) y[at + i] = x[at + i] * by * gain[i];
    }
  }

  // dx += the gradient through the norm
  normBack(dy, x, { W: gain, dW: dgain }, scale, dx) {
    const { T, D } = this;
    for (let t = 0, at = 0; t < T; t++, at += D) {
      const by = scale[t];
      let sum = 0;
      for (let i = 0; i < D; i++) {
        const both = dy[at + i] * x[at + i];
        dgain[i] += both * by;
        sum += both * gain[i];
      }
      sum *= (by * by * by) / D;
      for (let i = 0; i < D; i++) dx[at + i] += dy[at + i] * gain[i] * by - sum * x[at + i];
    }
  }

  // RoPE, in place; `sign` -1 turns back.
  rotate(x, positions, sign) {
    if (this.shape.position !== "rope") return;
    const { T, D, K, cos, sin } = this;
    const half = K / 2;
    for (let t = 0; t < T; t++) {
      for (let i = 0; i < half; i++) {
        const [c, s] = [cos[positions[t] * half + i], sign * sin[positions[t] * half + i]];
        for (let at = t * D + i; at < t * D + D; at += K) {
          const left = x[at];
          const right = x[at + half];
          x[at] = left * c - right * s;
          x[at + half] = right * c + left * s;
        }
      }
    }
  }

  // softmax(q k^T / √K) v of each story in the row; token t is number positions[t] of its story.
  attention({ query, key, value, mixed, weights }, positions) {
    const { T, D, H, K, by, views: { turned } } = this;
    this.turn(key, T, D, turned);
    weights.fill(0);
    for (let head = 0; head < H; head++) {
      const [at, cells] = [head * K, matrix(weights, T, head * T * T)];
      this.times(T, T, K, matrix(query, D, at), matrix(turned, T, at * T), cells);
      for (let i = 0; i < T; i++) {
        const own = (head * T + i) * T;
        const first = own + i - positions[i];
        let largest = -Infinity;
        for (let j = first; j <= own + i; j++) largest = Math.max(largest, weights[j]);
        let sum = 0;
        for (let j = own; j < own + T; j++) sum += weights[j] = first <= j && j <= own + i ? exp((weights[j] - largest) * by) : 0;
        for (let j = first; j <= own + i; j++) weights[j] /= sum;
      }
      this.times(T, K, T, cells, matrix(value, D, at), matrix(mixed, D, at));
    }
  }

  attentionBack({ query, key, value, weights }) {
    const { T, D, H, K, by } = this;
    const { dmixed, dquery, dkey, dvalue, dweights, turned } = this.views;
    this.turn(value, T, D, turned);
    for (let head = 0; head < H; head++) {
      const [at, from] = [head * K, head * T * T];
      this.times(T, K, T, transpose(weights, T, from), matrix(dmixed, D, at), matrix(dvalue, D, at));
      dweights.fill(0);
      this.times(T, T, K, matrix(dmixed, D, at), matrix(turned, T, at * T), matrix(dweights, T));
      for (let i = 0; i < T * T; i += T) {
        let mean = 0;
        for (let j = i; j < i + T; j++) mean += weights[from + j] * dweights[j];
        for (let j = i; j < i + T; j++) dweights[j] = weights[from + j] * (dweights[j] - mean) * by;
      }
      this.times(T, K, T, matrix(dweights, T), matrix(key, D, at), matrix(dquery, D, at));
      this.times(T, K, T, transpose(dweights, T), matrix(query, D, at), matrix(dkey, D, at));
    }
  }

  // Read the weights anew, after a change.
  readWeights() {
    for (const { turned, W, out, inside } of this.matrices) this.turn(W, out, inside, turned);
  }

  // The summed loss of rows, and in the views "d NAME" the gradient of the sum over `nAll` targets, divided by them.
  // A row: tokens, targets (-1: no loss) and positions [T].
  lossAndGradient(rows, nAll) {
    this.readWeights();
    clear(...this.names.map((name) => this.views[`d ${name}`]));
    let loss = 0;
    for (const row of rows) {
      this.forward(row);
      loss += this.crossEntropy(row, nAll);
      this.backward(row);
    }
    return loss;
  }

  // Up to the logits; a layer keeps what its gradient needs.
  forward({ tokens, positions }) {
    const { T, D, F, views, table, layers } = this;
    const streams = [...layers.map(({ x }) => x), views.end];
    tokens.forEach((token, t) => streams[0].set(table.W.subarray(token * D, token * D + D), t * D));
    layers.forEach((layer, index) => {
      const { x, input, query, key, value, mixed, middle, normed, gate, up, sigmoid, gated } = layer;
      clear(query, key, value, mixed, gate, up);
      this.norm(x, layer.W_norm_1, input, layer.norm_1);
      this.linear(input, layer.W_query, query);
      this.linear(input, layer.W_key, key);
      this.linear(input, layer.W_value, value);
      this.rotate(query, positions, 1);
      this.rotate(key, positions, 1);
      this.attention(layer, positions);
      middle.set(x);
      this.linear(mixed, layer.W_output, middle);
      this.norm(middle, layer.W_norm_2, normed, layer.norm_2);
      this.linear(normed, layer.W_gate, gate);
      this.linear(normed, layer.W_up, up);
      for (let i = 0; i < T * F; i++) {
        sigmoid[i] = 1 / (1 + exp(-gate[i]));
        gated[i] = gate[i] * sigmoid[i] * up[i];
      }
      streams[index + 1].set(middle);
      this.linear(gated, layer.W_down, streams[index + 1]);
    });
    clear(views.logits);
    this.norm(views.end, this.gain, views.final, views.norm);
    this.linear(views.final, table, views.logits);
  }

  // From the gradient of the logits to that of every weight.
  backward({ tokens, positions }) {
    const { T, D, F, views, table, layers } = this;
    const { end, final, logits, dx, dh, dgated, dgate, dup, dmixed, dquery, dkey, dvalue } = views;
    clear(dx, dh);
    this.linearBack(logits, final, table, dh);
    this.normBack(dh, end, this.gain, views.norm, dx);
    for (const layer of [...layers].reverse()) {
      const { x, input, mixed, middle, normed, gate, up, sigmoid, gated } = layer;
      clear(dgated, dh, dmixed, dquery, dkey, dvalue);
      this.linearBack(dx, gated, layer.W_down, dgated);
      for (let i = 0; i < T * F; i++) {
        const silu = gate[i] * sigmoid[i];
        dup[i] = dgated[i] * silu;
        dgate[i] = dgated[i] * up[i] * (sigmoid[i] + silu * (1 - sigmoid[i]));
      }
      this.linearBack(dgate, normed, layer.W_gate, dh);
      this.linearBack(dup, normed, layer.W_up, dh);
      this.normBack(dh, middle, layer.W_norm_2, layer.norm_2, dx);
      this.linearBack(dx, mixed, layer.W_output, dmixed);
      this.attentionBack(layer);
      this.rotate(dquery, positions, -1);
      this.rotate(dkey, positions, -1);
      clear(dh);
      this.linearBack(dquery, input, layer.W_query, dh);
      this.linearBack(dkey, input, layer.W_key, dh);
      this.linearBack(dvalue, input, layer.W_value, dh);
      this.normBack(dh, x, layer.W_norm_1, layer.norm_1, dx);
    }
    for (let t = 0; t < T; t++) for (let i = 0; i < D; i++) table.dW[tokens[t] * D + i] += dx[t * D + i];
  }

  // The logits become their gradient.
  crossEntropy({ targets }, nAll) {
    const { T, V, W, views: { logits } } = this;
    let loss = 0;
    for (let t = 0; t < T; t++) {
      const row = logits.subarray(t * W, (t + 1) * W);
      if (targets[t] < 0) {
        row.fill(0);
        continue;
      }
      let largest = -Infinity;
      for (let i = 0; i < V; i++) largest = Math.max(largest, row[i]);
      const ofTarget = row[targets[t]] - largest;
      let sum = 0;
      for (let i = 0; i < V; i++) sum += row[i] = exp(row[i] - largest);
      loss += Math.log(sum) - ofTarget;
      for (let i = 0; i < V; i++) row[i] /= sum * nAll;
      row.fill(0, V);
      row[targets[t]] -= 1 / nAll;
    }
    return loss;
  }
}
