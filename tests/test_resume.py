"""Runs that are killed, stopped by signals or damaged, and resumed: the result is that of a run without a stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.program import ROOT, SIGNALS, SMALL, Result, process_state, run_program
from training.checkpoint import load_checkpoint
from training.device import StopRequest
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
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        status = 99
        try:
            status = train(out, cache, *overrides).status
        finally:
            os._exit(status)
    return pid


def end_at(pid: int, out: Path, step: int, number: int) -> int:
    """Sends a signal as soon as metrics.jsonl has a line of `step`, and returns the exit status."""
    path, end = out / "metrics.jsonl", time.monotonic() + 120
    while not (path.exists() and f'"step": {step},' in path.read_text(errors="replace")):
        assert time.monotonic() < end, f"no step {step}"
        time.sleep(0.005)
    os.kill(pid, number)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def assert_same_results(out: Path, reference: Path) -> None:
    """Compares all records but the speed, and the weights and optimizer state of the newest checkpoints."""
    speed = {"seconds": 0, "tokens_per_second": 0}
    records = [[record | speed for record in read_records(run)] for run in (out, reference)]
    assert records[0] == records[1]
    states = [load_checkpoint(run / "checkpoints") for run in (out, reference)]
    for part in ("model", "optimizer"):
        torch.testing.assert_close(states[0][part], states[1][part], rtol=0, atol=0)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory, cache: str) -> Path:
    """A run without a stop."""
    out = tmp_path_factory.mktemp("runs") / "reference"
    assert train(out, cache).status == 0
    return out


@pytest.mark.slow
def test_a_run_killed_five_times_ends_the_same(reference: Path, tmp_path: Path, cache: str) -> None:
    out, resume = tmp_path / "run", list[str]()
    for step in (0, 7, 16, 25, 33):
        pid = fork_train(out, cache, *resume)
        assert end_at(pid, out, step, signal.SIGKILL) == -signal.SIGKILL
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
    assert end_at(fork_train(out, cache), out, 10, number) == 128 + number
    step = max(record["step"] for record in read_records(out))
    assert load_checkpoint(out / "checkpoints")["step"] == step
    assert train(out, cache, "resume=true").status == 0
    assert_same_results(out, reference)


def test_a_run_prints_fifteen_lines_and_divergence_names_the_learning_rate(tmp_path: Path, cache: str) -> None:
    result = train(tmp_path / "run", cache)
    assert len(result.out.splitlines()) <= 15 and result.err == ""
    assert f"eval.py run={tmp_path / 'run'} {cache}\n" in result.out  # works when pasted
    overrides = ["optim.learning_rate=1e17", "optim.embedding_learning_rate=1e17", "optim.warmup_steps=0"]
    assert "optim.learning_rate" in train(tmp_path / "diverged", cache, *overrides).error


def test_an_ignored_signal_and_a_handler_of_another_library_stay() -> None:
    calls: list[int] = []
    with process_state():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, _: calls.append(number))
        stop = StopRequest()
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
    assert stop.signal is None and calls == [signal.SIGTERM]


WAIT = (
    "import signal, time\nfor number in (2, 15): signal.signal(number, signal.SIG_DFL)\n"
    "from training.device import StopRequest\nstop = StopRequest()\nprint('ready', flush=True)\n"
    "while True: time.sleep(0.01)"
)


@pytest.mark.slow
def test_a_second_signal_ends_the_process_unless_it_is_an_echo_of_the_first() -> None:
    """torchrun passes Ctrl-C on to processes that got it from the terminal too."""
    with subprocess.Popen([sys.executable, "-c", WAIT], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        statuses = []
        for seconds in (0.2, 2.2, 0.5):
            process.send_signal(signal.SIGTERM)
            time.sleep(seconds)
            statuses.append(process.poll())
        process.kill()
    assert statuses == [None, None, -signal.SIGTERM]
