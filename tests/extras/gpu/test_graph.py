"""The recorded step. A CPU cannot record one, so `tests.extras.gpu.recording` replays its operations instead."""

import copy
import gc
import math
import re
import weakref
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from data.loader import BatchLoader
from extras.gpu.graph import record_step
from tests.extras.gpu.recording import Operations, record_operations, tensors_in
from tests.tiny_models import small_trainer
from training.device import SINGLE_PROCESS, ComputeDevice
from training.optim import set_learning_rates
from training.trainer import make_trainer, train_step


@dataclass(frozen=True, slots=True)
class _LikeGpu(ComputeDevice):
    """A device without the cached casts that a graph must not have."""

    def autocast(self):
        return torch.autocast("cpu", torch.bfloat16, enabled=self.dtype is torch.bfloat16, cache_enabled=False)


def trainer_like_on_gpu(*overrides):
    """Return a trainer whose batches have one shape, so that its steps can be recorded."""
    trainer = small_trainer("optim.warmup_steps=3", "max_steps=40", *overrides)
    trainer.loader = BatchLoader(trainer.loader.batches, torch.device("cpu"), pad=True)
    trainer.device = _LikeGpu(trainer.device.device, trainer.device.dtype, "like a GPU")
    return trainer


def recorded_and_eager(*overrides):
    recorded, eager = trainer_like_on_gpu(*overrides), trainer_like_on_gpu(*overrides)
    recorded.record = partial(record_step, record=record_operations)
    return recorded, eager


def losses(trainer, n_steps):
    return [train_step(trainer).loss.item() for _ in range(n_steps)]


def have_equal_weights(trainer, other):
    pairs = zip(trainer.changed_tensors(), other.changed_tensors(), strict=True)
    return all(torch.equal(tensor, other_tensor) for tensor, other_tensor in pairs)


CONFIGURATIONS = {
    "default": [],
    "dropout": ["model.dropout=0.2"],
    "AdamW, 3 micro-batches": ["optim=adamw", "gradient_accumulation_steps=3"],
    "bfloat16, dropout, 2 micro-batches": [
        "precision=bfloat16",
        "model.dropout=0.1",
        "gradient_accumulation_steps=2",
    ],
    "learned positions": ["model.position=learned"],
    "sum weighting": ["model.weighting=sum"],
    "sinusoids, tied query and key": ["model.position=sinusoidal", "model.tie_query_key=true"],
}


