// The worker: one of them trains, the others compute the gradients of their rows for it.

const EVERY = 5; // steps between two copies of the weights for the page
let trainer = null;
let run = null; // of the worker that trains: what it was opened with, its rule, batches and step
let helpers = [];
let isRunning = false;

// Weights (or gradients, with the prefix "d ") as one array, and back.
function packed(prefix = "") {
  const parts = run.parameters.map(([name, size]) => trainer.views[prefix + name].subarray(0, size));
  const all = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) all.set(part, (at += part.length) - part.length);
  return all;
}

function unpacked(all, prefix, put) {
  let at = 0;
  for (const [name, size] of run.parameters) {
    put(trainer.views[prefix + name], all.subarray(at, (at += size)));
  }
}

const replace = (view, values) => view.set(values);
const add = (view, values) => values.forEach((value, i) => (view[i] += value));

function open(message) {
  run = message;
  const { kernel, shape, parameters, tokensPerBatch, nWorkers, seed, weights } = run;
  trainer = new Trainer(kernel, shape, parameters, tokensPerBatch / nWorkers);
  if (!message.stories) return;
  if (weights) unpacked(weights, "", replace);
  else initialise(trainer, parameters, seed);
  const nRows = tokensPerBatch / shape.context_length;
  Object.assign(run, { step: 0, rule: new Rule(trainer, run.settings), nRows });
  run.batches = batchesOf(run.stories, run.end, run.nStories, nRows, shape.context_length, seed);
  postMessage({ step: 0, weights: packed() });
}

async function train() {
  const { shape, rule, batches, stories, nRows, nWorkers, maxSteps } = run;
  if (run.isTraining) return; // stopped and continued within a step: that loop goes on
  run.isTraining = true;
  while (isRunning && run.step < maxSteps) {
    const { value: rows } = batches.next();
    const each = nRows / nWorkers;
    const shares = Array.from({ length: nWorkers }, (_, i) => batchOf(stories, rows.slice(i * each, (i + 1) * each), shape.context_length));
    const nAll = shares.reduce((sum, { targets }) => sum + targets.filter((target) => target >= 0).length, 0);
    const weights = packed();
    const answers = helpers.map((port, i) => {
      port.postMessage({ weights, batch: shares[i + 1], nAll });
      return new Promise((resolve) => (port.onmessage = ({ data }) => resolve(data)));
    });
    let loss = trainer.lossAndGradient(shares[0], nAll);
    for (const answer of await Promise.all(answers)) {
      loss += answer.loss;
      unpacked(answer.gradient, "d ", add);
    }
    rule.step(run.step, maxSteps);
    run.step += 1;
    const isShown = run.step % EVERY === 0 || run.step === maxSteps;
    postMessage({ step: run.step, loss: loss / nAll, weights: isShown && packed() });
    await new Promise((resolve) => setTimeout(resolve)); // a message to stop is heard here
  }
  run.isTraining = false;
}

// What a worker that helps does for the one that trains.
function help({ data: { weights, batch, nAll } }, port) {
  unpacked(weights, "", replace);
  const loss = trainer.lossAndGradient(batch, nAll);
  const gradient = packed("d ");
  port.postMessage({ loss, gradient }, [gradient.buffer]);
}

const failed = (error) => postMessage({ problem: error.message });

onmessage = ({ data, ports }) => {
  if ("isRunning" in data) {
    isRunning = data.isRunning;
    if (isRunning) train().catch(failed);
    return;
  }
  open(data);
  if (data.leads) helpers = [...ports];
  else ports[0].onmessage = (message) => help(message, ports[0]);
};
