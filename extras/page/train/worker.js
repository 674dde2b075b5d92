// The worker: one of them trains, the others compute the gradients of their rows for it.

const [EVERY, WATCHED_EVERY] = [10, 25]; // steps between two copies of the weights for the page, and two looks at all heads
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
  for (const [name, size] of run.parameters) put(trainer.views[prefix + name], all.subarray(at, (at += size)));
}

const replace = (view, values) => view.set(values);
const add = (view, values) => values.forEach((value, i) => (view[i] += value));

// The page gets what stands now.
const tell = () => postMessage({ step: run.step, weights: packed(), heads: run.watched() });

function open(message) {
  run = message;
  const { kernel, shape, parameters, settings, seed, questions } = run;
  trainer = new Trainer(kernel, shape, parameters);
  if (!questions) return; // it helps
  initialise(trainer, parameters, seed);
  const rows = packItems(questions.flatMap(({ items }) => items), shape.context_length);
  Object.assign(run, { step: 0, rule: new Rule(trainer, settings), watched: () => watch(trainer, questions, rows) });
  run.batches = batchesOf(run.stories, run.end, run.nStories, run.nRows, shape.context_length, seed);
  tell();
}

async function train() {
  const { shape, rule, batches, stories, maxSteps } = run;
  if (run.isTraining) return; // stopped and continued within a step: that loop goes on
  run.isTraining = true;
  while (isRunning && run.step < maxSteps) {
    const rows = batches.next().value.map((row) => rowOf(stories, row, shape.context_length));
    const nAll = rows.reduce((sum, { targets }) => sum + targets.filter((target) => target >= 0).length, 0);
    const shareOf = (worker) => rows.filter((_, i) => i % (helpers.length + 1) === worker);
    const weights = helpers.length && packed();
    const answers = helpers.map((port, i) => {
      port.postMessage({ weights, rows: shareOf(i + 1), nAll });
      return new Promise((resolve) => (port.onmessage = ({ data }) => resolve(data)));
    });
    let loss = trainer.lossAndGradient(shareOf(0), nAll);
    for (const answer of await Promise.all(answers)) {
      loss += answer.loss;
      unpacked(answer.gradient, "d ", add);
    }
    rule.step(run.step, maxSteps);
    run.step += 1;
    const isDue = (every) => run.step % every === 0 || run.step === maxSteps;
    postMessage({ step: run.step, loss: loss / nAll, weights: isDue(EVERY) && packed(), heads: isDue(WATCHED_EVERY) && run.watched() });
    run.isShown = isDue(EVERY) && isDue(WATCHED_EVERY);
    await new Promise((resolve) => setTimeout(resolve)); // a message to stop is heard here
  }
  run.isTraining = false;
  if (!run.isShown) tell(); // it was stopped
}

// What a worker that helps does for the one that trains.
function help({ data: { weights, rows, nAll } }, port) {
  unpacked(weights, "", replace);
  const loss = trainer.lossAndGradient(rows, nAll);
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
  if (data.questions) helpers = [...ports];
  else ports[0].onmessage = (message) => help(message, ports[0]);
};
