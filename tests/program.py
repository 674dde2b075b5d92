"""Running train.py and eval.py inside the test's process, which takes no start-up time."""

import io
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

ROOT = Path(__file__).parent.parent
# Windows has no SIGHUP.
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
# A run of a second: one layer, few stories.
SHORT = [
    "max_steps=4", "eval_every_steps=2", "log_every_steps=1", "tokens_per_batch=256", "validation_tokens=200",
    "probe_sequences=0",
]  # fmt: skip
FEW_STORIES = [
    "data.n_train_stories=8000", "data.n_validation_stories=40", "data.n_test_frames=2", "data.n_test_pairs=2",
]  # fmt: skip
SMALL = ["model=nano", *SHORT, *FEW_STORIES]
SMALL_PROBE = ["probe.n_bootstrap=100", "probe.n_untrained=2", "probe.n_controls=10"]


@dataclass(frozen=True)
class Result:
    """How a program ended."""

    status: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The message of a program that ended as a user's error should: exit status 2, one line after any warnings."""
        *warnings_, error = self.err.splitlines()
        assert self.status == 2 and all(line.startswith("warning: ") for line in warnings_), self
        assert error.startswith("error: "), self
        return error.removeprefix("error: ")


def run_program(script: str, *arguments: str, cwd: Path = ROOT) -> Result:
    """Run train.py or eval.py, as `script`, in this process; an exception that it does not handle is raised here."""
    out, err = io.StringIO(), io.StringIO()
    status: Any = 0
    with process_state(), redirect_stdout(out), redirect_stderr(err):
        os.chdir(cwd)
        sys.argv = [script, *arguments]
        try:
            runpy.run_path(str(ROOT / script), run_name="__main__")
        except SystemExit as exit_:
            status = exit_.code or 0
    return Result(status, out.getvalue(), err.getvalue())


def run_python(*command: str, cwd: Path = ROOT, path: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, which imports from `path`."""
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=cwd, env=environment, timeout=600, check=False
    )


def forked(action: Callable[[], int | None]) -> int:
    """Return the process id of a fork that runs `action`, which gives its exit status; nothing is imported again."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            tqdm.set_lock(threading.RLock())  # a fork that was killed may hold the shared one
            for number in SIGNALS:  # as in a new process
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
            status = action() or 0
        finally:
            os._exit(status)
    return pid


@contextmanager
def process_state() -> Iterator[None]:
    """Restore everything in this process that a program may change."""
    argv, folder, environment, threads = sys.argv, Path.cwd(), dict(os.environ), torch.get_num_threads()
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    handlers, excepthook = {number: signal.getsignal(number) for number in SIGNALS}, threading.excepthook
    try:
        with warnings.catch_warnings(action="default"):
            yield
    finally:
        sys.argv, threading.excepthook = argv, excepthook
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(threads)
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        random.setstate(states[2])
        for number, handler in handlers.items():
            signal.signal(number, handler)
