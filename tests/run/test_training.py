"""One step: what it computes, however it is computed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from configs import TrainSettings, typed_train
from data.batches import Split, StoryBatches, StreamBatches
from data.supply import Supply
from model.loss import SummedLoss
from model.transformer import Transformer
from run.config import Compile, Device, Precision
from run.device import choose_place
from run.logging import Recorder
from run.muon import StackedMuon
from run.schedule import make_optimizers, set_rates
from run.training import Training, advance, compiled, enough_memory, train_step
from tests.data.test_batches import STORIES

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
    supply = Supply(batches, place.device, full=own.compile is not Compile.none, room=room)
    loss = compiled(SummedLoss(model), own.compile, place.device)
    scale = batches.split.bits_per_byte
    return Training(model, loss, supply, scale, make_optimizers(model, asked.optim), place, own, asked.optim)


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
    asked = settings("accumulate_steps=2")
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
    assert isinstance(full.batch_at, Supply)
    full.batch_at._full = True
    assert losses(plain, 25) == pytest.approx(losses(full, 25), abs=1e-4)


@pytest.mark.slow
@OWN_WARNING
@pytest.mark.parametrize("stories", [False, True])
def test_the_compiled_step_is_the_plain_one_to_rounding(stories: bool) -> None:
    plain = losses(make_training(settings(), stories=stories), 25)
    found = losses(make_training(settings("compile=default"), stories=stories), 25)
    assert found == pytest.approx(plain, abs=0.02) and found[-1] < found[0] - 0.3  # Muon rounds to bfloat16


@pytest.mark.parametrize("stories", [False, True])
@pytest.mark.parametrize("optim", ["muon", "stacked muon", "adamw"])
def test_no_step_asks_for_a_number_that_the_device_has_to_compute(stories: bool, optim: str) -> None:
    """Tensors without numbers: whoever wants one, as .item() and a copy to the host do, is refused."""
    asked = settings(f"optim={optim.split()[-1]}", "accumulate_steps=2", "model.dropout=0.1")
    given = [make_training(asked, stories=stories).batch_at(number) for number in range(2)]
    with FakeTensorMode(allow_non_fake_inputs=True) as nothing:
        training = make_training(asked, stories=stories)
        batches = [
            (tuple(map(nothing.from_tensor, read)), nothing.from_tensor(targets), n) for read, targets, n in given
        ]
        training.batch_at = batches.__getitem__
        if optim == "stacked muon":  # a GPU's
            training.optimizers[0] = StackedMuon(training.optimizers[0].param_groups[0]["params"], lr=0.01)
        total, norm, n_tokens = train_step(training)
        assert n_tokens == 2 * 95 and total.shape == norm.shape == ()
        with pytest.raises(DataDependentOutputException):
            total.item()


def test_graphs_without_a_cuda_device_are_refused() -> None:
    with pytest.raises(ValueError, match="compile=graphs needs a CUDA device"):
        compiled(SummedLoss(torch.nn.Linear(2, 2)), Compile.graphs, torch.device("cpu"))


def test_too_little_memory_is_told_with_what_to_set(tmp_path: Path) -> None:
    training = make_training(settings("accumulate_steps=3"), stories=False)

    def too_large(*_: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 8.00 GiB")

    training.summed_loss = too_large
    recorder = Recorder(tmp_path, None)
    with pytest.raises(MemoryError) as error, enough_memory(training):
        advance(training, recorder)
    recorder.close()
    assert "tokens_per_batch=95" in str(error.value) and "accumulate_steps=6" in str(error.value)


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
