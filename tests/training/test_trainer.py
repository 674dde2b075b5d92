"""The training step, the loop, the optimizers and the evaluation."""

import copy
import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from data.loader import Split, StorySplit
from tests.tiny_models import random_model, small_trainer
from training.device import Distributed, choose_device
from training.evaluate import mean_and_error, validation_loss
from training.loop import is_probe_step
from training.optim import AdamW, Muon, WeightGroup, learning_rate_factor
from training.settings import Device, Precision
from training.trainer import Trainer, train_step


@pytest.mark.parametrize("n_batches", [1, 2])
def test_a_step_is_that_of_plain_pytorch(n_batches: int) -> None:
    """With two micro-batches the gradient is that of the mean loss of both."""
    settings = ["optim=adamw", "optim.warmup_steps=0", "optim.clip_norm=0.5"]
    trainer = small_trainer(*settings, f"gradient_accumulation_steps={n_batches}")
    model = copy.deepcopy(trainer.model)
    optim = trainer.settings.optim
    matrices = [weight for name, weight in model.named_parameters() if name.startswith("blocks.") and weight.ndim == 2]
    embeddings = [model.get_parameter("token_embedding.weight")]
    gains = [weight for weight in model.parameters() if weight.ndim < 2]
    assert len(matrices) + len(embeddings) + len(gains) == len([*model.parameters()])
    groups = [
        {"params": matrices, "lr": optim.learning_rate, "weight_decay": optim.weight_decay},
        {"params": embeddings, "lr": optim.embedding_learning_rate, "weight_decay": optim.embedding_weight_decay},
        {"params": gains, "lr": optim.embedding_learning_rate, "weight_decay": 0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(optim.beta_1, optim.beta_2))
    batches = [trainer.loader(index) for index in range(n_batches)]
    targets = torch.cat([batch.targets for batch in batches])
    logits = torch.cat([model(*batch.inputs) for batch in batches])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    stats = train_step(trainer)
    assert stats.loss.item() == pytest.approx(loss.item(), rel=1e-5)
    assert stats.gradient_norm.item() == pytest.approx(norm.item(), rel=1e-4)
    assert stats.n_tokens == targets.numel()
    torch.testing.assert_close(trainer.model.state_dict(), model.state_dict(), rtol=1e-4, atol=1e-6)


def poison_loss(trainer: Trainer) -> None:
    loss = trainer.loss_fn
    trainer.loss_fn = lambda *inputs, targets: loss(*inputs, targets=targets) * float("nan")


def poison_gradient(trainer: Trainer) -> None:
    weight = next(trainer.model.parameters())
    weight.register_hook(lambda gradient: gradient * float("inf"))


@pytest.mark.parametrize("poison", [poison_loss, poison_gradient])
@pytest.mark.parametrize("optim", ["muon", "adamw"])
@pytest.mark.parametrize("n_steps_before", [0, 2])
def test_a_step_that_is_not_finite_changes_nothing(poison: Callable, optim: str, n_steps_before: int) -> None:
    trainer = small_trainer(f"optim={optim}")
    for _ in range(n_steps_before):
        train_step(trainer)
    old_state = copy.deepcopy(trainer.state())
    poison(trainer)
    train_step(trainer)
    new_state = trainer.state()
    for part in ("model", "optimizer"):
        torch.testing.assert_close(new_state[part], old_state[part], rtol=0, atol=0)
    assert (trainer.step, trainer.skipped, trainer.skipped_in_row) == (n_steps_before + 1, 1, 1)


def test_a_step_reads_no_value_of_the_device() -> None:
    trainer = small_trainer("gradient_accumulation_steps=2")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train_step(trainer)
        train_step(trainer)
    parents = {(event.name, event.cpu_parent.name if event.cpu_parent else "") for event in profile.events() or []}
    readers = {"aten::item", "aten::nonzero", "aten::equal"}
    assert not {pair for pair in parents if pair[0] in readers}


@pytest.mark.parametrize("optim", ["muon", "adamw"])
@pytest.mark.parametrize("forgotten", [None, "optimizer", "step", "model"])
def test_training_resumes_exactly_only_with_all_of_the_state(forgotten: str | None, optim: str) -> None:
    overrides = (f"optim={optim}", "model.dropout=0.2", "max_steps=6")
    reference = small_trainer(*overrides)
    for _ in range(3):
        train_step(reference)
    state = copy.deepcopy(reference.state())
    torch.manual_seed(123)  # a resumed process has another state of the global generator
    resumed = small_trainer(*overrides)
    if forgotten:
        state[forgotten] = resumed.state()[forgotten]
    resumed.load(state)
    losses = [[train_step(trainer).loss.item() for _ in range(3)] for trainer in (reference, resumed)]
    pairs = zip(reference.model.parameters(), resumed.model.parameters(), strict=True)
    is_equal = losses[0] == losses[1] and all(torch.equal(one, other) for one, other in pairs)
    assert is_equal == (forgotten is None)


def test_a_checkpoint_of_another_model_and_too_many_processes_are_refused() -> None:
    state = small_trainer("model.d_mlp=64").state()
    with pytest.raises(ValueError, match="does not fit.*$"):
        small_trainer().load(state)
    with pytest.raises(ValueError, match="tokens_per_batch=64.*$"):
        small_trainer("tokens_per_batch=64", distributed=Distributed(rank=1, world_size=2))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # both are raised inside torch.compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_the_compiled_step_gives_the_same_loss() -> None:
    losses = [train_step(small_trainer(f"compile={mode}")).loss.item() for mode in ("none", "default")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_auto_without_a_cuda_device_is_the_cpu_and_cuda_is_refused() -> None:
    assert choose_device(Device.auto, Precision.float32).device.type == "cpu"
    with pytest.raises(ValueError, match="device=cuda"):
        choose_device(Device.cuda, Precision.float32)


def test_the_probe_runs_at_log_spaced_steps_and_the_learning_rate_warms_up_and_decays() -> None:
    factors = [learning_rate_factor(step, warmup_steps=4, max_steps=12, decay_power=2) for step in range(13)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == [pytest.approx((remaining / 8) ** 2) for remaining in range(8, -1, -1)]
    steps = [step for step in range(1025) if is_probe_step(step, 1024)]
    assert steps == [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert [step for step in range(4) if is_probe_step(step, 3)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("make", "reference_of", "atol"),
    [
        (lambda group: Muon(group, 0.9), partial(torch.optim.Muon, momentum=0.9), 2e-3),  # Newton-Schulz in bfloat16
        (lambda group: AdamW([group], (0.9, 0.97)), partial(torch.optim.AdamW, betas=(0.9, 0.97)), 1e-6),
    ],
    ids=["muon", "adamw"],
)
def test_the_updates_are_those_of_torch(make: Callable, reference_of: Callable, atol: float) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(12, 8), (12, 8), (8, 12), (6, 6)]]
    expected = copy.deepcopy(weights)
    optimizer = make(WeightGroup(weights, 0.01, 0.1, rate=0.01))
    reference = reference_of(expected, lr=0.01, weight_decay=0.1)
    for _ in range(5):
        for weight, other in zip(weights, expected, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator)
            other.grad = weight.grad.clone()
        optimizer.step(torch.tensor(1.0))
        reference.step()
    torch.testing.assert_close(weights, expected, rtol=0, atol=atol)


MODEL = random_model()


def test_the_standard_error_of_rows_of_equal_length_is_that_of_their_means() -> None:
    sums = torch.randn(13, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = (sums.mean() / 7, sums.std() / 7 / 13**0.5)
    assert mean_and_error(sums, torch.full((13,), 7.0)) == pytest.approx(list(map(float, expected)))


@pytest.mark.parametrize("tokens_per_batch", [1, 100, 10_000])
def test_validation_covers_every_token(tokens_per_batch: int) -> None:
    tokens = np.random.default_rng(0).integers(MODEL.vocab_size, size=200).astype(np.uint16)
    measured = validation_loss(MODEL, Split(tokens, 100), tokens_per_batch)
    context, total = MODEL.config.context_length, 0.0
    for start in range(0, 199, context):
        window = torch.from_numpy(tokens[start : start + context + 1].astype(np.int64))[None]
        total += F.cross_entropy(MODEL(window[:, :-1]).mT, window[:, 1:], reduction="sum").item()
    assert measured.loss == pytest.approx(total / 199, rel=1e-5)
    assert measured.bits_per_byte == pytest.approx(total / math.log(2) / 100, rel=1e-5)
    assert measured.known().keys() == {"loss", "bits_per_byte"}


def test_the_gap_is_the_loss_minus_its_lower_bound() -> None:
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, 8, 3, 11, 5, 12, 7])
    tokens = rng.integers(MODEL.vocab_size, size=starts[-1] + 1).astype(np.uint16)
    floor = np.zeros(len(tokens), np.float32)
    split = StorySplit(tokens, 100, starts=starts, floor=floor)
    losses = np.empty(starts[-1])
    for start, end in pairwise(starts):
        story = torch.from_numpy(tokens[None, start : end + 1].astype(np.int64))
        losses[start:end] = F.cross_entropy(MODEL(story[:, :-1]).mT, story[:, 1:], reduction="none").detach()

    # A bound of 0, and a model that predicts the true probabilities
    loss = validation_loss(MODEL, split, 100)
    assert loss.gap == pytest.approx(loss.loss) == pytest.approx(losses.mean(), rel=1e-5)
    floor[1:] = losses
    assert validation_loss(MODEL, split, 100).gap == pytest.approx(0, abs=1e-6)
