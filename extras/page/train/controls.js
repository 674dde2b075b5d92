// Train here: the model of the page is trained anew in workers, and the page shows the model in training.

const MOST_WORKERS = 4;
const [CLOSE, FAR] = [100, 25]; // up to this step all weights that come are kept for the slider, then those of each 25th step
const PAUSE = 1000; // milliseconds after a key in which only what is typed is drawn
const ITS_OWN = "What was tested, links and Python are about the model of the file: load the page again to see it.";

// The model that is trained in this page: its workers, the loss of each step, its heads against their bars, the chosen
// switches, and the guess of the reader.
const NEW = { losses: [], step: 0, seconds: 0, heads: [], above: {}, weights: null, problem: "" };
const here = { ...structuredClone(NEW), workers: [], isRunning: false, began: 0, shape: null, chosen: {}, seed: null, asks: false, guess: null };

// Setting, title, and [value, text] of each choice; the first is that of the run.
function switchesOf({ n_layer, n_head, d_model, position, scale }) {
  const { n_stories } = live.training;
  const upTo = (largest, isPossible) => Array.from({ length: largest }, (_, i) => largest - i).filter(isPossible).map((n) => [n, String(n)]);
  const yesOrNo = (own, yes) => [[own, own === yes ? "yes" : "no"], own === yes ? ["none", "no"] : [yes, "yes"]];
  return [
    ["n_layer", "Layers", upTo(n_layer, () => true)],
    ["n_head", "Heads in a layer", upTo(n_head, (n) => d_model % (16 * n) === 0)], // the kernel multiplies sixteen columns
    ["position", "Positions", yesOrNo(position, "rope")],
    ["scale", "Scores divided by √d", yesOrNo(scale, "inverse_sqrt")],
    ["n_stories", "Stories", [n_stories, Math.ceil(n_stories / 2)].map((n) => [n, n.toLocaleString("en")])],
  ];
}

// The controls are drawn when one of them changes, and not at each step: a click would be lost.
function drawTraining() {
  const { training } = live;
  const { workers, step, isRunning, chosen, asks, weights } = here;
  here.switches ??= switchesOf(live.shape); // which changes with what is trained
  const menus = here.switches.map(([name, title, options]) => {
    const select = (value) => {
      if (value === options[0][0]) delete chosen[name];
      else chosen[name] = value;
    };
    return menu(title, options, chosen[name] ?? options[0][0], select);
  });
  const seed = element("input", { type: "number", min: 0, max: 999, value: here.seed ?? training.seed, "data-name": "train-seed" });
  seed.addEventListener("change", () => (here.seed = Math.min(999, Math.max(0, Math.round(Number(seed.value) || 0)))));
  const file = element("input", { type: "file", accept: ".safetensors", hidden: true });
  file.addEventListener("change", () => openTrained(file.files[0]).catch(({ message }) => trainingFailed(message)));
  const canStop = workers.length && step < training.max_steps;
  const begin = button(weights ? "Train again" : "Train here", askFirst, { "data-name": "train" });
  const actions = [
    canStop && button(isRunning ? "Stop" : "Continue", () => runTraining(!isRunning), { "data-name": "train-stop" }),
    weights && button("Save this model", saveTrained, { "data-name": "train-save" }),
    button("Open a saved one", () => file.click(), { "data-name": "train-open" }),
  ];
  const guesses = [["yes", true], ["no", false], ["do not ask", null]].map(([text, guess]) => chip(text, () => beginTraining(guess), `train-guess-${text}`));
  const question = asks && element("p", { class: "actions" }, `Guess first: will a head find the word that is meant in the question “${training.questions[0].name}”? `, ...guesses);
  const seedLabel = element("label", { class: "menu" }, element("span", {}, "Seed"), seed);
  show("train", element("p", { class: "actions" }, begin, ...actions, file, seedLabel, ...menus), question, element("p", { class: "rule", id: "train-said" }), element("div", { id: "train-curve" }), element("div", { id: "train-heads" }));
  drawProgress();
}

function drawProgress() {
  const { training } = live;
  const { losses, step, problem, heads, above } = here;
  const begun = losses.length ? `Step ${step} of ${training.max_steps}, loss ${losses.at(-1).toFixed(3)}, ${Math.round(secondsHere())} seconds. ${ended()}${ITS_OWN}` : "A model begins with random numbers and reads the stories in this file. The page shows it while it learns.";
  show("train-said", problem || begun);
  show("train-curve", losses.length > 1 && lossCurve(losses, training));
  if (!heads.length) return show("train-heads");
  const rows = heads.map(({ name, head, accuracy, bar, answers }) => [name, headName(...head), number(accuracy), number(bar), above[name] ? `step ${above[name]}` : step < training.max_steps ? "not yet" : "never", number(answers)]);
  const note = `The best head of each question, in ${training.questions[0].items.length} sentences that it has not read: the share in which it looks most at the word that is meant. The bar is what the best of these heads reaches by chance in 5 of 100 cases; it is above by chance now and then. What it does is tested by eval.py.`;
  show("train-heads", scrolled("The best heads", tableOf(["question", "head", "looks right", "bar", "above since", "answers right"], rows)), remark(note));
}

