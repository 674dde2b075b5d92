"""The doors many times over, each a process of its own that starts in a moment: a fork of one that has imported.

What runs is `python train.py …` but for the three seconds that imports take, and the time that taking them apart takes:
signals, exit status and files are real. Two processes stand behind each run: one that has imported everything and
computed nothing, and a fork of it that waits for the run and writes down how it ended.
"""

import atexit
import gc
import importlib
import json
import os
import pickle
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_ROOMS = ("configs", "data", "model", "probe", "run")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_SAID = ("out", "err")
_HOW = "how.json"  # a run ended; written by who waits for it


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    status: int  # what it returned, or minus the signal that killed it
    out: str
    err: str
    moment: float  # of time.monotonic(), which all processes share
    cpu_seconds: float
    waited: float  # seconds, as `waited` tells them


def waited(pid: int) -> float:
    """Return for how many seconds a process was ready to go on and no core was free; 0 where nobody counts them."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


@dataclass
class Running:
    """A run that has been started."""

    pid: int
    folder: Path  # of what it says
    began: float  # of time.monotonic()

    @property
    def has_ended(self) -> bool:
        return (self.folder / _HOW).exists()

    def send(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; nothing happens where the run has ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def wait(self, seconds: float = 60.0) -> Ended:
        """Return how it ended; TimeoutError, with what it said, where it does not within `seconds`."""
        end = time.monotonic() + seconds
        while not self.has_ended:
            if time.monotonic() > end:
                raise TimeoutError(f"still running after {seconds} s: {(self.folder / 'err').read_text()}")
            time.sleep(0.002)
        out, err = ((self.folder / name).read_bytes().decode(errors="replace") for name in _SAID)
        ended = Ended(out=out, err=err, **json.loads((self.folder / _HOW).read_text()))
        Doors.cpu_seconds += ended.cpu_seconds
        return ended


class Doors:
    """Starts train.py and others; whatever it has started ends with it, and with the process that it is in."""

    cpu_seconds = 0.0  # of all runs that this process has waited for

    def __init__(self, logs: Path) -> None:
        """Keep what runs say in folders of `logs`."""
        self._logs, self._count = logs, 0
        self._source: subprocess.Popen | None = None

    def start(
        self,
        door: str,
        *arguments: str,
        cwd: Path = ROOT,
        before: Callable[[], object] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Running:
        """Start `python door *arguments`.

        Args:
            door: train.py or eval.py.
            arguments: of its command line.
            cwd: where it is started.
            before: called in the new process before the door: a function of a module of the tests, or a partial of one.
            environment: what is set beside what the doors began with.

        """
        if self._source is None:  # takes some seconds, so not before it is asked for
            self._source = subprocess.Popen(
                [sys.executable, "-m", "tests.reliability.doors"],
                cwd=ROOT, env=os.environ | ONE_THREAD | {"PYTHONPATH": str(ROOT)}, start_new_session=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
        assert self._source.stdin and self._source.stdout
        self._count += 1
        folder = self._logs / str(self._count)
        folder.mkdir()
        for name in _SAID:  # a run may be killed before it has said anything
            (folder / name).touch()
        order = {"door": door, "arguments": arguments, "cwd": str(cwd), "before": before, "folder": str(folder)}
        order["environment"] = environment or {}
        began = time.monotonic()
        pickle.dump(order, self._source.stdin)
        self._source.stdin.flush()
        return Running(int(self._source.stdout.readline()), folder, began)

    def run(self, door: str, *arguments: str, seconds: float = 300.0, **how: Any) -> Ended:
        """Start a door as `start` does and wait for its end."""
        return self.start(door, *arguments, **how).wait(seconds)

    def close(self) -> None:
        """End everything that was started."""
        if self._source and self._source.stdin and self._source.stdout:
            self._source.stdin.close()
            self._source.wait()
            self._source.stdout.close()


def serve() -> dict[str, Any]:
    """Fork a run for every order on stdin, and return in each of them with its order; at the end, end them all."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        try:
            order = pickle.load(sys.stdin.buffer)
        except EOFError:
            os.killpg(0, signal.SIGKILL)  # this process and all that it has started: they are a group of their own
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            if (run := os.fork()) == 0:
                return order
            os.write(1, f"{run}\n".encode())
            os.waitid(os.P_PID, run, os.WEXITED | os.WNOWAIT)
            how: dict[str, float] = {"moment": time.monotonic(), "waited": waited(run)}
            _, status, used = os.wait4(run, 0)
            how["status"] = os.waitstatus_to_exitcode(status)
            beside = Path(order["folder"], "beside")
            beside.write_text(json.dumps(how | {"cpu_seconds": used.ru_utime + used.ru_stime}))
            beside.rename(Path(order["folder"], _HOW))
            os._exit(0)


def load_everything() -> None:
    """Import what the doors import, most of it only behind their beginning."""
    for name in ("datasets", "tokenizers", "torch._dynamo", "torch.utils.tensorboard", "hydra._internal.hydra"):
        importlib.import_module(name)
    doors = [ROOT / "train.py", ROOT / "eval.py"]
    for path in (*doors, *(path for room in _ROOMS for path in (ROOT / room).rglob("*.py"))):
        parts = path.relative_to(ROOT).with_suffix("").parts
        importlib.import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    gc.collect()
    gc.freeze()  # or every fork would copy what it only reads


def main() -> None:
    """Serve; in a run, become the door that was ordered."""
    load_everything()
    order = serve()
    os.chdir(order["cwd"])
    for number, path in enumerate((os.devnull, *(f"{order['folder']}/{name}" for name in _SAID))):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY), number)
    os.environ.update(order["environment"])
    sys.argv = [order["door"], *order["arguments"]]
    if order["before"]:
        order["before"]()
    become(ROOT / order["door"])


def become(door: Path) -> None:
    """Be a door to its end, and end as Python does but for taking apart every module, which costs more than most runs.

    Whatever it does not end by itself, an exception or a signal, goes on to Python.
    """
    status: Any = 0
    try:
        runpy.run_path(str(door), run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
