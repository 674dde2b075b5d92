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
from extras.page.page import page
from extras.page.shown import Live, LiveTraining
from extras.page.train import FOLDER, WORKER
from extras.page.train.stories import training_of
from model.transformer import Transformer, draw_outputs
from settings.train import compose_settings
from settings.typed_json import to_json
from tests.extras.page import sample
from tests.tiny_models import random_model
from training.optim import learning_rate_factor, make_optimizers, set_learning_rates

KERNEL = (FOLDER / "kernel.txt").read_text().strip()
SETTINGS = compose_settings(["precision=float32"])
OPTIM = {**vars(SETTINGS.optim), "name": "muon"}
N_ROWS, LENGTH, V = 4, 24, 45
SHAPE = {"n_layer": 2, "n_head": 4, "d_model": 32, "d_mlp": 48, "context_length": LENGTH}

# Train on the batches of `task`; return the loss of each step, and the gradient of the last one or the first weights.
TRAIN = """(task) => {
  const bytes = (text) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const kernel = new WebAssembly.Module(bytes(task.kernel));
  const trainer = new Trainer(kernel, task.shape, task.parameters, task.nTokens);
  const weights = task.weights && new Float32Array(bytes(task.weights).buffer);
  let at = 0;
  if (weights) for (const [name, size] of task.parameters) trainer.views[name].set(weights.subarray(at, (at += size)));
  else initialise(trainer, task.parameters, task.seed);
  const rule = new Rule(trainer, task.settings);
  const losses = task.batches.map((batch, step) => {
    const nAll = batch.targets.filter((target) => target >= 0).length;
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
            "nTokens": N_ROWS * LENGTH, "batches": [as_page(batch) for batch in batches], **task,
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


def as_page(batch):
    tokens, targets, ids = batch
    starts = [0, *(1 + np.flatnonzero((np.diff(ids.ravel()) != 0) | (np.arange(1, ids.size) % LENGTH == 0)))]
    ends = [*starts[1:], ids.size]
    positions = np.concatenate([np.arange(end - start) for start, end in zip(starts, ends, strict=True)])
    stories = [[start, end - start] for start, end in zip(starts, ends, strict=True) if ids.ravel()[start] >= 0]
    listed = {"tokens": tokens.ravel(), "targets": targets.ravel(), "positions": positions}
    return {name: cells.tolist() for name, cells in listed.items()} | {"stories": np.array(stories).tolist()}


def torch_loss(model, batch):
    tokens, targets, ids = (torch.from_numpy(part.astype(np.int64)) for part in batch)
    return model(tokens, ids, targets.where(targets >= 0, -100)) / int((targets >= 0).sum())


def packed(model):
    return b64encode(torch.cat([each.detach().ravel() for each in model.parameters()]).numpy().tobytes()).decode()


def test_the_kernel_of_the_page_is_what_its_text_assembles_to():
    wasmtime = pytest.importorskip("wasmtime")
    assert bytes(wasmtime.wat2wasm((FOLDER / "kernel.wat").read_text())) == b64decode(KERNEL)


CHANGES = [{}, {"n_layer": 1}, {"n_head": 2}, {"n_head": 1}, {"position": "none"}, {"scale": "none"}]


@pytest.mark.parametrize("changes", CHANGES, ids=str)
def test_the_gradient_of_each_weight_is_torch_s(train, changes):
    model = Transformer(random_model(V, **SHAPE | changes).config, V, 3)
    draw_outputs(model, 3)  # those of a new model are 0, and most gradients too
    batch = random_batch(7)
    found = train(model, [batch], weights=packed(model))
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
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = torch_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), SETTINGS.optim.clip_norm)
        factor = learning_rate_factor(step, SETTINGS.optim.warmup_steps, 60, SETTINGS.optim.decay_power)
        set_learning_rates(optimizers, factor)
        for optimizer in optimizers:
            optimizer.step(torch.ones(()))
        expected.append(loss.item())
    assert found == pytest.approx(expected, abs=1e-3) and min(found) < max(found) - 0.3


STORIES = ["The dog slept.", "The bus slept.", "The dog and the bus slept."]


def training(n_steps=60):
    """Return the training of a page of `sample`, on three stories again and again."""
    live = to_json(sample.content().live.model)
    start = live["tokenizer"]["start"]
    tokens = []
    for story in STORIES * 40:
        tokens += [start, *sample.read(live, story).tokens[1:]]
    data = gzip.compress(np.array([*tokens, start], "<u2").tobytes())
    return LiveTraining(
        stories=b64encode(data).decode(), n_stories=120, tokens_per_batch=288, max_steps=n_steps, seed=1, optim=OPTIM
    )


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
          return [0, 1].map(() => batchOf(tokens, batches.next().value, 8));
        }""",
        {"tokens": tokens, "n": n_stories},
    )
    for batch in made:
        assert len(batch["tokens"]) == 24
        known = {(start, size) for start, size in ((0, 3), (3, 2), (5, 4))[:n_stories]}
        for at, size in batch["stories"]:
            read = [batch["tokens"][at + i] for i in range(size)]
            assert any(tokens[start : start + size] == read and size == length for start, length in known)
            assert [batch["positions"][at + i] for i in range(size)] == list(range(size))
            assert batch["targets"][at + size - 1] == 9  # the end of a story is its last target