// What a training has shown at its end, beside the guess.
function ended() {
  const { heads, above, guess, step } = here;
  if (step < live.training.max_steps) return "";
  const none = heads.filter(({ name }) => !above[name]).map(({ name }) => `“${name}”`);
  const found = none.length ? `No head is above its bar for ${none.join(" and ")}. ` : "A head is above its bar for each question. ";
  if (guess === null) return found;
  return `${found}You guessed ${guess ? "that one would be" : "that none would be"} for “${heads[0].name}”: ${guess === Boolean(above[heads[0].name]) ? "right" : "not so"}. `;
}

function secondsHere() {
  return here.seconds + (here.isRunning ? (performance.now() - here.began) / 1000 : 0);
}

// The loss of each step, and its lower bound; what is above 2.5 times the bound, as at the beginning, is drawn at the top.
function lossCurve(losses, { max_steps, floor }) {
  const [width, height] = [320, 60];
  const [top, bottom] = [2.5 * floor, 0.9 * floor];
  const y = (loss) => ((height * (top - Math.min(loss, top))) / (top - bottom)).toFixed(1);
  const points = losses.map((loss, i) => `${((width * i) / max_steps).toFixed(1)},${y(loss)}`);
  const about = { class: "curve", role: "img", "aria-label": `The loss of each step, and ${number(floor)}, the lowest that any model can reach`, width, height };
  const bound = shape("line", { x1: 0, x2: width, y1: y(floor), y2: y(floor), class: "bound" });
  return shape("svg", about, bound, shape("polyline", { points: points.join(" ") }), shape("text", { x: width, y: y(floor) - 4 }, `lower bound ${number(floor)}`));
}

// Why this browser cannot train; "" if it can.
function noTraining() {
  if (!window.Worker || !window.WebAssembly || !window.DecompressionStream) return "This browser has no workers, WebAssembly or decompression: it cannot train. All the rest of the page works.";
  return KERNELS.map(bytesOf).some((kernel) => WebAssembly.validate(kernel)) ? "" : "This browser has no 128-bit SIMD in WebAssembly: it cannot train. All the rest of the page works.";
}

