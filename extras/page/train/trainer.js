// Training in the page: model/transformer.py on a batch of packed stories, forward and backward, and the rule of
// training/optim.py. It knows no page and runs in a worker. Matrix products, a third of the time, are those of
// kernel.wat; attention takes a fifth.
// N tokens of a batch, T of a row; D d_model, F d_mlp, H heads, K = D / H; V vocabulary, padded to a multiple of 8.

const PROJECTIONS = ["query", "key", "value"];

// Views of float32 of the given sizes in one memory: {name: size} to {name: Float32Array}.
function layOut(sizes) {
  const rounded = (size) => (size + 15) & ~15; // each begins at a multiple of 64 bytes
  const total = Object.values(sizes).reduce((sum, size) => sum + rounded(size), 0);
  const memory = new WebAssembly.Memory({ initial: Math.ceil((total * 4) / 65536) + 1 });
  let at = 0;
  const views = {};
  for (const [name, size] of Object.entries(sizes)) {
    views[name] = new Float32Array(memory.buffer, at, size);
    at += 4 * rounded(size);
  }
  return { memory, views };
}

class Trainer {
  // `kernel`: a compiled module; `shape`: as in the page; `parameters`: [name, size]; `nTokens` N, a multiple of T.
  constructor(kernel, shape, parameters, nTokens) {
    const { d_model: D, d_mlp: F, n_head: H, context_length: T } = shape;
    Object.assign(this, { shape, N: nTokens, D, F, H, T, K: D / H });
    const N = nTokens;
    this.names = parameters.map(([name]) => name);
    this.V = parameters[0][1] / D;
    this.VP = (this.V + 7) & ~7;
    const sizes = {};
    for (const [name, size] of parameters) {
      const padded = name.startsWith("token_embedding") ? this.VP * D : size;
      Object.assign(sizes, { [name]: padded, [`d ${name}`]: padded });
    }
    const rows = { x: D, input: D, query: D, key: D, value: D, mixed: D, middle: D, normed: D, gate: F, up: F, sigmoid: F, gated: F };
    for (let layer = 0; layer < shape.n_layer; layer++) {
      for (const [name, width] of Object.entries(rows)) sizes[`${layer} ${name}`] = N * width;
      Object.assign(sizes, { [`${layer} weights`]: N * H * T, [`${layer} scale_1`]: N, [`${layer} scale_2`]: N });
    }
    const backward = { end: D, final: D, dx: D, dh: D, dmixed: D, dquery: D, dkey: D, dvalue: D, dgated: F, dgate: F, dup: F, logits: this.VP };
    for (const [name, width] of Object.entries(backward)) sizes[name] = N * width;
    const largest = Math.max(F, this.VP, D);
    Object.assign(sizes, { scale: N, turned: Math.max(largest * D, N * largest) });
    for (const name of ["x", "xT", "update"]) sizes[`muon ${name}`] = D * largest;
    for (const name of ["gram", "squared"]) sizes[`muon ${name}`] = D * D;
    const { memory, views } = layOut(sizes);
    this.views = views;
    this.multiply = new WebAssembly.Instance(kernel, { env: { memory } }).exports.multiply;
    this.layers = Array.from({ length: shape.n_layer }, (_, layer) => {
      const own = {};
      for (const name of [...Object.keys(rows), "weights", "scale_1", "scale_2"]) own[name] = views[`${layer} ${name}`];
      for (const name of this.names.filter((each) => each.startsWith(`blocks.${layer}.`))) {
        const short = name.replace(/^blocks\.\d+\.(attention\.|mlp\.)?/, "").replace(/\.(weight|gain)$/, "");
        own[`W_${short}`] = views[name];
        own[`dW_${short}`] = views[`d ${name}`];
      }
      return own;
    });
    this.angles = Array.from({ length: this.K / 2 }, (_, i) => Math.fround(1 / Math.fround(shape.rope_theta ** Math.fround((2 * i) / this.K))));
  }

  // C [m, n] (+)= A [m, k] B [k, n]
  times(m, n, k, A, B, C, adds = 0) {
    this.multiply(m, n, k, A.byteOffset, B.byteOffset, C.byteOffset, adds);
  }

