"""Several processes started by torchrun: the same losses, weights and checkpoints as one process."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.program import ROOT, SMALL, run_program
from training.checkpoint import load_checkpoint
from training.distributed import SINGLE_PROCESS, process_group
from training.logging import read_records

pytestmark = pytest.mark.slow
RUN = [
    *SMALL, "device=cpu", "precision=float32", "optim=adamw", "max_steps=6", "eval_every_steps=3",
    "gradient_accumulation_steps=2", "threads=1",
]  # fmt: skip


def torchrun(*arguments: str, n_processes: int = 2) -> subprocess.CompletedProcess[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", f"--master-port={port}", f"--nproc-per-node={n_processes}"]
    return subprocess.run(
        [sys.executable, *launcher, str(ROOT / "train.py"), *arguments],
        capture_output=True, text=True, cwd=ROOT, timeout=240, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Path:
    """A run with one process."""
    out = tmp_path_factory.mktemp("runs") / "reference"
    assert run_program("train.py", f"out={out}", cache, *RUN).status == 0
    return out


def assert_close(out: Path, reference: Path) -> None:
    """Compares losses, weights and optimizer states to float32 rounding."""
    losses, expected = (
        [record["loss"] for record in read_records(run) if "loss" in record] for run in (out, reference)
    )
    assert losses == pytest.approx(expected, rel=1e-5)
    states = [load_checkpoint(run / "checkpoints") for run in (out, reference)]
    torch.testing.assert_close(states[0]["model"], states[1]["model"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[0]["optimizer"], states[1]["optimizer"], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("sharding", ["none", "fsdp"])
def test_two_processes_train_as_one(sharding: str, reference: Path, tmp_path: Path, cache: str) -> None:
    result = torchrun(f"out={tmp_path / 'run'}", cache, f"sharding={sharding}", *RUN)
    assert result.returncode == 0, result.stderr
    assert_close(tmp_path / "run", reference)
    assert result.stdout.count("step     3") == 1  # only rank 0 prints


def test_a_run_resumes_with_another_number_of_processes_and_other_sharding(
    reference: Path, tmp_path: Path, cache: str
) -> None:
    out = f"out={tmp_path / 'run'}"
    assert run_program("train.py", out, cache, *RUN, "max_steps=3").status == 0
    resumed = torchrun(out, cache, "sharding=fsdp", "resume=true", "max_steps=6")
    assert resumed.returncode == 0, resumed.stderr
    assert load_checkpoint(tmp_path / "run" / "checkpoints")["step"] == 6
    assert run_program("train.py", out, cache, "resume=true", "sharding=none", "max_steps=8").status == 0


def test_a_single_process_needs_no_process_group() -> None:
    with process_group(use_cuda=False) as distributed:
        assert distributed == SINGLE_PROCESS and not torch.distributed.is_initialized()
    assert distributed.broadcast("value") == "value" and distributed.max(3) == 3
    assert distributed.mean(torch.tensor(2.0)) == 2