function bytesOf(base64) {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

function unzipped(base64) {
  return new Response(new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip")));
}

function askFirst() {
  if (!Object.keys(here.chosen).length) return beginTraining(null);
  here.asks = true;
  drawTraining();
}

// What the last card asks.
function trainOneLayer(guess) {
  here.chosen = { n_layer: 1 };
  part("train").hidden = false; // it may have to say why this browser cannot train
  beginTraining(guess);
}

// Show from now on a model of this shape that has no weights yet.
function openTraining(shape) {
  endTraining();
  stopPlaying();
  const parameters = live.parameters.filter(([name]) => !name.startsWith("blocks.") || Number(name.split(".")[1]) < shape.n_layer);
  Object.assign(here, structuredClone(NEW), { shape, parameters, asks: false });
  openShape(shape);
}

async function beginTraining(guess) {
  here.problem = noTraining();
  if (here.problem) return drawTraining();
  const { training } = live;
  const { n_stories: nStories = training.n_stories, ...changed } = here.chosen;
  const shape = { ...live.shape, ...Object.fromEntries(here.switches.map(([name, , options]) => [name, options[0][0]])), ...changed };
  delete shape.n_stories;
  openTraining(shape);
  Object.assign(here, { guess, nStories, seedUsed: here.seed ?? training.seed });
  try {
    const stories = new Uint16Array(await unzipped(training.stories).arrayBuffer());
    const address = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
    const nWorkers = Math.min(MOST_WORKERS, Math.max(1, navigator.hardwareConcurrency - 1));
    here.workers = Array.from({ length: nWorkers }, () => new Worker(address));
    const [leader, ...helpers] = here.workers;
    const common = { kernel: await WebAssembly.compile(KERNELS.map(bytesOf).find((kernel) => WebAssembly.validate(kernel))), shape, parameters: here.parameters };
    const ports = helpers.map((worker) => {
      const { port1, port2 } = new MessageChannel();
      worker.postMessage(common, [port2]);
      return port1;
    });
    const { questions, optim: settings, max_steps: maxSteps, tokens_per_batch } = training;
    const own = { stories, nStories, questions, settings, maxSteps, end: liveTokenizer.start, seed: here.seedUsed, nRows: tokens_per_batch / shape.context_length };
    leader.postMessage({ ...common, ...own }, ports);
    for (const worker of here.workers) worker.addEventListener("error", (event) => trainingFailed(event.message));
    leader.addEventListener("message", ({ data }) => trained(data));
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

// A step is done; every few steps the page gets the weights, and more rarely how well each head does.
function trained({ step, loss, weights, heads, problem }) {
  if (problem || (step && !Number.isFinite(loss))) return trainingFailed(problem ?? "the loss is no number");
  here.step = step;
  if (step) here.losses.push(loss);
  if (step === live.training.max_steps) {
    here.seconds = secondsHere();
    here.isRunning = false;
  }
  if (heads) showHeads(heads, step);
  if (weights) keepWeights(weights, step);
  clearTimeout(here.timer);
  here.timer = setTimeout(drawTrained, performance.now() - typedAt < PAUSE ? PAUSE : 0, step === 0 || !here.isRunning);
}

// The page with the newest weights, unless the reader looks at earlier ones; all controls if the button to stop comes or goes.
function drawTrained(isWhole) {
  if (state.time === END) update({ here: here.step });
  else state.here = here.step;
  if (isWhole) drawTraining();
  else drawProgress();
}

// A head of a question is above its bar from a step on if it is so at each look after that.
function showHeads(heads, step) {
  here.heads = heads;
  for (const { name, accuracy, bar } of heads) here.above[name] = accuracy > bar ? (here.above[name] ?? step) : undefined;
}

function keepWeights(weights, step) {
  here.weights = weights;
  const model = modelOf(here.shape, here.parameters, weights);
  liveModels.set(live.step, model);
  if (step < live.training.max_steps && (step <= CLOSE || step % FAR === 0)) {
    liveModels.set(step, model);
    steps.push(step);
  }
  passes.clear();
}

// [rows, columns] of a matrix, [numbers] of a gain, as in model/transformer.py
function sizesOf(name, size) {
  if (name.endsWith("gain")) return [size];
  const columns = name.includes("down") ? live.shape.d_mlp : live.shape.d_model;
  return [size / columns, columns];
}

// One .safetensors: eight bytes with the length of a JSON header, the header, the numbers.
async function saveTrained() {
  const { shape, parameters, weights, losses, step, seedUsed, nStories } = here;
  const { config, tokenizer } = await unzipped(live.training.file).json();
  const { n_layer, n_head, position, scale } = shape;
  config.model = { ...config.model, n_layer, n_head, position, scale };
  config.run = { ...config.run, seed: seedUsed };
  const header = { __metadata__: { format: "pt", antecedent: JSON.stringify({ config, tokenizer, losses, step, n_stories: nStories }) } };
  let at = 0;
  for (const [name, size] of parameters) header[name] = { dtype: "F32", shape: sizesOf(name, size), data_offsets: [4 * at, 4 * (at += size)] };
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(32); // with spaces
  padded.set(text);
  saveAs(`antecedent_seed${seedUsed}_step${step}.safetensors`, new Blob([new BigUint64Array([BigInt(padded.length)]), padded, weights]));
}

async function openTrained(file) {
  const bytes = await file.arrayBuffer();
  const refuse = () => {
    throw new Error(`${file.name} is not a model that this page has saved`);
  };
  if (bytes.byteLength < 8) refuse();
  const length = Number(new BigUint64Array(bytes.slice(0, 8))[0]);
  const read = (text) => {
    try {
      return JSON.parse(text);
    } catch {
      return refuse();
    }
  };
  const { __metadata__: metadata } = read(new TextDecoder().decode(bytes.slice(8, 8 + length)));
  const { config, tokenizer, losses, step, n_stories } = read(metadata?.antecedent ?? "");
  const own = await unzipped(live.training.file).json();
  const data = bytes.slice(8 + length);
  const shape = { ...live.shape, ...config.model };
  const isOurs = tokenizer === own.tokenizer && ["d_model", "d_mlp", "context_length"].every((name) => shape[name] === live.shape[name]) && shape.n_layer <= own.config.model.n_layer;
  if (!isOurs) refuse();
  openTraining(shape);
  if (data.byteLength !== 4 * here.parameters.reduce((sum, [, size]) => sum + size, 0)) refuse();
  Object.assign(here, { losses, step, seedUsed: config.run.seed, nStories: n_stories });
  keepWeights(new Float32Array(data), step);
  drawTrained(true);
}

addEventListener("beforeunload", (event) => here.isRunning && event.preventDefault());