def step_of(view):
    return int(re.search(r"Step (\d+)", view.said("#train-said"))[1])


def test_the_page_trains_its_model_and_shows_it_meanwhile(opened):
    view = opened
    view.type("The dog")
    view.press("Train here")
    view.find("#train-said:has-text('Step 60 of 60')").wait_for(timeout=30_000)
    assert view.next_words()[0].startswith(("slept", "and"))
    losses = view.find(".curve polyline").get_attribute("points").split()
    assert len(losses) == 60 and float(losses[0].split(",")[1]) < float(losses[-1].split(",")[1])  # it falls
    view.type("The dog slept")
    assert view.next_words()[0].split()[0] == "." and float(view.next_words()[0].split()[-1]) > 0.9
    assert view.find("[data-name=train-stop]").count() == 0 and not view.find("#slider").is_visible()
    assert "are about the model of the file" in view.said("#train-said")
    view.find("#share").evaluate("share => { share.open = true; }")
    assert "# the model of the file" in view.find("#live-code").text_content()


@pytest.mark.parametrize("opened", [100_000], indirect=True)
def test_training_is_stopped_and_goes_on_and_one_layer_has_the_heads_of_one(opened):
    view = opened
    view.page.get_by_label("Layers").select_option("1")
    view.press("Train here")
    view.find("#train-said:has-text('Step ')").wait_for()
    view.press("Stop")
    view.press("Continue")
    view.press("Stop")
    view.page.wait_for_timeout(300)  # the step that was being taken
    stopped = step_of(view)
    view.page.wait_for_timeout(300)
    assert step_of(view) == stopped
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
    view.page.wait_for_function(
        "stopped => Number(/Step (\\d+)/.exec(document.querySelector('#train-said').textContent)?.[1]) < stopped",
        arg=stopped,
    )
    view.press("Stop")


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
    view.click("#live-lines .link .hit")
    assert view.next_words("live-before") == before


def test_a_page_without_training_allows_no_worker():
    assert "worker-src" not in page(sample.content()) and "wasm" not in page(sample.content())


def test_a_page_trains_with_the_first_stories_of_its_run(trained_run):
    opened = open_model(trained_run, device="cpu")
    assert opened.settings is not None
    run = replace(opened.settings.run, tokens_per_batch=12 * opened.settings.model.context_length)
    fitting = replace(opened, settings=replace(opened.settings, run=run))
    found = training_of(fitting, run.cache_dir)
    split = load_corpus(opened.settings.data, Path(run.cache_dir)).train
    tokens = np.frombuffer(gzip.decompress(b64decode(found.stories)), "<u2")
    assert (tokens == split.tokens[: len(tokens)]).all() and (tokens == opened.bos_id).sum() == found.n_stories + 1
    assert (found.tokens_per_batch, found.seed, found.optim["name"]) == (run.tokens_per_batch, run.seed, "muon")

    # What the page cannot compute
    odd = replace(run, tokens_per_batch=5 * opened.settings.model.context_length)
    assert training_of(replace(fitting, settings=replace(opened.settings, run=odd)), run.cache_dir) is None
    for changes in (
        {"position": "learned"}, {"weighting": "sum"}, {"tie_query_key": True}, {"d_mlp": 172}, {"d_model": 24},
    ):  # fmt: skip
        model = replace(opened.settings.model, **changes)
        assert training_of(replace(fitting, settings=replace(fitting.settings, model=model)), run.cache_dir) is None
    assert training_of(replace(fitting, settings=None), run.cache_dir) is None
    assert training_of(replace(fitting, data_fingerprint="of another version"), run.cache_dir) is None