  // The transpose of x [rows, columns], until the next call.
  turn(x, rows, columns) {
    const { turned } = this.views;
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) turned[j * rows + i] = x[i * columns + j];
    return turned;
  }

  // y [N, out] (+)= x [N, inside] W^T
  linear(x, W, y, inside, adds) {
    const out = W.length / inside;
    this.times(this.N, out, inside, x, this.turn(W, out, inside), y, adds);
  }

  // dx (+)= dy W and dW += dy^T x
  linearBack(dy, x, W, dW, dx, inside, adds) {
    const out = W.length / inside;
    this.times(out, inside, this.N, this.turn(dy, this.N, out), x, dW, 1);
    this.times(this.N, inside, out, dy, W, dx, adds);
  }

  // RMSNorm; `scale` [N] keeps 1 / the norm.
  norm(x, gain, y, scale) {
    const { N, D, shape } = this;
    for (let n = 0, at = 0; n < N; n++, at += D) {
      let sum = 0;
      for (let i = 0; i < D; i++) sum += x[at + i] * x[at + i];
      const by = 1 / Math.sqrt(sum / D + shape.norm_eps);
      scale[n] = by;
      for (let i = 0; i < D; i++) y[at + i] = x[at + i] * by * gain[i];
    }
  }

  // dx += the gradient through the norm
  normBack(dy, x, gain, dgain, scale, dx) {
    const { N, D } = this;
    for (let n = 0, at = 0; n < N; n++, at += D) {
      const by = scale[n];
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
    const { N, D, H, K, T, angles } = this;
    const half = K / 2;
    this.turns ??= Array.from({ length: T * half }, (_, i) => {
      const angle = Math.fround(Math.floor(i / half) * angles[i % half]);
      return [Math.cos(angle), Math.sin(angle)];
    });
    for (let n = 0; n < N; n++) {
      for (let i = 0; i < half; i++) {
        const [cos, sin] = this.turns[positions[n] * half + i];
        for (let at = n * D + i; at < n * D + D; at += K) {
          const [left, right] = [x[at], x[at + half]];
          x[at] = left * cos - sign * right * sin;
          x[at + half] = right * cos + sign * left * sin;
        }
      }
    }
  }

  // `stories`: [first token, length] of each in the batch
  attention({ query, key, value, mixed, weights }, stories) {
    const { D, H, K, T } = this;
    const by = this.shape.scale === "none" ? 1 : 1 / Math.sqrt(K);
    const scores = new Float64Array(T);
    mixed.fill(0);
    for (const [start, length] of stories) {
      for (let head = 0; head < H; head++) {
        for (let i = 0; i < length; i++) {
          const q = (start + i) * D + head * K;
          const w = ((start + i) * H + head) * T;
          let largest = -Infinity;
          for (let j = 0; j <= i; j++) {
            const k = (start + j) * D + head * K;
            let score = 0;
            for (let c = 0; c < K; c++) score += query[q + c] * key[k + c];
            scores[j] = score * by;
            if (scores[j] > largest) largest = scores[j];
          }
          let sum = 0;
          for (let j = 0; j <= i; j++) sum += scores[j] = Math.exp(scores[j] - largest);
          for (let j = 0; j <= i; j++) {
            const weight = (weights[w + j] = scores[j] / sum);
            const v = (start + j) * D + head * K;
            for (let c = 0; c < K; c++) mixed[q + c] += weight * value[v + c];
          }
        }
      }
    }
  }

  attentionBack({ query, key, value, weights }, stories) {
    const { D, H, K, T } = this;
    const { dmixed, dquery, dkey, dvalue } = this.views;
    const by = this.shape.scale === "none" ? 1 : 1 / Math.sqrt(K);
    const dweights = new Float64Array(T);
    for (const d of [dquery, dkey, dvalue]) d.fill(0);
    for (const [start, length] of stories) {
      for (let head = 0; head < H; head++) {
        for (let i = 0; i < length; i++) {
          const q = (start + i) * D + head * K;
          const w = ((start + i) * H + head) * T;
          let mean = 0;
          for (let j = 0; j <= i; j++) {
            const v = (start + j) * D + head * K;
            const weight = weights[w + j];
            let sum = 0;
            for (let c = 0; c < K; c++) {
              sum += dmixed[q + c] * value[v + c];
              dvalue[v + c] += weight * dmixed[q + c];
            }
            dweights[j] = sum;
            mean += sum * weight;
          }
          for (let j = 0; j <= i; j++) {
            const k = (start + j) * D + head * K;
            const dscore = weights[w + j] * (dweights[j] - mean) * by;
            for (let c = 0; c < K; c++) {
              dquery[q + c] += dscore * key[k + c];
              dkey[k + c] += dscore * query[q + c];
            }
          }
        }
      }
    }
  }

  // The summed loss of a batch, and in the views "d NAME" the gradient of the sum over `nAll` targets, divided by them.
  // tokens, targets (-1: no loss) and positions [N], `stories`: [first token, length].
  lossAndGradient({ tokens, targets, positions, stories }, nAll) {
    const { N, D, F, views } = this;
    const table = views["token_embedding.weight"];
    const streams = [...this.layers.map(({ x }) => x), views.end];
    tokens.forEach((token, n) => streams[0].set(table.subarray(token * D, token * D + D), n * D));
    this.layers.forEach((layer, index) => {
      const { x, input, middle, normed, gate, up, sigmoid, gated } = layer;
      this.norm(x, layer.W_norm_1, input, layer.scale_1);
      for (const name of PROJECTIONS) this.linear(input, layer[`W_${name}`], layer[name], D);
      for (const name of ["query", "key"]) this.rotate(layer[name], positions, 1);
      this.attention(layer, stories);
      middle.set(x);
      this.linear(layer.mixed, layer.W_output, middle, D, 1);
      this.norm(middle, layer.W_norm_2, normed, layer.scale_2);
      this.linear(normed, layer.W_gate, gate, D);
      this.linear(normed, layer.W_up, up, D);
      for (let i = 0; i < N * F; i++) {
        sigmoid[i] = 1 / (1 + Math.exp(-gate[i]));
        gated[i] = gate[i] * sigmoid[i] * up[i];
      }
      streams[index + 1].set(middle);
      this.linear(gated, layer.W_down, streams[index + 1], F, 1);
    });
    this.norm(views.end, views["final_norm.gain"], views.final, views.scale);
    this.linear(views.final, table, views.logits, D);
    const loss = this.crossEntropy(targets, nAll);

    for (const name of this.names) views[`d ${name}`].fill(0);
    const { dx, dh, dgated, dgate, dup, dmixed } = views;
    const dtable = views["d token_embedding.weight"];
    this.linearBack(views.logits, views.final, table, dtable, dh, D);
    dx.fill(0);
    this.normBack(dh, views.end, views["final_norm.gain"], views["d final_norm.gain"], views.scale, dx);
    for (const layer of [...this.layers].reverse()) {
      const { gate, up, sigmoid } = layer;
      this.linearBack(dx, layer.gated, layer.W_down, layer.dW_down, dgated, F);
      for (let i = 0; i < N * F; i++) {
        const silu = gate[i] * sigmoid[i];
        dup[i] = dgated[i] * silu;
        dgate[i] = dgated[i] * up[i] * (sigmoid[i] + silu * (1 - sigmoid[i]));
      }
      this.linearBack(dgate, layer.normed, layer.W_gate, layer.dW_gate, dh, D);
      this.linearBack(dup, layer.normed, layer.W_up, layer.dW_up, dh, D, 1);
      this.normBack(dh, layer.middle, layer.W_norm_2, layer.dW_norm_2, layer.scale_2, dx);
      this.linearBack(dx, layer.mixed, layer.W_output, layer.dW_output, dmixed, D);
      this.attentionBack(layer, stories);
      for (const name of ["dquery", "dkey"]) this.rotate(views[name], positions, -1);
      PROJECTIONS.forEach((name, i) => this.linearBack(views[`d${name}`], layer.input, layer[`W_${name}`], layer[`dW_${name}`], dh, D, Number(i > 0)));
      this.normBack(dh, layer.x, layer.W_norm_1, layer.dW_norm_1, layer.scale_1, dx);
    }
    for (let n = 0; n < N; n++) for (let i = 0; i < D; i++) dtable[tokens[n] * D + i] += dx[n * D + i];
    return loss;
  }

  // The logits become their gradient.
  crossEntropy(targets, nAll) {
    const { N, V, VP, views } = this;
    let loss = 0;
    for (let n = 0; n < N; n++) {
      const row = views.logits.subarray(n * VP, (n + 1) * VP);
      if (targets[n] < 0) {
        row.fill(0);
        continue;
      }
      let largest = -Infinity;
      for (let i = 0; i < V; i++) if (row[i] > largest) largest = row[i];
      const ofTarget = row[targets[n]] - largest;
      let sum = 0;
      for (let i = 0; i < V; i++) sum += row[i] = Math.exp(row[i] - largest);
      loss += Math.log(sum) - ofTarget;
      for (let i = 0; i < V; i++) row[i] /= sum * nAll;
      row.fill(0, V);
      row[targets[n]] -= 1 / nAll;
    }
    return loss;
  }
}
