// Train here: the model of the page is trained anew in workers, and the page shows the model in training.

const MOST_WORKERS = 4;
const ITS_OWN = "What was tested, links and Python are about the model of the file: load the page again to see it.";

// The model that is trained in this page: its workers, the loss of each step, the chosen switches.
const here = { workers: [], losses: [], step: 0, isRunning: false, began: 0, seconds: 0, problem: "", shape: null, chosen: {}, seed: null };

// Setting, title, and [value, text] of each choice; the first is that of the run.
function switchesOf({ n_layer, n_head, position, scale }) {
  const { n_stories } = live.training;
  const upTo = (largest, isPossible) => Array.from({ length: largest }, (_, i) => largest - i).filter(isPossible).map((n) => [n, String(n)]);
  const isHeads = (n) => live.shape.d_model % (2 * n) === 0; // RoPE turns pairs
  const yesOrNo = (own, yes) => [[own, own === yes ? "yes" : "no"], own === yes ? ["none", "no"] : [yes, "yes"]];
  return [
    ["n_layer", "Layers", upTo(n_layer, () => true)],
    ["n_head", "Heads in a layer", upTo(n_head, isHeads)],
    ["position", "Positions", yesOrNo(position, "rope")],
    ["scale", "Scores divided by √d", yesOrNo(scale, "inverse_sqrt")],
    ["n_stories", "Stories", [n_stories, Math.ceil(n_stories / 2)].map((n) => [n, n.toLocaleString("en")])],
  ];
}

// The controls are drawn when one of them changes, and not at each step: a click would be lost.
function drawTraining() {
  const { training } = live;
  const { losses, step, isRunning, chosen } = here;
  here.switches ??= switchesOf(live.shape); // which changes with what is trained
  const menus = here.switches.map(([name, title, options]) => {
    const select = (value) => {
      chosen[name] = value;
      drawTraining();
    };
    return menu(title, options, chosen[name] ?? options[0][0], select);
  });
  const seed = element("input", { type: "number", min: 0, max: 999, value: here.seed ?? training.seed, "data-name": "train-seed" });
  seed.addEventListener("change", () => (here.seed = Math.min(999, Math.max(0, Math.round(Number(seed.value) || 0)))));
  const begin = button(losses.length ? "Train again" : "Train here", beginTraining, { "data-name": "train" });
  const stop = step > 0 && step < training.max_steps && button(isRunning ? "Stop" : "Continue", () => runTraining(!isRunning), { "data-name": "train-stop" });
  const choices = element("p", { class: "actions" }, begin, stop, element("label", { class: "menu" }, element("span", {}, "Seed"), seed), ...menus);
  show("train", choices, element("p", { class: "rule", id: "train-said" }), element("div", { id: "train-curve" }));
  drawProgress();
}

function drawProgress() {
  const { training } = live;
  const { losses, step, problem } = here;
  const begun = losses.length ? `Step ${step} of ${training.max_steps}, loss ${losses.at(-1).toFixed(3)}, ${Math.round(secondsHere())} seconds. ${ITS_OWN}` : "A model begins with random numbers and reads the stories in this file. The page shows it while it learns.";
  show("train-said", problem || begun);
  show("train-curve", losses.length > 1 && lossCurve(losses, training.max_steps));
}

function secondsHere() {
  return here.seconds + (here.isRunning ? (performance.now() - here.began) / 1000 : 0);
}

// The loss of each step, from the loss of a guess among all words down to 0.
function lossCurve(losses, nSteps) {
  const [width, height] = [320, 60];
  const top = Math.log(liveTokenizer.vocabulary.length);
  const points = losses.map((loss, i) => `${((width * i) / nSteps).toFixed(1)},${(height * (1 - Math.min(loss, top) / top)).toFixed(1)}`);
  const about = { class: "curve", role: "img", "aria-label": "The loss of each step", width, height };
  return shape("svg", about, shape("polyline", { points: points.join(" ") }));
}

// Why this browser cannot train; "" if it can.
function noTraining(kernel) {
  if (!window.Worker || !window.WebAssembly || !window.DecompressionStream) return "This browser has no workers, WebAssembly or decompression: it cannot train. All the rest of the page works.";
  return WebAssembly.validate(kernel) ? "" : "This browser has no 128-bit SIMD in WebAssembly: it cannot train. All the rest of the page works.";
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

async function beginTraining() {
  endTraining();
  stopPlaying();
  const kernel = bytesOf(KERNEL);
  here.problem = noTraining(kernel);
  if (here.problem) return drawTraining();
  const { training } = live;
  const { n_stories: nStories = training.n_stories, ...changed } = here.chosen;
  const shape = { ...live.shape, ...changed };
  const parameters = live.parameters.filter(([name]) => !name.startsWith("blocks.") || Number(name.split(".")[1]) < shape.n_layer);
  Object.assign(here, { losses: [], step: 0, seconds: 0, shape, parameters });
  try {
    const packed = new Blob([bytesOf(training.stories)]).stream().pipeThrough(new DecompressionStream("gzip"));
    const stories = new Uint16Array(await new Response(packed).arrayBuffer());
    const address = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
    const nWorkers = Math.min(MOST_WORKERS, Math.max(1, navigator.hardwareConcurrency - 1));
    here.workers = Array.from({ length: nWorkers }, () => new Worker(address));
    const [leader, ...helpers] = here.workers;
    const common = { kernel: await WebAssembly.compile(kernel), shape, parameters, tokensPerBatch: training.tokens_per_batch, nWorkers };
    const ports = helpers.map((worker) => {
      const { port1, port2 } = new MessageChannel();
      worker.postMessage(common, [port2]);
      return port1;
    });
    const own = { stories, nStories, end: liveTokenizer.start, settings: training.optim, seed: here.seed ?? training.seed, maxSteps: training.max_steps };
    leader.postMessage({ ...common, ...own, leads: true }, ports);
    for (const worker of here.workers) worker.addEventListener("error", (event) => trainingFailed(event.message));
    leader.addEventListener("message", ({ data }) => trained(data));
    openShape(shape);
    runTraining(true);
  } catch (error) {
    trainingFailed(error.message);
  }
}

function trainingFailed(message) {
  endTraining();
  here.problem = `Training has ended: ${message || "a worker failed"}.`;
  drawTraining();
}

function endTraining() {
  for (const worker of here.workers) worker.terminate();
  Object.assign(here, { workers: [], isRunning: false });
}

function runTraining(isRunning) {
  here.seconds = secondsHere();
  Object.assign(here, { isRunning, began: performance.now() });
  here.workers[0].postMessage({ isRunning });
  drawTraining();
}

// A step is done; every few steps the page gets the weights.
function trained({ step, loss, weights, problem }) {
  if (problem || (step && !Number.isFinite(loss))) return trainingFailed(problem ?? "the loss is no number");
  here.step = step;
  if (step) here.losses.push(loss);
  if (step === live.training.max_steps) {
    here.seconds = secondsHere();
    here.isRunning = false;
  }
  if (weights) {
    passes.clear();
    liveModels.set(live.step, modelOf(here.shape, here.parameters, weights));
    update({ time: END, here: step });
  }
  if (step === 1 || !here.isRunning) drawTraining(); // the button to stop comes and goes
  else drawProgress();
}

addEventListener("beforeunload", (event) => here.isRunning && event.preventDefault());
