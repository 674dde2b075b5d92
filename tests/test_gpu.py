"""Training on a CUDA device; skipped without one."""

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch

from tests.tiny_models import small_trainer
from training.trainer import train_step

CUDA = "device=cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("default"),  # torch warns of kernels that are not deterministic, of TF32 and the like
]


@pytest.fixture(autouse=True)
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lets torch use deterministic kernels only."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def losses(n_steps: int, *overrides: str) -> list[float]:
    trainer = small_trainer(*overrides)
    return [train_step(trainer).loss.item() for _ in range(n_steps)]


def test_the_gpu_computes_the_losses_of_the_cpu_also_in_bfloat16() -> None:
    assert losses(4, CUDA) == pytest.approx(losses(4), rel=1e-3)
    assert losses(4, CUDA, "precision=bfloat16") == pytest.approx(losses(4), rel=2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_compiled_training_has_the_same_losses(accumulation: int) -> None:
    overrides = [CUDA, f"gradient_accumulation_steps={accumulation}", "optim=adamw"]
    assert losses(5, "compile=default", *overrides) == pytest.approx(losses(5, *overrides), rel=1e-4)


@pytest.mark.parametrize("optim", ["muon", "adamw"])
def test_training_on_a_gpu_resumes_exactly(optim: str) -> None:
    overrides = [CUDA, f"optim={optim}", "model.dropout=0.2"]
    reference, resumed = small_trainer(*overrides), small_trainer(*overrides)
    for _ in range(3):
        train_step(reference)
    resumed.load(deepcopy(reference.state()))
    expected = [train_step(reference).loss.item() for _ in range(3)]
    assert [train_step(resumed).loss.item() for _ in range(3)] == expected
    torch.testing.assert_close(resumed.model.state_dict(), reference.model.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("settings", [["optim=muon"], ["optim=adamw", "compile=default"]])
def test_a_step_does_not_wait_for_the_gpu(settings: list[str]) -> None:
    trainer = small_trainer(CUDA, "gradient_accumulation_steps=2", *settings)
    for _ in range(3):
        train_step(trainer)  # compiles, and allocates the states of the optimizers
    torch.cuda.set_sync_debug_mode("error")
    try:
        stats = [train_step(trainer) for _ in range(3)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(step.loss.isfinite() for step in stats)
