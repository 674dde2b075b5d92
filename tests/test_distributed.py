"""Other systems: several processes, and one that lacks what Windows lacks."""

import copy
import os
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from tests.program import ROOT, SMALL, SMALL_PROBE, forked, run_program, run_python
from tests.tiny_models import small_trainer
from training.checkpoint import load_checkpoint
from training.device import process_group
from training.metrics import read_records
from training.trainer import train_step

RUN = [
    *SMALL, "device=cpu", "precision=float32", "optim=adamw", "max_steps=6", "eval_every_steps=3",
    "gradient_accumulation_steps=2", "threads=1",
]  # fmt: skip


@pytest.mark.slow
def test_two_processes_train_as_one_which_can_continue(tmp_path, cache):
    """Losses, weights and optimizer states are equal to float32 rounding."""
    assert run_program("train.py", f"out={tmp_path / 'one'}", cache, *RUN).status == 0
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    result = run_python(*launcher, str(ROOT / "train.py"), f"out={tmp_path / 'two'}", cache, *RUN)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("step     3") == 1  # only rank 0 prints
    runs = (tmp_path / "one", tmp_path / "two")
    losses, expected = ([record["loss"] for record in read_records(run) if "loss" in record] for run in runs)
    assert losses == pytest.approx(expected, rel=1e-5)
    states = [load_checkpoint(run / "checkpoints") for run in runs]
    torch.testing.assert_close(states[0]["model"], states[1]["model"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(states[0]["optimizer"], states[1]["optimizer"], rtol=1e-3, atol=1e-6)

    # A resume may take another number of processes.
    resumed = run_program("train.py", f"out={tmp_path / 'two'}", "resume=true", "max_steps=7", cache)
    assert (resumed.status, resumed.err) == (0, "")


TASKS = Path("/proc/self/task")


def threads_of_collectives():
    """Return the ids of the threads that run collectives in this process; none without /proc."""
    found = set()
    for task in TASKS.glob("*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if task.read_text().strip() == "pt_gloo_runloop":
                found.add(task.parent.name)
    return found


def train_with_one_loss_not_finite(rank, port):
    """Every rank has other rows, and only rank 1 computes a loss that is not finite."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with process_group(use_cuda=False) as distributed:
        threads = set()
        for _ in range(1000):  # a thread gets its name when it runs
            threads = threads_of_collectives()
            if len(threads) == 2 or not TASKS.exists():
                break
            time.sleep(0.01)
        else:
            raise AssertionError("no threads of collectives")
        for optim in ("muon", "adamw"):
            trainer = small_trainer("tokens_per_batch=512", f"optim={optim}", distributed=distributed)
            train_step(trainer)
            old_state, loss_fn = copy.deepcopy(trainer.state()), trainer.loss_fn
            factor = float("nan") if rank == 1 else 1
            trainer.loss_fn = lambda *inputs, targets: factor * loss_fn(*inputs, targets=targets)  # noqa: B023
            train_step(trainer)
            for part in ("model", "optimizer"):
                torch.testing.assert_close(trainer.state()[part], old_state[part], rtol=0, atol=0)
            assert (trainer.skipped, trainer.skipped_in_row) == (1, 1)
            trainer.loss_fn = loss_fn
            assert train_step(trainer).loss.isfinite() and trainer.skipped_in_row == 0
    # One that frees a tensor of Python after Python has ended aborts the process; those for gradients hold none.
    for _ in range(1000):
        if not TASKS.exists() or not threads & threads_of_collectives():
            return
        time.sleep(0.01)
    raise AssertionError("the threads that carry Python objects still run")


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [forked(partial(train_with_one_loss_not_finite, rank, port)) for rank in (0, 1)]
    assert [os.waitpid(rank, 0)[1] for rank in ranks] == [0, 0]


WITHOUT_POSIX = ROOT / "tests" / "without_posix"  # takes away what Windows lacks


def test_a_model_is_trained_resumed_and_tested_without_posix(tmp_path, cache):
    assert run_python("-c", "import fcntl", path=WITHOUT_POSIX).returncode == 1
    out = tmp_path / "run"
    train = ["train.py", f"out={out}", cache, *SMALL]
    commands = [train, [*train, "resume=true", "max_steps=6"], ["eval.py", f"run={out}", cache, *SMALL_PROBE]]
    code = f"from tests.program import run_program\nfor each in {commands}: assert run_program(*each).status == 0"
    result = run_python("-c", code, path=WITHOUT_POSIX)
    assert (result.returncode, result.stderr) == (0, "")
    assert (out / "probe" / "report.html").is_file()