@pytest.mark.parametrize("overrides", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
def test_a_recorded_step_depends_on_tensors_alone(overrides, capsys):
    """Every number of Python is that of the recorded step, and yet the steps are those without a record."""
    recorded, eager = recorded_and_eager(*overrides)
    found, expected = losses(recorded, 4), losses(eager, 4)
    for trainer in (recorded, eager):  # an evaluation between two steps changes nothing
        trainer.model.eval()
        trainer.model(trainer.loader(0).inputs[0])
        trainer.model.train()
    found += losses(recorded, 4)
    expected += losses(eager, 4)
    assert recorded.recorded is not None and eager.recorded is None
    assert found == expected and len(set(expected)) == 8
    assert have_equal_weights(recorded, eager)
    assert capsys.readouterr().err == ""


def record_that_raises(step, stream):
    step()
    raise RuntimeError("CUDA error: operation not permitted\nwhen stream is capturing")


def lie_about(place):
    """Return a recording that ends without an error, and whose replays give something else."""

    def record(step, stream):
        replay, (loss, norm) = record_operations(step, stream)
        calls = replay.__self__.calls  # type: ignore[attr-defined]

        def wrong():
            replay()
            if place == "loss":
                loss.mul_(1.05)
            elif place == "not a number":
                norm.fill_(float("nan"))

        if place == "update":  # the kernels of the optimizer are lost
            del calls[-len(calls) // 8 :]
        return wrong, (loss, norm)

    return record


FAULTS = {
    "an error": (record_that_raises, r"cannot be recorded \(CUDA error: operation not permitted when stream is captu"),
    "no memory": (None, r"cannot be recorded \(CUDA out of memory\."),
    "loss": (lie_about("loss"), r"does something else when it is recorded \(loss 3\.\d+ instead of 3\.\d+\)"),
    "not a number": (lie_about("not a number"), r"does something else .*\(gradient norm nan instead of \d\.\d+\)"),
    "update": (lie_about("update"), r"does something else when it is recorded \(change along the eager one .* of 1\)"),
}


@pytest.mark.parametrize(("record", "message"), FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_that_cannot_be_recorded_is_taken_without_a_record(record, message, precision, capfd):
    """One line is printed, and the losses are those of a run that records nothing."""
    failing, eager = recorded_and_eager(f"precision={precision}", "model.dropout=0.2")

    def no_memory(step, stream):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    failing.record = partial(record_step, record=record or no_memory)  # type: ignore[arg-type]
    generator = torch.get_rng_state()
    collects = gc.isenabled()
    found = losses(failing, 1)
    captured = capfd.readouterr()
    (line,) = captured.err.splitlines()
    expected_line = rf"warning: the training step {message}.*; its kernels are started one by one"
    assert re.fullmatch(expected_line, line)
    assert (failing.record, failing.recorded, gc.isenabled()) == (None, None, collects)

    torch.set_rng_state(generator)
    assert found + losses(failing, 5) == losses(eager, 6)
    assert have_equal_weights(failing, eager)
    assert capfd.readouterr().err == ""


def test_a_first_step_that_is_not_finite_is_no_fault_of_the_recording(capsys):
    trainer, _ = recorded_and_eager()
    loss_fn = trainer.loss_fn
    trainer.loss_fn = lambda *inputs, targets: loss_fn(*inputs, targets=targets) * math.nan
    train_step(trainer)
    assert trainer.recorded is not None and trainer.skipped == 1
    assert capsys.readouterr().err == ""


def test_a_batch_of_one_row_is_not_repeated():
    trainer, _ = recorded_and_eager()
    train_step(trainer)
    batch = trainer.loader(0)
    row = batch._replace(inputs=tuple(each[:1] for each in batch.inputs), targets=batch.targets[:1])
    assert trainer.recorded is not None and len(batch.targets) > 1
    with pytest.raises(AssertionError):
        trainer.recorded([row])


def test_a_trainer_with_a_graph_is_freed_with_its_last_name():
    """A graph in a reference cycle would be freed by the garbage collector, perhaps while another one is recorded."""
    trainer, _ = recorded_and_eager()
    train_step(trainer)
    reference = weakref.ref(trainer)
    gc.disable()
    try:
        del trainer
        assert reference() is None
    finally:
        gc.enable()


ALL = CONFIGURATIONS | {"large": ["model=base", "tokens_per_batch=1024"]}
WAITS = ("_local_scalar_dense", "nonzero", "unique", "masked_select", "equal.default")  # a value decides on the host


@pytest.mark.parametrize("overrides", ALL.values(), ids=ALL)
def test_a_step_on_a_device_neither_waits_for_it_nor_reads_another(overrides, monkeypatch):
    """`meta` stands for a GPU: its tensors have no values, so that the step cannot read one."""
    meta = torch.device("meta")
    for name in ("is_autocast_enabled", "get_autocast_dtype"):  # torch knows no autocast for it
        monkeypatch.setattr(torch, name, partial(lambda of, device: of("cpu"), getattr(torch, name)))
    like = trainer_like_on_gpu(*overrides)
    model = copy.deepcopy(like.model).to(meta)
    trainer = make_trainer(like.settings, model, like.loader.batches.split, like.device, SINGLE_PROCESS)
    trainer.device = _LikeGpu(meta, like.device.dtype, "meta")
    trainer.skipped, trainer.skipped_in_row = torch.zeros(2, device=meta).unbind()
    set_learning_rates(trainer.optimizers, 0.5)
    batch = like.loader(0)
    inputs = tuple(each.to(meta) for each in batch.inputs)
    batch = batch._replace(inputs=inputs, targets=batch.targets.to(meta), n_targets=batch.n_targets.to(meta))
    trainer.loader = lambda index: batch  # type: ignore[assignment]
    train_step(trainer)
    with Operations() as operations:
        train_step(trainer)
    assert len(operations.calls) > 300
    for function, *values in operations.calls:
        assert not any(name in str(function) for name in WAITS), function
        assert all(tensor.device == meta for tensor in tensors_in(values)), function
