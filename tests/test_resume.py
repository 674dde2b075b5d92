"""Runs that are killed, stopped by signals or damaged, and resumed: the result is that of a run without a stop."""

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.program import SIGNALS, SMALL, Result, run_program
from training.checkpoint import load_checkpoint, read_manifest
from training.logging import read_records

N_STEPS = 40
RUN = [
    *SMALL, "threads=1", f"max_steps={N_STEPS}", "eval_every_steps=8", "model.dropout=0.1", "precision=float32",
    "probe_sequences=24",
]  # fmt: skip


def train(out: Path, cache: str, *overrides: str) -> Result:
    return run_program("train.py", f"out={out}", cache, *RUN, *overrides)


def fork_train(out: Path, cache: str, *overrides: str) -> int:
    """Starts train.py in a forked process, which needs no time to import anything, and returns its process id."""
    pid = os.fork()
    if pid == 0:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        status = 99
        try:
            status = train(out, cache, *overrides).status
        finally:
            os._exit(status)
    return pid


def wait_for_step(out: Path, step: int, seconds: float = 120) -> None:
    """Returns as soon as metrics.jsonl has a line of `step`."""
    path, end = out / "metrics.jsonl", time.monotonic() + seconds
    while not (path.exists() and f'"step": {step},' in path.read_text(errors="replace")):
        assert time.monotonic() < end, f"no step {step}"
        time.sleep(0.005)


def exit_status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def results_of(out: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """Returns the records of a run without its speed, and the weights and optimizer state of its newest checkpoint."""
    timing = ("seconds", "tokens_per_second")
    records = [{name: x for name, x in record.items() if name not in timing} for record in read_records(out)]
    state = load_checkpoint(out / "checkpoints")
    tensors = {f"{name}.{key}": value for name, values in state["optimizer"].items() for key, value in values.items()}
    return records, state["model"] | tensors


def assert_same_results(out: Path, reference: Path) -> None:
    records, tensors = results_of(out)
    expected_records, expected_tensors = results_of(reference)
    assert records == expected_records
    torch.testing.assert_close(tensors, expected_tensors, rtol=0, atol=0)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Path:
    """A run without a stop."""
    out = tmp_path_factory.mktemp("runs") / "reference"
    assert train(out, cache).status == 0
    return out


@pytest.mark.slow
def test_a_run_killed_five_times_ends_as_the_one_that_was_not(reference: Path, tmp_path: Path, cache: str) -> None:
    rng, out, resume = random.Random(0), tmp_path / "run", [""]
    for step in (0, 7, 16, 25, 33):
        pid = fork_train(out, cache, *filter(None, resume))
        wait_for_step(out, step)
        time.sleep(0.05 * rng.random())
        os.kill(pid, signal.SIGKILL)
        assert exit_status(pid) == -signal.SIGKILL
        resume = ["resume=true"]
    assert train(out, cache, "resume=true").status == 0
    assert_same_results(out, reference)
    events = EventAccumulator(str(out / "tb"), size_guidance={"scalars": 0}).Reload()
    assert [point.step for point in events.Scalars("loss/train")] == list(range(1, N_STEPS + 1))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_a_checkpoint_and_the_run_resumes_exactly(
    number: signal.Signals, reference: Path, tmp_path: Path, cache: str
) -> None:
    out = tmp_path / "run"
    pid = fork_train(out, cache)
    wait_for_step(out, 10)
    os.kill(pid, number)
    assert exit_status(pid) == 128 + number
    step = max(record["step"] for record in read_records(out))
    assert load_checkpoint(out / "checkpoints")["step"] == step
    assert train(out, cache, "resume=true").status == 0
    assert_same_results(out, reference)


def test_a_damaged_newest_checkpoint_is_passed_over(reference: Path, tmp_path: Path, cache: str) -> None:
    out = tmp_path / "run"
    assert train(out, cache, "max_steps=24").status == 0
    newest = sorted((out / "checkpoints").glob("*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:-100])
    result = train(out, cache, "resume=true", f"max_steps={N_STEPS}")
    assert result.status == 0 and newest.name in result.err
    assert [entry.step for entry in read_manifest(out / "checkpoints")][-1] == N_STEPS
    assert [record["step"] for record in read_records(out) if record["split"] == "train"] == list(range(1, N_STEPS + 1))


def test_a_learning_rate_that_diverges_ends_with_one_line_that_names_it(tmp_path: Path, cache: str) -> None:
    overrides = ["optim.learning_rate=1e17", "optim.embedding_learning_rate=1e17", "optim.warmup_steps=0"]
    error = train(tmp_path / "run", cache, *overrides).error
    assert "optim.learning_rate" in error


def test_a_default_run_prints_at_most_fifteen_lines(reference: Path, tmp_path: Path, cache: str) -> None:
    result = train(tmp_path / "run", cache)
    assert len(result.out.splitlines()) <= 15 and result.err == ""
    assert f"eval.py run={tmp_path / 'run'} {cache}\n" in result.out  # works when pasted
