// Train here: the model of the page is trained anew in workers, and the page shows the model in training.

const MOST_WORKERS = 4;
const [CLOSE, FAR] = [100, 25]; // up to this step all weights that come are kept for the slider, then those of each 25th step
const REST = 400; // milliseconds between two drawings, of steps that come faster
const PAUSE = 1000; // milliseconds after a key in which only what is typed is drawn
const ITS_OWN = "What was tested, links and Python are about the model of the file: load the page again to see it; save this one first.";

// The model that is trained in this page: its workers, the loss of each step, its heads against their bars at step
// `watchedAt`, its weights at step `weightsAt`, the guess of the reader; and the chosen switches.
const NEW = { losses: [], step: 0, seconds: 0, heads: [], above: {}, watchedAt: 0, weights: null, weightsAt: 0, isSaved: true, guess: null, problem: "" };
const here = { ...structuredClone(NEW), workers: [], isRunning: false, began: 0, shape: null, chosen: {}, seed: null, asks: false };
let isPressed = false; // what is drawn between the press and the release of a button loses the click
for (const [name, pressed] of Object.entries({ pointerdown: true, pointerup: false, pointercancel: false })) addEventListener(name, () => (isPressed = pressed), true);

// Setting, title, and [value, text] of each choice; the first is that of the run.
function switches() {
  const { n_layer, n_head, d_model, position, scale } = ownShape;
  const { n_stories } = live.training;
  const upTo = (largest) => Array.from({ length: largest }, (_, i) => [largest - i, largest - i]);
  const yesOrNo = (own, yes) => [[own, own === yes ? "yes" : "no"], own === yes ? ["none", "no"] : [yes, "yes"]];
  return [
    ["n_layer", "Layers", upTo(n_layer)],
    ["n_head", "Heads in a layer", upTo(n_head).filter(([n]) => d_model % (16 * n) === 0)], // the kernel multiplies sixteen columns
    ["position", "Positions", yesOrNo(position, "rope")],
    ["scale", "Scores divided by √d", yesOrNo(scale, "inverse_sqrt")],
    ["n_stories", "Stories", [n_stories, Math.ceil(n_stories / 2)].map((n) => [n, n.toLocaleString("en")])],
  ];
}

// The controls are drawn when one of them changes, and not at each step: a click would be lost.
function drawTraining() {
  const { training } = live;
  const { workers, step, isRunning, chosen, asks, weights } = here;
  const menus = switches().map(([name, title, options]) => {
    const select = (value) => {
      if (value === options[0][0]) delete chosen[name];
      else chosen[name] = value;
    };
    return menu(title, options, chosen[name] ?? options[0][0], select);
  });
  const seed = element("input", { type: "number", min: 0, max: 999, value: here.seed ?? training.seed, "data-name": "train-seed" });
  seed.addEventListener("change", () => (seed.value = here.seed = Math.min(999, Math.max(0, Math.round(Number(seed.value) || 0)))));
  const file = element("input", { type: "file", accept: ".safetensors", hidden: true });
  file.addEventListener("change", () => openTrained(file.files[0]));
  const canStop = workers.length && step < training.max_steps;
  const begin = button(weights ? "Train again" : "Train here", askFirst, "train");
  const actions = [
    canStop && button(isRunning ? "Stop" : "Continue", () => runTraining(!isRunning), "train-stop"),
    weights && button("Save this model", saveTrained, "train-save"),
    button("Open a saved one", () => file.click(), "train-open"),
  ];
  const guesses = [["yes", true], ["no", false], ["do not ask", null]].map(([text, guess]) => chip(text, () => beginTraining(guess), `train-guess-${text}`));
  const question = asks && element("p", { class: "actions" }, `Guess first: will a head find the word that is meant in the question “${training.questions[0].name}”? `, ...guesses);
  show("train", element("p", { class: "actions" }, begin, ...actions, file, labelled("Seed", seed), ...menus), question, element("p", { class: "rule", id: "train-said" }), element("div", { id: "train-curve" }), element("div", { id: "train-heads" }));
  drawProgress();
}

function drawProgress() {
  const { training } = live;
  const { losses, step, problem, heads, above, watchedAt } = here;
  const reached = `Step ${step} of ${training.max_steps}, loss ${losses.at(-1)?.toFixed(3)}, ${Math.round(secondsHere())} seconds. ${ended()}${ITS_OWN}`;
  const begun = losses.length ? reached : "A model begins with random numbers and reads the stories in this file. The page shows it while it learns.";
  show("train-said", [problem, begun].join(" "));
  show("train-curve", losses.length > 1 && lossCurve(losses, training));
  part("step").max = steps.length; // also while the reader looks at an earlier step
  if (!heads.length) return show("train-heads");
  const rows = heads.map(({ name, head, accuracy, bar, answers }) => [name, headName(headAt(head)), number(accuracy), number(bar), above[name] !== undefined ? `step ${above[name]}` : step < training.max_steps ? "not yet" : "never", number(answers)]);
  const note = `At step ${watchedAt}, the best head of each question, in ${training.questions[0].items.length} sentences that the model has not read: the share in which the head looks most at the word that is meant. The bar is what the best of these heads reaches by chance in 5 of 100 cases: now and then one is above it by chance. Whether the answer depends on a head is tested by eval.py.`;
  show("train-heads", scrolled("The best heads", tableOf(["question", "head", "looks right", "bar", "above since", "answers right"], rows)), remark(note));
}

