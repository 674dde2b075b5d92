"""Training in the page: its kernel, gradients and rule against torch, and a model that learns in a real browser."""

import gzip
import json
import re
from base64 import b64decode, b64encode
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antecedent_lab import open_model
from data.corpus import load_corpus
from data.loader import training_batches
from extras.page.content import page_content
from extras.page.page import page
from extras.page.shown import Live, LiveTraining
from extras.page.train import FOLDER, WORKER, kernel_texts
from extras.page.train.saved import run_of
from extras.page.train.stories import training_of
from model.transformer import Transformer, draw_outputs
from probe.attention import measure_heads
from probe.emergence import watched_stories
from probe.opened_run import load_data
from probe.outcomes import OUTCOMES
from probe.saved import read_metrics
from settings.errors import UserError
from settings.train import compose_settings
from settings.typed_json import to_json
from tests.extras.page import sample
from tests.program import SMALL, run_program
from tests.tiny_models import random_model
from training.metrics import load_metrics
from training.optim import COEFFICIENTS, MARGIN, learning_rate_factor, make_optimizers, set_learning_rates

QUESTIONS = ["verb", "number", "gender"]
KERNELS = (FOLDER / "kernel.txt").read_text().split()
KERNEL = KERNELS[0]  # with relaxed_madd
SETTINGS = compose_settings(["precision=float32"])
OPTIM = {**vars(SETTINGS.optim), "name": "muon", "coefficients": COEFFICIENTS, "margin": MARGIN}
N_ROWS, LENGTH, V = 4, 32, 45
SHAPE = {"n_layer": 2, "n_head": 4, "d_model": 64, "d_mlp": 48, "context_length": LENGTH}

# Train on the batches of `task`; return the loss of each step, and the gradient of the last one or the first weights.
TRAIN = """(task) => {
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const kernel = new WebAssembly.Module(bytes(task.kernel));
  const trainer = new Trainer(kernel, task.shape, task.parameters);
  const weights = task.weights && new Float32Array(bytes(task.weights).buffer);
  let at = 0;
  if (weights) for (const [name, size] of task.parameters) trainer.views[name].set(weights.subarray(at, (at += size)));
  else initialise(trainer, task.parameters, task.seed);
  const rule = new Rule(trainer, task.settings);
  const losses = task.batches.map((batch, step) => {
    const nAll = batch.flatMap(({ targets }) => targets).filter((target) => target >= 0).length;
    const loss = trainer.lossAndGradient(batch, nAll) / nAll;
    if (task.maxSteps) rule.step(step, task.maxSteps);
    return loss;
  });
  const prefix = losses.length ? "d " : "";
  const cells = task.parameters.map(([name, size]) => [...trainer.views[prefix + name].subarray(0, size)]);
  return { losses, cells };
}"""


@pytest.fixture(scope="module")
def train_script(browser):
    """Run a function of JavaScript in the browser, with the scripts of the workers, on a value."""
    scripts = "\n".join((FOLDER / f"{name}.js").read_text() for name in WORKER if name != "worker")
    opened = browser.new_page()
    yield lambda code, value: opened.evaluate(
        f"it => (new Function({json.dumps(f'{scripts} return {code}')})())(it)", value
    )
    opened.close()


@pytest.fixture(scope="module")
def train(train_script):
    """Run TRAIN on a model and batches."""

    def run(model, batches, **task):
        parameters = [(name, weight.numel()) for name, weight in model.named_parameters()]
        task = {
            "kernel": KERNEL, "shape": to_json(model.config), "parameters": parameters, "settings": OPTIM,
            "batches": [as_page(batch, model.config.context_length) for batch in batches], **task,
        }  # fmt: skip
        return train_script(TRAIN, task)

    return run


