"""The training step, the loop and the optimizers: skipped steps, dropout, and what a checkpoint restores."""

import copy
from collections.abc import Callable

import pytest
import torch

from tests.training.small import small_trainer
from training.device import Distributed, choose_device
from training.loop import is_probe_step
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
def test_a_step_that_is_not_finite_changes_neither_weights_nor_optimizer(
    poison: Callable[[Trainer], None], optim: str, n_steps_before: int
) -> None:
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
def test_training_resumes_bit_identically_only_if_all_of_the_state_is_restored(
    forgotten: str | None, optim: str
) -> None:
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


def test_a_checkpoint_of_another_model_and_more_processes_than_rows_are_refused_in_one_line() -> None:
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


# The loop


def test_the_probe_runs_at_the_start_at_the_end_and_at_log_spaced_steps_between() -> None:
    steps = [step for step in range(1025) if is_probe_step(step, 1024)]
    assert steps == [0, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert [step for step in range(4) if is_probe_step(step, 3)] == [0, 1, 2, 3]