// What a training has shown at its end, beside the guess.
function ended() {
  const { heads, above, guess, step } = here;
  if (step < live.training.max_steps || !heads.length) return "";
  const none = heads.filter(({ name }) => above[name] === undefined).map(({ name }) => `“${name}”`);
  const found = none.length ? `No head is above its bar for ${none.join(" and ")}. ` : "A head is above its bar for each question. ";
  if (guess === null) return found;
  return `${found}You guessed ${guess ? "that one would be" : "that none would be"} for “${heads[0].name}”: ${guess === (above[heads[0].name] !== undefined) ? "right" : "not so"}. `;
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
  const about = { class: "curve", role: "img", "aria-label": `The loss of each step, and ${number(floor)}, that of the best model there can be on new stories`, width, height };
  const bound = shape("line", { x1: 0, x2: width, y1: y(floor), y2: y(floor), class: "bound" });
  return shape("svg", about, bound, shape("polyline", { points: points.join(" ") }), shape("text", { x: width, y: y(floor) - 4 }, `lower bound ${number(floor)}`));
}

// The fastest kernel that this browser runs; an error says why there is none.
function usableKernel() {
  const rest = "it cannot train. All the rest of the page works.";
  if (!window.Worker || !window.WebAssembly || !window.DecompressionStream) throw new Error(`This browser has no workers, WebAssembly or decompression: ${rest}`);
  const kernel = KERNELS.map(bytesOf).find((bytes) => WebAssembly.validate(bytes));
  if (!kernel) throw new Error(`This browser has no 128-bit SIMD in WebAssembly: ${rest}`);
  return WebAssembly.compile(kernel);
}

