"""One step: what it computes, however it is computed."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from math import isfinite
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from data.loader import BatchLoader, Split, StoryBatches, StreamBatches
from model.transformer import Transformer
from tests.data.test_loader import STORIES
from tests.reliability.counts import counted
from tests.reliability.runs import digest
from training.device import Place, choose_place
from training.evaluate import SummedLoss
from training.logging import Recorder, read_records
from training.optim import StackedMuon, make_optimizers, set_rates
from training.settings import Compile, Device, Precision, TrainSettings, typed_train
from training.trainer import PATIENCE, Training, advance, compiled, enough_memory, train_step

ROOT = Path(__file__).parent.parent.parent
N_TOKENS = int(STORIES.tokens.max()) + 1
STREAM = Split((np.arange(5003) ** 2 % 29).astype(np.uint16), 1)  # easily learned
OWN_WARNING = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is:DeprecationWarning")  # torch's compiler's


def settings(*overrides: str) -> TrainSettings:
    quick = ["model=nano", "model.context_length=19", "tokens_per_batch=95", "precision=float32", "max_steps=100"]
    with initialize_config_dir(str(ROOT / "configs"), version_base="1.3"):
        return typed_train(compose("train", [*quick, *overrides]))


def make_training(asked: TrainSettings, *, stories: bool, device: str = "cpu", room: int = 0) -> Training:
    """Bring a small model of random text together as train.py does, on any device."""
    own, place = asked.run, choose_place(Device(device), asked.run.precision)
    torch.compiler.reset()  # it compiles one function for so many models only, and then no more
    torch.manual_seed(own.seed)
    model = Transformer(asked.model, N_TOKENS, own.seed)
    if device != "cpu":
        model.to(place.device)
    size = {"tokens_per_batch": own.tokens_per_batch, "context_length": asked.model.context_length, "seed": own.seed}
    batches = StoryBatches(STORIES, **size) if stories else StreamBatches(STREAM, **size)
    supply = BatchLoader(batches, place.device, pad=own.compile is not Compile.none, resident_bytes=room)
    loss = compiled(SummedLoss(model), own.compile, place.device)
    scale = batches.split.bits_per_byte
    return Training(model, loss, supply, scale, make_optimizers(model, asked.optim), place, own, asked.optim)


class Ahead(Place):
    """A place that no number may be asked of: what a GPU does, on tensors of the CPU."""

    works_ahead = True


def make_ahead(asked: TrainSettings, *, stories: bool) -> Training:
    """Bring a training together that takes its steps as on a GPU."""
    training = make_training(asked, stories=stories)
    place = training.place
    training.place = Ahead(place.device, place.bfloat16, place.where, place.reason)
    if isinstance(training.optimizers[0], torch.optim.Muon):
        training.optimizers[0] = StackedMuon(training.optimizers[0].param_groups, lr=0.01)
    return training


def losses(training: Training, n_steps: int) -> list[float]:
    found = []
    for _ in range(n_steps):
        set_rates(training.optimizers, 1.0)
        found.append(train_step(training)[0].item())
        training.step += 1
    return found


@OWN_WARNING
@pytest.mark.parametrize("stories", [False, True])
def test_gradients_that_stay_in_place_change_no_number(stories: bool) -> None:
    asked = settings("gradient_accumulation_steps=2")
    plain, kept = (make_training(asked, stories=stories) for _ in range(2))
    kept.own = replace(kept.own, compile=Compile.graphs)  # the step's part of it, which no device is needed for
    for parameter in kept.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    places = [parameter.grad.data_ptr() for parameter in kept.model.parameters() if parameter.grad is not None]
    assert losses(plain, 6) == losses(kept, 6)
    after = [parameter.grad.data_ptr() for parameter in kept.model.parameters() if parameter.grad is not None]
    assert after == places


def test_a_resident_text_changes_no_loss() -> None:
    asked = settings()
    assert losses(make_training(asked, stories=False), 5) == losses(make_training(asked, stories=False, room=2**20), 5)


def test_rows_that_ask_nothing_change_a_step_by_rounding_alone() -> None:
    asked = settings()
    plain, full = (make_training(asked, stories=True) for _ in range(2))
    assert isinstance(full.batch_at, BatchLoader)
    full.batch_at._min_rows = full.batch_at.batches.n_rows
    assert losses(plain, 25) == pytest.approx(losses(full, 25), abs=1e-4)


@pytest.mark.slow
@OWN_WARNING
@pytest.mark.parametrize("stories", [False, True])
def test_the_compiled_step_is_the_plain_one_to_rounding(stories: bool) -> None:
    plain = losses(make_training(settings(), stories=stories), 25)
    found = losses(make_training(settings("compile=default"), stories=stories), 25)
    assert found == pytest.approx(plain, abs=0.02) and found[-1] < found[0] - 0.3  # Muon rounds to bfloat16


@pytest.mark.parametrize("stories", [False, True])
@pytest.mark.parametrize("optim", ["muon", "adamw"])
def test_no_step_asks_for_a_number_that_the_device_has_to_compute(stories: bool, optim: str) -> None:
    """Tensors without numbers: whoever wants one, as .item() and a copy to the host do, is refused."""
    asked = settings(f"optim={optim}", "gradient_accumulation_steps=2", "model.dropout=0.1")
    given = [make_training(asked, stories=stories).batch_at(number) for number in range(2)]
    with FakeTensorMode(allow_non_fake_inputs=True) as nothing:
        training = make_ahead(asked, stories=stories)
        batches = [
            (tuple(map(nothing.from_tensor, read)), nothing.from_tensor(targets), n) for read, targets, n in given
        ]
        training.batch_at = batches.__getitem__
        total, norm, n_tokens = train_step(training)
        assert n_tokens == 2 * 95 and total.shape == norm.shape == training.skipped.shape == ()
        with pytest.raises(DataDependentOutputException):
            total.item()


def everything(training: Training) -> dict[str, torch.Tensor]:
    """Return a copy of every tensor that a step may move, weights and the optimizers' state."""
    found = {f"model {name}": tensor for name, tensor in training.model.state_dict().items()}
    for i, optimizer in enumerate(training.optimizers):
        for number, state in optimizer.state_dict()["state"].items():
            found |= {f"optimizer {i} {number} {name}": tensor for name, tensor in state.items()}
    return {name: tensor.clone() for name, tensor in found.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether all is the same to the bit, zeros by their sign too."""
    return one.keys() == other.keys() and all(
        torch.equal(tensor, other[name]) and torch.equal(tensor.signbit(), other[name].signbit())
        for name, tensor in one.items()
    )


def spoil(training: Training, where: str, value: float) -> Callable[[], None]:
    """Make the steps from now on not finite, in one place; return what undoes it."""
    good = training.summed_loss
    if where == "one element of one gradient":
        parameter = list(training.model.parameters())[-2]

        def add(gradient: torch.Tensor) -> torch.Tensor:
            gradient = gradient.clone()
            gradient.view(-1)[3] = value
            return gradient

        return parameter.register_hook(add).remove
    if where == "the second batch":  # of two that are accumulated
        numbers = iter(range(1, 10**6))
        training.summed_loss = lambda *read: good(*read) * (value if next(numbers) % 2 == 0 else 1.0)
    else:
        training.summed_loss = lambda *read: good(*read) + value

    def undo() -> None:
        training.summed_loss = good

    return undo


SPOILED = list(
    product(
        (make_training, make_ahead),
        ("muon", "adamw"),
        ("the loss", "one element of one gradient", "the second batch"),
        (float("nan"), float("inf"), float("-inf")),
    )
)


def moved(make: Callable[..., Training], optim: str, where: str, value: float) -> list[str]:
    """Return what two steps that are not finite have moved; AssertionError where training does not go on after them."""
    training = make(
        settings(f"optim={optim}", "gradient_accumulation_steps=2", "optim.weight_decay=0.5"), stories=False
    )
    losses(training, 3)
    average = "momentum_buffer" if optim == "muon" else "exp_avg"
    with torch.no_grad():  # what multiplying by 0 would change
        for parameter in training.model.parameters():
            parameter.view(-1)[0] = -0.0
        next(iter(training.optimizers[0].state.values()))[average].view(-1)[0] = -0.0
    before = everything(training)
    undo = spoil(training, where, value)
    losses(training, 2)
    after = everything(training)
    assert after.keys() == before.keys()
    if names := [name for name in before if not same({name: after[name]}, {name: before[name]})]:
        return names
    assert (int(training.skipped), int(training.skipped_in_row), training.step) == (2, 2, 5)
    undo()
    found = losses(training, 20)
    assert all(map(isfinite, found)) and found[-1] < found[0]
    assert not same(everything(training), before)
    assert (int(training.skipped), int(training.skipped_in_row)) == (2, 0)
    return []


def test_a_step_that_is_not_finite_moves_nothing_to_the_bit_and_training_goes_on(
    figure: Callable[[str, str, str, bool], None],
) -> None:
    found = {f"{make.__name__} {' '.join(map(str, case))}": moved(make, *case) for make, *case in SPOILED}
    not_kept = [f"{case} moves {len(names)} tensors" for case, names in found.items() if names]
    figure(
        "NaN, Inf and -Inf injected into loss, gradient, batch: both optimizers, steps as on a CPU and as on a GPU",
        f"weights and optimizer bitwise unchanged in {len(found)} of {len(found)} cases",
        "; ".join([f"{len(found) - len(not_kept)} of {len(found)} cases unchanged", *not_kept]),
        not not_kept,
    )


@pytest.mark.parametrize("optim", ["muon", "adamw"])
def test_a_training_that_works_ahead_takes_the_same_steps(optim: str) -> None:
    """Also where the very first step is skipped, before the optimizers have any state."""
    asked = settings(f"optim={optim}", "optim.learning_rate=0.001")
    plain, ahead = (make(asked, stories=False) for make in (make_training, make_ahead))
    for training in (plain, ahead):
        undo = spoil(training, "the loss", float("nan"))
        losses(training, 1)
        undo()
    assert losses(plain, 20) == pytest.approx(losses(ahead, 20), abs=0.02)  # Muon rounds to bfloat16


@pytest.mark.parametrize("optim", ["muon", "adamw"])
def test_what_is_loaded_and_saved_without_another_step_is_the_same_rates_included(optim: str, tmp_path: Path) -> None:
    """As where a signal broke off the last evaluation: who goes on only evaluates, and saves."""
    asked = settings(f"optim={optim}", "max_steps=3", "log_every_steps=1")
    first, second = (make_training(asked, stories=False) for _ in range(2))
    recorder = Recorder(tmp_path, None)
    for _ in range(3):
        advance(first, recorder)
    recorder.close()
    second.load(first.state())
    kept, again = (digest({k: v for k, v in one.state().items() if k != "random"}) for one in (first, second))
    assert kept == again


def test_skipped_steps_are_counted_on_over_a_checkpoint() -> None:
    first, second = (make_training(settings(), stories=False) for _ in range(2))
    spoil(first, "the loss", float("nan"))
    losses(first, 3)
    second.load(first.state())
    spoil(second, "the loss", float("nan"))
    losses(second, 2)
    assert (int(second.skipped), int(second.skipped_in_row), int(first.skipped)) == (5, 5, 3)


def test_many_skipped_steps_in_a_row_end_the_run_with_what_to_try_and_fewer_do_not(tmp_path: Path) -> None:
    asked = settings("precision=bfloat16", "log_every_steps=1", "optim.learning_rate=0.125")
    training = make_training(asked, stories=False)
    recorder = Recorder(tmp_path, None)
    undo = spoil(training, "the loss", float("nan"))
    for _ in range(PATIENCE - 1):
        advance(training, recorder)
    undo()
    advance(training, recorder)
    spoil(training, "one element of one gradient", float("inf"))
    with pytest.raises(FloatingPointError) as error:
        for _ in range(PATIENCE):
            advance(training, recorder)
    recorder.close()
    assert training.step == 2 * PATIENCE
    for said in (f"{PATIENCE} steps in a row", "optim.learning_rate (now 0.125)", "precision=float32 (now bfloat16)",
                 f"resume=true resume_with_changes=true optim.learning_rate=... out={tmp_path}"):  # fmt: skip
        assert said in str(error.value)
    found = read_records(tmp_path)
    assert [one["skipped"] for one in found] == [*range(1, PATIENCE), *range(PATIENCE - 1, 2 * PATIENCE)]
    assert [one["loss"] is None for one in found] == [True] * (PATIENCE - 1) + [False] * (PATIENCE + 1)
    assert [one["gradient_norm"] is None for one in found] == [False] * PATIENCE + [True] * PATIENCE


@pytest.mark.slow
def test_no_normal_step_is_skipped(figure: Callable[[str, str, str, bool], None], full: bool) -> None:
    skipped, taken = 0, 0
    for optim, n_steps in (("muon", 2000), ("adamw", 8000)):  # Muon takes three times as long
        training = make_training(settings(f"optim={optim}", "model.dropout=0.1"), stories=True)
        found = losses(training, n_steps if full else n_steps // 10)
        assert all(map(isfinite, found))
        skipped, taken = skipped + int(training.skipped), taken + training.step
    figure(
        "normal steps skipped for nothing", f"0 of {counted(taken, 10_000)}", f"{skipped} of {taken:,}", skipped == 0
    )


def test_graphs_without_a_cuda_device_are_refused() -> None:
    with pytest.raises(ValueError, match="compile=graphs needs a CUDA device"):
        compiled(SummedLoss(torch.nn.Linear(2, 2)), Compile.graphs, torch.device("cpu"))


def test_too_little_memory_is_told_with_what_to_set(tmp_path: Path) -> None:
    training = make_training(settings("gradient_accumulation_steps=3"), stories=False)

    def too_large(*_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB")

    training.summed_loss = too_large
    recorder = Recorder(tmp_path, None)
    with pytest.raises(MemoryError) as error, enough_memory(training):
        advance(training, recorder)
    recorder.close()
    assert "tokens_per_batch=95" in str(error.value) and "gradient_accumulation_steps=6" in str(error.value)


def test_a_machine_with_too_little_memory_says_so_in_the_same_line() -> None:
    training = make_training(settings("gradient_accumulation_steps=3"), stories=False)
    with pytest.raises(MemoryError, match="gradient_accumulation_steps=6"), enough_memory(training):
        torch.empty(2**56)
    with pytest.raises(RuntimeError, match="a bug"), enough_memory(training):
        raise RuntimeError("a bug")


def test_the_pace_counts_every_step_but_the_first(tmp_path: Path) -> None:
    training = make_training(settings(), stories=False)
    recorder = Recorder(tmp_path, None)
    for _ in range(4):
        advance(training, recorder)
    recorder.close()
    n_tokens, seconds = training.pace
    assert n_tokens == 3 * 95 and 0 < seconds < training.seconds


def test_precision_is_what_was_asked() -> None:
    assert not choose_place(Device.cpu, Precision.float32).bfloat16
    assert torch.get_float32_matmul_precision() == "highest"  # float32 means float32, on a GPU too
