"""The training step, the loop, the optimizers and the evaluation."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from data.loader import Split, StorySplit
from settings.errors import UserError
from settings.train import Device, Precision, compose_settings
from tests.extras.gpu.recording import Operations, tensors_in
from tests.tiny_models import random_model, small_trainer
from training import optim
from training.device import Distributed, choose_device
from training.evaluate import mean_and_error, validation_loss
from training.loop import is_probe_step, log_step
from training.optim import Muon, WeightGroup, learning_rate_factor, set_learning_rates
from training.trainer import check_batch, train_step


@pytest.mark.parametrize("n_batches", [1, 2])
def test_steps_are_those_of_plain_pytorch(n_batches):
    """With two micro-batches the gradient is that of the mean loss of both."""
    settings = ["optim=adamw", "optim.warmup_steps=0", "optim.clip_norm=0.5", "max_steps=1000000"]
    trainer = small_trainer(*settings, f"gradient_accumulation_steps={n_batches}")
    first, model = copy.deepcopy(trainer.model), copy.deepcopy(trainer.model)
    optim = trainer.settings.optim
    matrices = [weight for name, weight in model.named_parameters() if name.startswith("blocks.") and weight.ndim == 2]
    gains = [weight for weight in model.parameters() if weight.ndim < 2]
    assert len(matrices) + 1 + len(gains) == len([*model.parameters()])
    embeddings = {"params": [model.token_embedding.weight], "weight_decay": optim.embedding_weight_decay}
    groups = [
        {"params": matrices, "lr": optim.learning_rate, "weight_decay": optim.weight_decay},
        {"lr": optim.embedding_learning_rate, **embeddings},
        {"lr": optim.embedding_learning_rate, "params": gains, "weight_decay": 0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(optim.beta_1, optim.beta_2))
    for step in range(3):
        batches = [trainer.loader(step * n_batches + index) for index in range(n_batches)]
        targets = torch.cat([batch.targets for batch in batches])
        loss = F.cross_entropy(torch.cat([model(*batch.inputs) for batch in batches]).mT, targets)
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        stats = train_step(trainer)
        assert stats.loss.item() == pytest.approx(loss.item(), rel=1e-5)
        assert stats.gradient_norm.item() == pytest.approx(norm.item(), rel=1e-4)
    # By matrix: AdamW turns a gradient near 0, which is rounding, into a step of any size.
    for start, found, expected in zip(first.parameters(), trainer.model.parameters(), model.parameters(), strict=True):
        assert (found - expected).norm() < 1e-4 * (expected - start).norm()


def test_a_gradient_of_exactly_0_stops_the_run_in_one_line():
    trainer = small_trainer()
    log_step(trainer, train_step(trainer), [])
    for weight in trainer.model.parameters():
        weight.data.zero_()
    with pytest.raises(UserError, match=r"^step 2: the gradient is exactly 0; try compile=none.*$"):
        log_step(trainer, train_step(trainer), [])


# torch warns of kernels that are not deterministic, of TF32 and the like.
ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),
]
GPU = pytest.param("cuda", marks=ON_GPU)


@pytest.fixture(params=["cpu", GPU])
def device(request, monkeypatch):
    """The setting of a device, on which torch uses deterministic kernels only."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield f"device={request.param}"
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def gpu_by_name(monkeypatch):
    """Make torch say that there is a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU")
    return monkeypatch


def test_a_card_that_is_too_old_for_torch_is_one_line(gpu_by_name):
    def no_kernel(*size, device):
        raise torch.AcceleratorError("CUDA error: no kernel image\nCompile with")

    gpu_by_name.setattr(torch, "zeros", no_kernel)
    with pytest.raises(UserError, match="^device=auto: CUDA error: no kernel image.* Compile with; use device=cpu$"):
        choose_device(Device.auto, Precision.auto)


@pytest.mark.parametrize(("has_instructions", "kind"), [(False, torch.float32), (True, torch.bfloat16)])
def test_a_card_that_emulates_bfloat16_computes_in_float32(has_instructions, kind, gpu_by_name):
    gpu_by_name.setattr(torch, "zeros", lambda *_, **__: torch.ones(1))
    gpu_by_name.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation: including_emulation or has_instructions
    )
    assert choose_device(Device.auto, Precision.auto).dtype is kind


def losses_of_steps(n_steps, *overrides):
    trainer = small_trainer(*overrides)
    return [train_step(trainer).loss.item() for _ in range(n_steps)]


@pytest.mark.parametrize(("precision", "rel"), [("float32", 1e-3), ("bfloat16", 2e-2)])
def test_the_losses_are_those_of_the_cpu_in_float32(device, precision, rel):
    assert losses_of_steps(4, device, f"precision={precision}") == pytest.approx(losses_of_steps(4), rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # all are raised inside torch.compile
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_training_has_the_same_losses(device, accumulation):
    overrides = [device, f"gradient_accumulation_steps={accumulation}", "optim=adamw"]
    rel = 1e-5 if device == "device=cpu" else 1e-4
    assert losses_of_steps(5, "compile=default", *overrides) == pytest.approx(losses_of_steps(5, *overrides), rel=rel)


@pytest.mark.parametrize("device", [GPU], indirect=True)
@pytest.mark.parametrize("uses_graph", [False, True])
@pytest.mark.parametrize("settings", [["optim=muon"], ["optim=adamw", "compile=default"]])
def test_a_step_does_not_wait_for_the_gpu(device, settings, uses_graph):
    trainer = small_trainer(device, "gradient_accumulation_steps=2", *settings)
    if not uses_graph:
        trainer.record = None
    for _ in range(3):
        train_step(trainer)  # compiles, and allocates the states of the optimizers
    torch.cuda.set_sync_debug_mode("error")
    try:
        stats = [train_step(trainer) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(step.loss.isfinite() for step in stats)


# What a graph does on a CPU is in test_graph.py.
@pytest.mark.parametrize("device", [GPU], indirect=True)
@pytest.mark.parametrize("compiled", ["none", "default"])
@pytest.mark.parametrize("optim", ["muon", "adamw"])
def test_a_graph_takes_the_steps_that_were_taken_one_kernel_at_a_time(device, optim, compiled):
    overrides = [device, f"optim={optim}", f"compile={compiled}", "gradient_accumulation_steps=2", "max_steps=20"]
    graphed, eager = small_trainer(*overrides), small_trainer(*overrides)
    eager.record = None
    stats = [[train_step(trainer) for _ in range(20)] for trainer in (graphed, eager)]
    losses, expected = ([step.loss.item() for step in steps] for steps in stats)
    assert losses == pytest.approx(expected, rel=1e-4, abs=0)
    assert (graphed.recorded is None, eager.recorded is None) == (False, True)


# experiment=english/gpu is compiled, with Muon; a user may add dropout.
@pytest.mark.parametrize("compiled", ["none", pytest.param("default", marks=ON_GPU)])
def test_dropout_depends_on_the_step_alone(device, compiled):
    overrides = ["optim=muon", f"compile={compiled}", "model.dropout=0.5", "optim.warmup_steps=0", "max_steps=30"]
    trainer = small_trainer(device, *overrides)
    for _ in range(10):
        train_step(trainer)
    state, batch = copy.deepcopy(trainer.state()), trainer.loader(0)
    trainer.loader = lambda index: batch  # type: ignore[assignment]  # only the dropout differs
    losses = []
    for step in (10, 11, 10):
        trainer.load(state | {"step": step})
        losses.append(train_step(trainer).loss.item())
    assert losses[0] == losses[2] != losses[1]


@pytest.mark.parametrize("optim", ["muon", "adamw"])
@pytest.mark.parametrize("poisoned", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_nothing(device, poisoned, optim):
    trainer = small_trainer(device, f"optim={optim}")
    loss_fn = trainer.loss_fn
    factor = torch.ones((), device=trainer.device.device)
    if poisoned == "loss":
        trainer.loss_fn = lambda *inputs, targets: loss_fn(*inputs, targets=targets) * factor
    else:
        next(trainer.model.parameters()).register_hook(lambda gradient: gradient * factor)
    for step, (value, counters) in enumerate(
        ((math.nan, (1, 1)), (math.inf, (2, 2)), (1.0, (2, 0)), (math.nan, (3, 1)))
    ):
        old_state = copy.deepcopy(trainer.state())
        factor.fill_(value)
        train_step(trainer)
        assert (trainer.step, trainer.skipped, trainer.skipped_in_row) == (step + 1, *counters)
        if value != 1:
            for part in ("model", "optimizer"):
                torch.testing.assert_close(trainer.state()[part], old_state[part], rtol=0, atol=0)
        else:
            assert not torch.equal(trainer.state()["model"]["final_norm.gain"], old_state["model"]["final_norm.gain"])


@pytest.mark.parametrize("optim", ["muon", "adamw"])
@pytest.mark.parametrize("forgotten", [None, "optimizer", "step", "model"])
def test_training_resumes_exactly_only_with_all_of_the_state(device, forgotten, optim):
    overrides = (device, f"optim={optim}", "model.dropout=0.2", "max_steps=6")
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
    same = map(torch.equal, reference.model.parameters(), resumed.model.parameters())
    assert (losses[0] == losses[1] and all(same)) == (forgotten is None)


def test_a_checkpoint_of_another_model_is_refused():
    state = small_trainer("model.d_mlp=64").state()
    with pytest.raises(ValueError, match="does not fit.*$"):
        small_trainer().load(state)


@pytest.mark.parametrize(("n_tokens", "n_processes", "smallest"), [(10, 1, 64), (63, 1, 64), (64, 2, 128)])
def test_a_batch_without_a_row_for_each_process_is_refused(n_tokens, n_processes, smallest):
    ranks = Distributed(rank=n_processes - 1, world_size=n_processes)
    with pytest.raises(UserError, match=f"^tokens_per_batch={n_tokens}: must be {smallest} or more.*$"):
        check_batch(compose_settings([f"tokens_per_batch={n_tokens}"]), ranks)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_auto_without_a_cuda_device_is_the_cpu_and_cuda_is_refused():
    assert choose_device(Device.auto, Precision.float32).device.type == "cpu"
    with pytest.raises(ValueError, match="device=cuda"):
        choose_device(Device.cuda, Precision.float32)


def test_the_probe_runs_at_log_spaced_steps_and_the_learning_rate_warms_up_and_decays():
    factors = [learning_rate_factor(step, warmup_steps=4, max_steps=12, decay_power=2) for step in range(13)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == [pytest.approx((remaining / 8) ** 2) for remaining in range(8, -1, -1)]
    steps = [step for step in range(1025) if is_probe_step(step, 1024)]
    assert steps == [0, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024]
    assert [step for step in range(4) if is_probe_step(step, 3)] == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_with_the_constant_of_muon_its_updates_are_those_of_torch_which_iterates_in_bfloat16(kind, monkeypatch):
    monkeypatch.setattr(optim, "COEFFICIENTS", 5 * [(3.4445, -4.7750, 2.0315)])
    monkeypatch.setattr(optim, "MARGIN", 1.0)
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(12, 8), (12, 8), (8, 12), (6, 6)]]
    expected = copy.deepcopy(weights)
    optimizer = Muon(WeightGroup(weights, 0.01, 0.1), 0.9, kind)
    set_learning_rates([optimizer], 1.0)
    reference = torch.optim.Muon(expected, lr=0.01, weight_decay=0.1, momentum=0.9)
    for _ in range(5):
        for weight, other in zip(weights, expected, strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator)
            other.grad = weight.grad.clone()
        optimizer.step(torch.tensor(1.0))
        reference.step()
    distance = max(
        float((weight - other).detach().abs().max()) for weight, other in zip(weights, expected, strict=True)
    )
    assert distance < (1e-7 if kind is torch.bfloat16 else 2e-3) and (distance > 1e-5) == (kind is torch.float32)


def test_the_singular_values_of_an_update_are_near_1():
    matrices = torch.randn(3, 12, 40, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(optim._orthogonalise(matrices))
    assert 0.8 < values.min() <= values.max() < 1.2


MODEL = random_model()


def test_the_standard_error_of_rows_of_equal_length_is_that_of_their_means():
    sums = torch.randn(13, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = (sums.mean() / 7, sums.std() / 7 / 13**0.5)
    assert mean_and_error(sums, torch.full((13,), 7.0)) == pytest.approx(list(map(float, expected)))


def losses_of(tokens):
    """Return the loss of every token but the first."""
    row = torch.from_numpy(tokens[None].astype(np.int64))
    return F.cross_entropy(MODEL(row[:, :-1]).mT, row[:, 1:], reduction="none")[0].detach().numpy()


def test_an_evaluation_holds_the_logits_of_few_tokens_at_a_time(monkeypatch):
    """Training stores no logits of a whole batch, so that a GPU may have no room for them."""
    model, split = random_model(vocab_size=500), Split(np.arange(3000) % 500, 3000)
    whole = validation_loss(model, split, 2000)
    monkeypatch.setattr("training.evaluate._TOKENS_AT_ONCE", 100)
    with Operations() as operations:
        parts = validation_loss(model, split, 2000)
    sizes = [tensor.numel() for *_, result in operations.calls for tensor in tensors_in(result)]
    assert max(sizes) < 2000 * model.vocab_size
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.parametrize("tokens_per_batch", [1, 100, 10_000])
def test_validation_covers_every_token_or_the_first(tokens_per_batch):
    tokens = np.random.default_rng(0).integers(MODEL.vocab_size, size=200).astype(np.uint16)
    measured, of_first = (validation_loss(MODEL, Split(tokens, 100), tokens_per_batch, n) for n in (None, 50))
    context = MODEL.config.context_length
    losses = np.concatenate([losses_of(tokens[start : start + context + 1]) for start in range(0, 199, context)])
    assert measured.loss == pytest.approx(losses.mean(), rel=1e-5)
    assert measured.bits_per_byte == pytest.approx(losses.sum() / math.log(2) / 100, rel=1e-5)
    assert measured.known().keys() == {"loss", "bits_per_byte", "whole"}
    assert of_first.loss == pytest.approx(losses[:50].mean(), rel=1e-5)


@pytest.mark.parametrize("tokens_per_batch", [1, 30, 10_000])
def test_the_gap_is_the_loss_of_every_story_minus_its_lower_bound(tokens_per_batch):
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, 8, 3, 11, 5, 12, 7])
    tokens = rng.integers(MODEL.vocab_size, size=starts[-1] + 1).astype(np.uint16)
    floor = np.zeros(len(tokens), np.float32)
    split = StorySplit(tokens, 100, starts=starts, floor=floor)
    losses = np.concatenate([losses_of(tokens[start : end + 1]) for start, end in pairwise(starts)])

    # A bound of 0, and a model that predicts the true probabilities
    loss = validation_loss(MODEL, split, tokens_per_batch)
    assert loss.gap == pytest.approx(loss.loss) == pytest.approx(losses.mean(), rel=1e-5)
    assert validation_loss(MODEL, split, tokens_per_batch, 20).loss == pytest.approx(losses[:22].mean(), rel=1e-5)
    floor[1:] = losses
    assert validation_loss(MODEL, split, tokens_per_batch).gap == pytest.approx(0, abs=1e-6)