function unzipped(base64) {
  return new Response(new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip")));
}

function askFirst() {
  if (!Object.keys(here.chosen).length) return beginTraining(null);
  here.asks = true;
  drawTraining();
}

// The last card asks whether one layer will do.
function trainOneLayer(guess) {
  here.chosen = { n_layer: 1 };
  part("train").hidden = false; // it may have to say why this browser cannot train
  beginTraining(guess);
}

// [name, size] of each weight of a model of this shape, which has at most the layers of the run.
function parametersOf({ n_layer }) {
  return live.parameters.filter(([name]) => !name.startsWith("blocks.") || Number(name.split(".")[1]) < n_layer);
}

// Begin anew with a model of this shape, which is shown when its first weights come.
function openTraining(shape, values) {
  endTraining();
  Object.assign(here, structuredClone(NEW), { shape, parameters: parametersOf(shape), asks: false, isOpen: false }, values);
}

async function beginTraining(guess) {
  const { training } = live;
  const run = (here.run = {}); // a second press while this one waits takes its place
  const { n_stories: nStories = training.n_stories, ...changed } = here.chosen;
  const shape = { ...ownShape, ...changed };
  const seed = here.seed ?? training.seed;
  try {
    const kernel = await usableKernel();
    const stories = new Uint16Array(await unzipped(training.stories).arrayBuffer());
    if (here.run !== run) return;
    openTraining(shape, { guess, nStories, seedUsed: seed });
    const address = URL.createObjectURL(new Blob([WORKER], { type: "text/javascript" }));
    const nWorkers = Math.min(MOST_WORKERS, Math.max(1, navigator.hardwareConcurrency - 1));
    here.workers = Array.from({ length: nWorkers }, () => new Worker(address));
    URL.revokeObjectURL(address);
    const [leader, ...helpers] = here.workers;
    const common = { kernel, shape, parameters: here.parameters };
    const ports = helpers.map((worker) => {
      const { port1, port2 } = new MessageChannel();
      worker.postMessage(common, [port2]);
      return port1;
    });
    const { questions, optim: settings, max_steps: maxSteps, tokens_per_batch } = training;
    leader.postMessage({ ...common, stories, nStories, questions, settings, maxSteps, seed, end: liveTokenizer.start, nRows: tokens_per_batch / shape.context_length }, ports);
    for (const worker of here.workers) worker.addEventListener("error", (event) => trainingFailed(event.message));
    leader.addEventListener("message", ({ data }) => trained(data));
    runTraining(true);
  } catch (error) {
    if (here.run === run) trainingFailed(error.message);
  }
}

function trainingFailed(message) {
  endTraining();
  here.problem = /cannot train/.test(message) ? message : `Training has ended: ${message || "a worker failed"}.`;
  drawTraining();
}

function endTraining() {
  for (const worker of here.workers) worker.terminate();
  clearTimeout(here.timer);
  Object.assign(here, { workers: [], isRunning: false, seconds: secondsHere(), timer: null });
}

function runTraining(isRunning) {
  here.seconds = secondsHere();
  Object.assign(here, { isRunning, began: performance.now(), problem: "" });
  here.workers[0].postMessage({ isRunning });
  drawTraining();
}

// A step is done, or training has been stopped; every few steps and then the page gets the weights, and more rarely how well
// each head does.
function trained({ step, loss, weights, heads, problem }) {
  if (problem || (loss !== undefined && !Number.isFinite(loss))) return trainingFailed(problem ?? "the loss is no number");
  here.step = step;
  if (loss !== undefined) here.losses.push(loss);
  if (step === live.training.max_steps && here.isRunning) Object.assign(here, { seconds: secondsHere(), isRunning: false });
  if (heads) keepHeads(heads, step);
  if (weights) keepWeights(weights, step);
  here.timer ??= setTimeout(drawTrained, REST);
}

// Draw the page with the newest weights, unless the reader looks at earlier ones, is typing, pressing, guessing or searching.
// All controls are drawn if a button comes or goes.
function drawTrained() {
  here.timer = null;
  const { weightsAt, weights, isRunning, workers } = here;
  const isFree = state.time === END && !isPressed && !state.saying && !isGuessing() && !isSearching() && performance.now() - typedAt > PAUSE;
  if (isFree && state.here !== weightsAt) update({ here: weightsAt });
  const buttons = JSON.stringify([Boolean(weights), isRunning, workers.length]);
  if (buttons === here.buttons || isPressed) drawProgress();
  else drawTraining();
  if (!isPressed) here.buttons = buttons;
  if (state.time === END && state.here !== weightsAt) here.timer = setTimeout(drawTrained, 3 * REST);
}

// A head of a question is above its bar from a step on if it is so at each look after that.
function keepHeads(heads, step) {
  Object.assign(here, { heads, watchedAt: step });
  for (const { name, accuracy, bar } of heads) here.above[name] = accuracy > bar ? (here.above[name] ?? step) : undefined;
}

// The first weights of a model change the shape that the page shows.
function keepWeights(weights, step) {
  if (!here.isOpen) {
    stopPlaying();
    liveModels.clear();
    openShape(here.shape);
    here.isOpen = true;
  }
  Object.assign(here, { weights, weightsAt: step, isSaved: step === 0 });
  const model = modelOf(here.shape, here.parameters, weights);
  liveModels.set(live.step, model);
  if (step < live.training.max_steps && (step <= CLOSE || step % FAR === 0) && step !== steps.at(-1)) {
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
  const { shape, parameters, weights, weightsAt: step, losses, heads, above, watchedAt, seedUsed, nStories } = here;
  const { config, tokenizer } = await unzipped(live.training.file).json();
  config.model = shape;
  config.run.seed = seedUsed;
  const made = { config, tokenizer, step, n_stories: nStories, losses: losses.slice(0, step), heads, above, watchedAt, seconds: secondsHere() };
  const header = { __metadata__: { format: "pt", antecedent: JSON.stringify(made) } };
  let at = 0;
  for (const [name, size] of parameters) header[name] = { dtype: "F32", shape: sizesOf(name, size), data_offsets: [4 * at, 4 * (at += size)] };
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(Math.ceil(text.length / 8) * 8).fill(32); // with spaces
  padded.set(text);
  const used = { ...shape, n_stories: nStories };
  const changed = switches().filter(([name, , options]) => used[name] !== options[0][0]).map(([name]) => `_${name}_${used[name]}`);
  saveAs(`antecedent_seed${seedUsed}${changed.join("")}_step${step}.safetensors`, new Blob([new BigUint64Array([BigInt(padded.length)]), padded, weights]));
  here.isSaved = true;
}

async function openTrained(file) {
  try {
    const bytes = await file.arrayBuffer();
    const length = Number(new BigUint64Array(bytes.slice(0, 8))[0]);
    const text = new TextDecoder().decode(bytes.slice(8, 8 + length));
    const { config, tokenizer, step, n_stories: nStories, losses, heads, above, watchedAt, seconds } = JSON.parse(JSON.parse(text).__metadata__.antecedent);
    const own = await unzipped(live.training.file).json();
    const values = new Float32Array(bytes.slice(8 + length));
    const shape = { ...ownShape, ...config.model };
    const isPossible = switches().every(([name, , options]) => name === "n_stories" || options.some(([value]) => value === shape[name]));
    const isTraining = config.data_fingerprint === own.config.data_fingerprint && config.run.max_steps === own.config.run.max_steps;
    const isSame = isTraining && tokenizer === own.tokenizer && ["d_model", "d_mlp", "context_length"].every((name) => shape[name] === live.shape[name]);
    const size = parametersOf(shape).reduce((sum, [, each]) => sum + each, 0);
    if (!isPossible || !isSame || values.length !== size || losses.length !== step || !heads.every(({ head }) => head.length)) throw new Error("another model");
    here.run = null;
    openTraining(shape, { losses, step, heads, above, watchedAt, seconds, seedUsed: config.run.seed, nStories });
    keepWeights(values, step);
    here.isSaved = true;
    update({ here: step });
    drawTraining();
  } catch {
    here.problem = `${file.name} is not a model that this page has saved.`;
    drawProgress();
  }
}

addEventListener("beforeunload", (event) => (here.isRunning || !here.isSaved) && event.preventDefault());
