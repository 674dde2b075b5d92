"""Other systems: several processes, and one that lacks what Windows lacks."""

import socket
import subprocess
from pathlib import Path

import pytest
import torch

from tests.program import ROOT, SMALL, SMALL_PROBE, run_program, run_python
from training.checkpoint import load_checkpoint
from training.logging import read_records

RUN = [
    *SMALL, "device=cpu", "precision=float32", "optim=adamw", "max_steps=6", "eval_every_steps=3",
    "gradient_accumulation_steps=2", "threads=1",
]  # fmt: skip


def torchrun(*arguments: str, script: str = "train.py") -> subprocess.CompletedProcess[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = ["-m", "torch.distributed.run", f"--master-port={port}", "--nproc-per-node=2"]
    return run_python(*launcher, str(ROOT / script), *arguments)


# Every rank has other rows, and only rank 1 computes a loss that is not finite.
NOT_FINITE = """
import os
import torch
import torch.distributed as dist
from tests.tiny_models import small_trainer
from training.device import process_group
from training.trainer import train_step

with process_group(use_cuda=False) as distributed:
    for settings in ([], ["optim=adamw"]):
        trainer = small_trainer("tokens_per_batch=512", *settings, distributed=distributed)
        train_step(trainer)
        old_state, loss_fn = trainer.state(), trainer.loss_fn
        trainer.loss_fn = lambda *inputs, targets: (
            loss_fn(*inputs, targets=targets) * (float("nan") if distributed.rank == 1 else 1)
        )
        train_step(trainer)
        state = trainer.state()
        for part in ("model", "optimizer"):
            torch.testing.assert_close(state[part], old_state[part], rtol=0, atol=0)
        assert (trainer.skipped, trainer.skipped_in_row) == (1, 1)
        trainer.loss_fn = loss_fn
        assert train_step(trainer).loss.isfinite() and trainer.skipped_in_row == 0
os._exit(0)  # threads of gloo may still run, and would abort an ordinary exit now and then
"""


@pytest.mark.slow
def test_two_processes_train_as_one_which_can_continue(tmp_path: Path, cache: str) -> None:
    """Losses, weights and optimizer states are equal to float32 rounding."""
    assert run_program("train.py", f"out={tmp_path / 'one'}", cache, *RUN).status == 0
    result = torchrun(f"out={tmp_path / 'two'}", cache, *RUN)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("step     3") == 1  # only rank 0 prints
    runs = (tmp_path / "one", tmp_path / "two")
    losses, expected = ([record["loss"] for record in read_records(run) if "loss" in record] for run in runs)
    assert losses == pytest.approx(expected, rel=1e-5)
    states = [load_checkpoint(run / "checkpoints") for run in runs]
    torch.testing.assert_close(states[0]["model"], states[1]["model"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[0]["optimizer"], states[1]["optimizer"], rtol=1e-3, atol=1e-6)

    # A resume with another number of processes takes it and says so.
    resumed = run_program("train.py", f"out={tmp_path / 'two'}", "resume=true", "max_steps=7", cache)
    assert resumed.status == 0 and "warning: processes=1 from step 6 on (before: 2)" in resumed.err


@pytest.mark.slow
def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(tmp_path: Path) -> None:
    (tmp_path / "not_finite.py").write_text(NOT_FINITE)
    result = torchrun(script=str(tmp_path / "not_finite.py"))
    assert result.returncode == 0, result.stderr


WITHOUT_POSIX = ROOT / "tests" / "without_posix"  # takes away what Windows lacks


def test_a_model_is_trained_resumed_and_tested_without_posix(tmp_path: Path, cache: str) -> None:
    assert run_python("-c", "import fcntl", path=WITHOUT_POSIX).returncode == 1
    out = tmp_path / "run"
    for arguments in ([], ["resume=true", "max_steps=6"]):
        result = run_python("train.py", f"out={out}", cache, *SMALL, *arguments, path=WITHOUT_POSIX)
        assert result.returncode == 0 and "Traceback" not in result.stderr, result.stderr
    result = run_python("eval.py", f"run={out}", cache, *SMALL_PROBE, path=WITHOUT_POSIX)
    assert (result.returncode, result.stderr) == (0, "")
    assert (out / "probe" / "report.html").is_file()