def random_batch(seed):
    """Return tokens, targets (-1: no loss) and document ids [rows, length] of packed documents of random tokens."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(V, size=(N_ROWS, LENGTH + 1)) % rng.integers(2, V)  # some are frequent
    ids = np.full((N_ROWS, LENGTH), -1)
    for row in ids:
        first, second = sorted(rng.integers(4, LENGTH, size=2))
        row[:first], row[first:second] = 0, 1  # the rest is padding
    return tokens[:, :-1], np.where(ids < 0, -1, tokens[:, 1:]), ids


def as_page(batch, length):
    """Return a batch as rows of the page, filled up to `length` tokens."""
    rows = []
    for of_row in zip(*batch, strict=True):
        filled = [
            np.pad(part, (0, length - len(part)), constant_values=by)
            for part, by in zip(of_row, (0, -1, -1), strict=True)
        ]
        tokens, targets, ids = filled
        places = np.arange(length)
        first = np.maximum.accumulate(np.where(np.diff(ids, prepend=-2) != 0, places, 0))
        listed = {"tokens": tokens, "targets": targets, "positions": np.where(ids < 0, 0, places - first)}
        rows.append({name: cells.tolist() for name, cells in listed.items()})
    return rows


def torch_loss(model, batch):
    tokens, targets, ids = (torch.from_numpy(part.astype(np.int64)) for part in batch)
    return model(tokens, ids, targets.where(targets >= 0, -100)) / int((targets >= 0).sum())


def packed(model):
    return b64encode(torch.cat([each.detach().ravel() for each in model.parameters()]).numpy().tobytes()).decode()


def test_the_kernels_of_the_page_are_what_their_texts_assemble_to():
    wasmtime = pytest.importorskip("wasmtime")
    assembled = [bytes(wasmtime.wat2wasm(text)) for text in kernel_texts()]
    assert assembled == [b64decode(kernel) for kernel in KERNELS] and assembled[0] != assembled[1]


CHANGES = [{}, {"n_layer": 1}, {"n_head": 2}, {"n_head": 1}, {"position": "none"}, {"scale": "none"}]


@pytest.mark.parametrize("kernel", KERNELS, ids=["relaxed", "plain"])
@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_gradient_of_each_weight_is_torch_s(train, changes, kernel):
    model = Transformer(random_model(V, **SHAPE | changes).config, V, 3)
    draw_outputs(model, 3)  # those of a new model are 0, and most gradients too
    batch = random_batch(7)
    found = train(model, [batch], weights=packed(model), kernel=kernel)
    loss = torch_loss(model.double(), batch)  # float32 has errors of its own, with large scores of the same size
    loss.backward()
    assert found["losses"] == [pytest.approx(loss.item(), abs=1e-5)]
    for cells, (name, weight) in zip(found["cells"], model.named_parameters(), strict=True):
        expected = weight.grad.ravel()
        assert float((torch.tensor(cells, dtype=torch.double) - expected).abs().max()) <= 1e-5 * float(
            expected.abs().max()
        ), name


def test_the_first_weights_are_those_of_the_same_seed(train):
    model = Transformer(random_model(V, **SHAPE).config, V, 5)
    for cells, weight in zip(train(model, [], seed=5)["cells"], model.parameters(), strict=True):
        torch.testing.assert_close(
            torch.tensor(cells, dtype=torch.float32), weight.detach().ravel(), atol=1e-6, rtol=1e-5
        )


def test_forty_steps_have_the_losses_of_torch(train):
    model = Transformer(random_model(V, **SHAPE).config, V, 3)
    batches = [random_batch(seed) for seed in range(40)]
    found = train(model, batches, seed=3, maxSteps=60)["losses"]
    optimizers = make_optimizers(model, SETTINGS.optim, torch.float32)
    expected = []
    for step, batch in enumerate(batches):
        model.zero_grad()
        loss = torch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.optim.clip_norm)
        factor = learning_rate_factor(step, SETTINGS.optim.warmup_steps, 60, SETTINGS.optim.decay_power)
        set_learning_rates(optimizers, factor)
        for optimizer in optimizers:
            optimizer.step(torch.ones(()))
        expected.append(loss.item())
    assert found == pytest.approx(expected, abs=1e-3) and min(found) < max(found) - 0.3


def test_forty_steps_have_the_losses_of_train_py(train, trained_run, cache, tmp_path):
    run = tmp_path / "run"
    result = run_program(
        "train.py", f"out={run}", cache, *SMALL, "probe_sequences=8", "precision=float32", "max_steps=40",
        "log_every_steps=1", "seed=2",
    )  # fmt: skip
    assert result.status == 0, result.err
    expected = [record.loss for record in load_metrics(run).train]
    opened = open_model(run, device="cpu")
    settings = opened.settings
    split = load_data(opened, settings.run.cache_dir).train
    length = settings.model.context_length
    batches = training_batches(split, tokens_per_batch=settings.run.tokens_per_batch, context_length=length, seed=2)
    arrays = []
    for step in range(40):
        batch = batches.at(step)
        targets = batch.targets.masked_fill(batch.targets < 0, -1)
        arrays.append([part.numpy() for part in (batch.tokens, targets, batch.document_ids)])
    parameters = {**OPTIM, **vars(settings.optim), "name": "muon"}
    found = train(opened.transformer, arrays, seed=2, maxSteps=40, settings=parameters)["losses"]
    assert found == pytest.approx(expected, abs=1e-3)


FILE = {"config": {"model": {}, "run": {}}, "tokenizer": "the tokenizer"}
ITEMS = 2 * [
    {"tokens": [0, 1, 2, 3], "meant": [[1]], "other": [[2]], "answers": [4], "foils": [5]},
    {"tokens": [0, 2, 1, 3], "meant": [[2]], "other": [[1]], "answers": [4], "foils": [5]},
]
STORIES = ["The dog slept.", "The bus slept.", "The dog and the bus slept."]


def training(n_steps=60):
    """Return the training of a page of `sample`, on three stories again and again."""
    live = to_json(sample.content().live.model)
    start = live["tokenizer"]["start"]
    tokens = []
    for story in STORIES * 40:
        tokens += [start, *sample.read(live, story).tokens[1:]]
    packed = [
        gzip.compress(content) for content in (np.array([*tokens, start], "<u2").tobytes(), json.dumps(FILE).encode())
    ]
    stories, file = [b64encode(content).decode() for content in packed]
    return LiveTraining(
        stories=stories, n_stories=120, tokens_per_batch=288, max_steps=n_steps, seed=1, optim=OPTIM,
        questions=[{"name": "verb", "items": ITEMS, "clusterings": [[[0], [1]]]}], floor=0.5, file=file,
    )  # fmt: skip


@pytest.fixture
def opened(show, request):
    """A page that trains for 60 steps, or for `param`."""
    content = sample.content()
    trains = training(getattr(request, "param", 60))
    with show(replace(content, live=Live(replace(content.live.model, training=trains), ""))) as view:
        yield view


@pytest.mark.parametrize("n_stories", [1, 2, 3])
def test_few_stories_fill_a_batch_by_being_read_again(train_script, n_stories):
    tokens = [9, 1, 2, 9, 3, 9, 4, 5, 6, 9]
    made = train_script(
        """({ tokens, n }) => {
          const batches = batchesOf(tokens, 9, n, 3, 8, 1);
          const read = (row) => ({ ...rowOf(tokens, row, 8), stories: row.length });
          return [0, 1].map(() => batches.next().value.map(read));
        }""",
        {"tokens": tokens, "n": n_stories},
    )
    known = [(tokens[start : start + size], size) for start, size in ((0, 3), (3, 2), (5, 4))[:n_stories]]
    for row in (row for batch in made for row in batch):
        read, targets, positions = (row[name] for name in ("tokens", "targets", "positions"))
        ends = [place + 1 for place, target in enumerate(targets) if target == 9]  # the last target of a story
        assert len(read) == 8 and len(ends) == row["stories"] > 0
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            assert (read[start:end], end - start) in known
            assert positions[start:end] == [*range(end - start)]
        assert set(targets[ends[-1] :]) <= {-1}


def stopped_step(view):
    """Press Stop, and return the step at which the page stays: its last step may be taken and drawn a while later."""
    view.press("Stop")
    reached = -1
    while reached != step_of(view):
        reached = step_of(view)
        view.page.wait_for_timeout(1000)
    return reached


def step_of(view):
    return int(re.search(r"Step (\d+)", view.said("#train-said"))[1])


def test_the_page_trains_its_model_and_shows_it_meanwhile(opened):
    view = opened
    view.type("The dog")
    of_file = view.said("#model-name")
    view.press("Train here")
    view.find("#train-said:has-text('Step 60 of 60')").wait_for(timeout=30_000)
    assert view.next_words()[0].startswith(("slept", "and"))
    losses = view.find(".curve polyline").get_attribute("points").split()
    assert len(losses) == 60 and float(losses[0].split(",")[1]) < float(losses[-1].split(",")[1])  # it falls
    view.type("The dog slept")
    assert view.next_words()[0].split()[0] == "." and float(view.next_words()[0].split()[-1]) > 0.9
    assert view.find("[data-name=train-stop]").count() == 0

    # The slider has its own steps.
    view.find("#step").fill("0")
    assert view.said("#step-name") == view.said("#model-name") == "step 0, trained in this page" != of_file
    assert float(view.next_words()[0].split()[-1]) < 0.2
    view.find("#step").fill(view.find("#step").get_attribute("max"))
    assert view.next_words()[0].startswith(".")
    assert "are about the model of the file" in view.said("#train-said")
    view.find("#share").evaluate("share => { share.open = true; }")
    assert "# the model of the file" in view.find("#live-code").text_content()


@pytest.mark.parametrize("opened", [100_000], indirect=True)
def test_training_is_stopped_and_goes_on_and_one_layer_has_the_heads_of_one(opened):
    view = opened
    view.page.get_by_label("Layers").select_option("1")
    view.press("Train here")
    view.press("no")  # a guess about the first question
    view.find("#train-said:has-text('Step ')").wait_for()
    view.press("Stop")
    view.press("Continue")
    stopped = stopped_step(view)
    assert {name[:2] for name in view.find(".pick").evaluate_all("all => all.map(pick => pick.dataset.name)")} == {"L0"}
    view.page.get_by_label("Question").select_option(index=2)  # whose head may be in the layer that is gone
    assert view.picked()[:2] == "L0"
    view.look_from("dog")
    assert "Where the mark" not in view.said("#live-notes")  # that was another model
    view.press("Continue")
    view.page.wait_for_function(
        "stopped => Number(/Step (\\d+)/.exec(document.querySelector('#train-said').textContent)[1]) > stopped + 5",
        arg=stopped,
    )
    view.find("[data-name=train-seed]").fill("2")
    view.press("Train again")  # from its first step
    view.press("do not ask")
    view.page.wait_for_function(
        "stopped => Number(/Step (\\d+)/.exec(document.querySelector('#train-said').textContent)?.[1]) < stopped",
        arg=stopped,
    )
    view.press("Stop")


def with_cores(view, n_cores):
    """Open the page again where the browser names so many cores: it trains in one worker less, at least in one."""
    view.page.add_init_script(
        f"Object.defineProperty(navigator, 'hardwareConcurrency', {{ get: () => {n_cores}, configurable: true }})"
    )
    view.at("")


def test_three_workers_train_the_same_model_as_one(opened):
    view = opened
    view.page.on("dialog", lambda dialog: dialog.accept())  # leave the page
    losses = []
    for n_cores in (2, 4):
        with_cores(view, n_cores)
        view.press("Train here")
        view.find("#train-said:has-text('Step 60 of 60')").wait_for(timeout=30_000)
        assert len(view.page.workers) == n_cores - 1
        losses.append(float(re.search(r"loss ([\d.]+)", view.said("#train-said"))[1]))
    assert losses[0] == pytest.approx(losses[1], abs=0.02) and losses[0] < 1
    view.complaints.clear()


@pytest.mark.parametrize("opened", [100_000], indirect=True)
def test_a_double_click_trains_once_and_clicks_are_heard_meanwhile(opened):
    view = opened
    with_cores(view, 2)
    view.find("[data-name=train]").dblclick()
    view.find("#train-said:has-text('Step ')").wait_for()
    assert len(view.page.workers) == 1
    for number in (2, 3, 5, 7):
        place = f"document.querySelector('[data-name=word-{number}] .hit').getBoundingClientRect()"
        box = view.page.evaluate(
            f"() => {{ const {{ x, y, width }} = {place}; return {{ x: x + width / 2, y: y + 2 }}; }}"
        )
        view.page.mouse.move(box["x"], box["y"])
        view.page.mouse.down()
        view.page.wait_for_timeout(250)  # several steps
        view.page.mouse.up()
        view.find(f"[data-name=word-{number}][aria-pressed=true]").wait_for(timeout=2000)

    # Of a stopped model the page has the weights of its last step.
    stopped_step(view)
    for _ in range(20):  # it says the last step and draws its weights in tasks of their own
        if view.said("#step-name") == f"step {step_of(view)}, trained in this page":
            break
        view.page.wait_for_timeout(500)
    assert view.said("#step-name") == f"step {step_of(view)}, trained in this page"


# A worker that trains nothing and reports what `heads` of the page says.
FAKE = """(heads) => {
  window.Worker = class extends EventTarget {
    terminate() {}
    postMessage(message) {
      if (message.parameters) this.size = message.parameters.reduce((sum, [, size]) => sum + size, 0);
      if (!("isRunning" in message) || !message.isRunning) return;
      const tell = (step, more) => this.dispatchEvent(new MessageEvent("message", { data: { step, ...more } }));
      tell(0, { weights: new Float32Array(this.size), heads: heads[0] });
      for (let step = 1; step <= 60; step++) tell(step, { loss: 1, heads: heads[step] });
    }
  };
}"""


@pytest.mark.parametrize(
    ("guess", "accuracies", "since", "said"),
    [
        ("yes", (0.5, 0.9, 0.9), "step 25", "A head is above its bar for each question. You guessed that one would be"),
        ("no", (0.5, 0.9, 0.9), "step 25", "You guessed that none would be for “verb”: not so"),
        ("yes", (0.5, 0.9, 0.7), "never", "No head is above its bar for “verb”. You guessed that one"),
        ("no", (0.9, 0.5, 0.9), "step 60", "A head is above its bar"),
        ("do not ask", (0.9, 0.9, 0.9), "step 0", "A head is above its bar for each question. What was tested"),
    ],
)  # fmt: skip
def test_a_head_is_above_its_bar_from_the_step_on_after_which_it_stays_there(opened, guess, accuracies, since, said):
    view = opened
    point = {"name": "verb", "head": [1, 2], "bar": 0.7, "answers": 0.5}
    heads = {step: [point | {"accuracy": each}] for step, each in zip((0, 25, 60), accuracies, strict=True)}
    view.page.evaluate(FAKE, heads)
    view.page.get_by_label("Positions").select_option("no")
    view.press("Train here")
    view.press(guess)
    view.find("#train-said:has-text('Step 60 of 60')").wait_for()
    assert said in view.said("#train-said")
    row = view.find("#train-heads tbody tr").inner_text().split()
    assert row[:2] == ["verb", "L1H2"] and "At step 60" in view.said("#train-heads")
    assert since in " ".join(row)


def test_the_guess_is_answered_at_the_end(opened):
    view = opened
    view.page.get_by_label("Positions").select_option("no")
    view.press("Train here")
    assert "the question “verb”?" in view.said("#train") and "A model begins" in view.said("#train-said")
    view.press("yes")
    view.find("#train-said:has-text('Step 60 of 60')").wait_for(timeout=30_000)
    # Two blocks are too few for any head: the bar is 1.
    assert "No head is above its bar for “verb”. You guessed that one would be" in view.said("#train-said")
    assert view.find("#train-heads tbody tr").all_inner_texts()[0].split("\t")[::4] == ["verb", "never"]


def test_a_model_that_was_saved_is_opened_by_the_page_and_by_python(show, trained_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = open_model(trained_run, device="cpu")
    training = replace(training_of(run, run.settings.run.cache_dir), max_steps=100_000)
    content = page_content(run, None, None, training=training)
    text = "The cat frightened the dog because it"
    with show(content) as view:
        view.find("[data-name=train-seed]").fill("5")
        view.find("[data-name=train-seed]").press("Tab")
        view.page.get_by_label("Positions").select_option("no")
        view.press("Train here")
        view.press("do not ask")
        view.find("#train-said:has-text('Step ')").wait_for()
        stopped_step(view)
        with view.page.expect_download() as download:
            view.press("Save this model")
        file = tmp_path / download.value.suggested_filename
        download.value.save_as(file)
        view.type(text)
        expected = view.next_words()

        view.at("")
        view.type(text)
        assert view.next_words() != expected  # those of the run
        view.find("#train input[type=file]").set_input_files(file)
        view.find("#train-said:has-text('Step ')").wait_for()
        assert view.next_words() == expected and view.find("[data-name=train-stop]").count() == 0
        content = file.read_bytes()
        for other in (b"", b"12345678", content[:-4], b"\2\0\0\0\0\0\0\0{}", b"\4\0\0\0\0\0\0\0null"):
            wrong = tmp_path / "other.safetensors"
            wrong.write_bytes(other)
            view.find("#train input[type=file]").set_input_files(wrong)
            view.find("#train-said:has-text('other.safetensors is not a model that this page has saved')").wait_for()
            assert view.next_words() == expected
            with pytest.raises(UserError, match="is not a model that a page"):
                run_of(wrong)

    saved = open_model(file, device="cpu")
    assert (saved.settings.run.seed, saved.settings.model.position) == (5, "none")
    assert file.stem == f"antecedent_seed5_position_none_step{saved.step}" and saved.folder == Path("runs") / file.stem
    assert saved.began == ("It was trained in a page, on the first 8,000 of its stories.",)
    answers = [words.rsplit(" ", 1) for words in expected if words[0].isalpha()]
    chances = np.exp(saved.log_probs([text], each=[[f" {word}" for word, _ in answers]]))
    assert chances[0] == pytest.approx([float(chance) for _, chance in answers], abs=0.0051)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    kept = json.loads(header["__metadata__"]["antecedent"])
    assert len(kept["losses"]) == kept["step"] == saved.step and [each["name"] for each in kept["heads"]] == QUESTIONS
    assert open_model(file, device="cpu").folder == saved.folder  # it is written once
    file.write_bytes(content[:-4] + b"abcd")
    with pytest.raises(UserError, match="is another model; rename the file"):
        open_model(file)
    resumed = run_program("train.py", "resume=true", f"out={saved.folder.absolute()}")
    assert resumed.status == 2 and "begin a run with init=" in resumed.err


def test_the_page_watches_its_heads_as_train_py_does(train_script, trained_run):
    opened = open_model(trained_run, device="cpu")
    run = opened.settings.run
    questions = to_json(training_of(opened, run.cache_dir).questions)
    found = train_script(
        """({ kernel, shape, parameters, weights, questions }) => {
          const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
          const trainer = new Trainer(new WebAssembly.Module(bytes(kernel)), shape, parameters);
          const cells = new Float32Array(bytes(weights).buffer);
          let at = 0;
          for (const [name, size] of parameters) trainer.views[name].set(cells.subarray(at, (at += size)));
          return watch(trainer, questions, packItems(questions.flatMap(({ items }) => items), shape.context_length));
        }""",
        {
            "kernel": KERNEL, "shape": to_json(opened.settings.model), "weights": packed(opened.transformer),
            "parameters": [(name, weight.numel()) for name, weight in opened.transformer.named_parameters()],
            "questions": questions,
        },
    )  # fmt: skip
    watched = watched_stories(load_data(opened, run.cache_dir), run.probe_sequences)
    for of_page, (question, items) in zip(found, watched.items(), strict=True):
        scores = measure_heads(opened.model, items, 4096).scores()
        point = OUTCOMES["attention"].point(opened.model, items, 4096).values
        assert of_page["name"] == question.name
        assert of_page["accuracy"] == pytest.approx(scores.accuracy.mean(axis=0).max(), abs=1e-6)
        assert of_page["answers"] == pytest.approx(point["answer_accuracy"], abs=1e-6)
        assert of_page["bar"] == pytest.approx(point["bar"], abs=0.1)  # by other random signs


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("WebAssembly.validate = () => false", "no 128-bit SIMD"),
        ("delete window.Worker", "no workers"),
        ("WebAssembly.compile = async () => { throw new RangeError('out of memory'); }", "out of memory"),
    ],
)
def test_a_browser_that_cannot_train_says_so_and_the_rest_of_the_page_works(opened, broken, said):
    view = opened
    view.page.evaluate(f"() => {{ {broken}; }}")
    before = view.next_words()
    view.press("Train here")
    view.find(f"#train-said:has-text('{said}')").wait_for()
    view.line("dog").dispatch_event("click")
    assert view.next_words("live-before") == before


@pytest.mark.parametrize("opened", [100_000], indirect=True)
def test_leaving_the_page_asks_first_while_it_trains(opened):
    view = opened
    view.page.on("dialog", lambda dialog: dialog.dismiss())
    view.press("Train here")
    view.find("#train-said:has-text('Step ')").wait_for()
    view.page.close(run_before_unload=True)
    view.page.wait_for_timeout(500)
    assert ["beforeunload" in str(each) for each in view.complaints] == [True] and step_of(view) > 0  # still there
    view.complaints.clear()
    view.press("Stop")


@pytest.mark.parametrize("opened", [100_000], indirect=True)
def test_a_page_behind_another_one_trains_on(opened):
    view = opened  # playwright keeps it visible: a tab that is hidden was tried by hand
    view.press("Train here")
    view.find("#train-said:has-text('Step ')").wait_for()
    other = view.page.context.new_page()
    other.bring_to_front()
    reached = step_of(view)
    other.wait_for_timeout(1000)
    other.close()
    view.page.bring_to_front()
    assert stopped_step(view) > reached + 5
    assert len(view.find(".curve polyline").get_attribute("points").split()) == step_of(view)


def test_the_last_card_trains_one_layer_after_a_guess(opened):
    view = opened
    view.at("lesson=9")
    assert view.find(".card").is_visible() and "one layer" in view.said(".card")
    view.click("[data-name=guess-no]")
    view.find("#train-said:has-text('You guessed that none would be for “verb”: right')").wait_for(timeout=30_000)
    assert {name[:2] for name in view.find(".pick").evaluate_all("all => all.map(pick => pick.dataset.name)")} == {"L0"}
    view.card(8)
    assert not view.find("#train").is_visible()


def test_a_page_without_training_allows_no_worker_and_has_no_card_for_it():
    html = page(sample.content())
    assert "worker-src" not in html and "wasm" not in html and "train it yourself" not in html


def test_a_page_trains_with_the_first_stories_of_its_run(trained_run):
    opened = open_model(trained_run, device="cpu")
    assert opened.settings is not None
    run = opened.settings.run
    found = training_of(opened, run.cache_dir)
    split = load_corpus(opened.settings.data, Path(run.cache_dir)).train
    tokens = np.frombuffer(gzip.decompress(b64decode(found.stories)), "<u2")
    assert (tokens == split.tokens[: len(tokens)]).all() and (tokens == opened.bos_id).sum() == found.n_stories + 1
    assert (found.tokens_per_batch, found.seed, found.optim["name"]) == (run.tokens_per_batch, run.seed, "muon")
    assert found.floor == pytest.approx(read_metrics(opened).validation[0].floor, abs=0.2)
    assert [question["name"] for question in found.questions] == QUESTIONS

    # What the page cannot compute
    for changes in (
        {"position": "learned"}, {"weighting": "sum"}, {"tie_query_key": True}, {"d_mlp": 172}, {"n_head": 4},
    ):  # fmt: skip
        model = replace(opened.settings.model, **changes)
        assert training_of(replace(opened, settings=replace(opened.settings, model=model)), run.cache_dir) is None
    assert training_of(replace(opened, settings=None), run.cache_dir) is None
    assert training_of(replace(opened, data_fingerprint="of another version"), run.cache_dir) is None
