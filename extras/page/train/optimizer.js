// The rule of training/optim.py: Muon for the matrices of the blocks, AdamW for embeddings and gains, and its schedule.

class Rule {
  // `settings`: those of configs/optim/muon.yaml, and the coefficients and the margin of training/optim.py
  constructor(trainer, settings) {
    this.trainer = trainer;
    this.settings = settings;
    this.states = trainer.names.map((name) => [0, 1].map(() => new Float32Array(trainer.views[name].length)));
  }

  // Change the weights by the gradients that the trainer has.
  step(step, maxSteps) {
    const { trainer, settings } = this;
    const { views, names } = trainer;
    let squares = 0;
    for (const name of names) for (const cell of views[`d ${name}`]) squares += cell * cell;
    const clip = Math.min(1, settings.clip_norm / (Math.sqrt(squares) + 1e-6));
    // Learning rate / peak: linear warm-up, then (remaining fraction of the steps) ** decay_power
    const { warmup_steps: warmup, decay_power: power } = settings;
    const remaining = (maxSteps - step) / (maxSteps - warmup); // read after the warm-up only
    const factor = step < warmup ? (step + 1) / warmup : remaining ** power;
    names.forEach((name, i) => {
      const isMatrix = name.startsWith("blocks.") && name.endsWith("weight");
      const rate = factor * (isMatrix ? settings.learning_rate : settings.embedding_learning_rate);
      const of = [views[name], views[`d ${name}`], this.states[i]];
      if (isMatrix) this.muon(...of, rate, clip, name.includes("down") ? trainer.F : trainer.D);
      else this.adam(...of, rate, clip, step, name.endsWith("gain") ? 0 : settings.embedding_weight_decay);
    });
  }

  adam(weight, gradient, [mean, square], rate, clip, step, decay) {
    const { beta_1, beta_2 } = this.settings;
    const [by1, by2] = [1 - beta_1 ** (step + 1), 1 - beta_2 ** (step + 1)]; // both averages start at 0
    for (let i = 0; i < weight.length; i++) {
      const cell = gradient[i] * clip;
      mean[i] += (1 - beta_1) * (cell - mean[i]);
      square[i] += (1 - beta_2) * (cell * cell - square[i]);
      weight[i] -= rate * (decay * weight[i] + mean[i] / by1 / (Math.sqrt(square[i] / by2) + 1e-8));
    }
  }

  // Nesterov momentum whose update is made orthogonal: the wide form [A, B] of the matrix [rows, columns].
  muon(weight, gradient, [mean], rate, clip, columns) {
    const { trainer, settings } = this;
    const { momentum } = settings;
    const rows = weight.length / columns;
    const isTall = rows > columns;
    const [A, B] = isTall ? [columns, rows] : [rows, columns];
    const [x, xT, update, gram, squared] = ["x", "xT", "update", "gram", "squared"].map((name) => trainer.views[`muon ${name}`]);
    const place = (i) => (isTall ? (i % columns) * rows + Math.floor(i / columns) : i);
    let norm = 0;
    for (let i = 0; i < weight.length; i++) {
      const cell = gradient[i] * clip;
      mean[i] += (1 - momentum) * (cell - mean[i]);
      const ahead = cell + momentum * (mean[i] - cell);
      x[place(i)] = ahead;
      norm += ahead * ahead;
    }
    const by = 1 / Math.max(Math.sqrt(norm) * settings.margin, 1e-7);
    for (let i = 0; i < weight.length; i++) x[i] *= by;
    for (const [a, b, c] of settings.coefficients) {
      trainer.turn(x, A, B, xT);
      clear(gram, squared, update);
      trainer.times(A, A, B, matrix(x, B), matrix(xT, A), matrix(gram, A));
      trainer.times(A, A, A, matrix(gram, A), matrix(gram, A), matrix(squared, A));
      for (let i = 0; i < A * A; i++) squared[i] = b * gram[i] + c * squared[i];
      trainer.times(A, B, A, matrix(squared, A), matrix(x, B), matrix(update, B));
      for (let i = 0; i < weight.length; i++) x[i] = a * x[i] + update[i];
    }
    const scale = rate * Math.sqrt(Math.max(1, rows / columns));
    for (let i = 0; i < weight.length; i++) weight[i] -= rate * settings.weight_decay * weight[i] + scale * x[place(i)];
  }
}
