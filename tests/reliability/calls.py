"""A door called in bounds: of seconds, of memory and of what it may write, so that no call harms the machine."""

import os
import resource
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.reliability.doors import ROOT, Doors, become


@dataclass(frozen=True)
class Called:
    """How a call ended."""

    status: int  # as a shell has it: 143 for SIGTERM
    out: str
    err: str
    seconds: float
    was_stopped: bool  # by us, when its time was over


def bounded(memory: int, home: str, door: str) -> None:
    """Be a door within so many bytes of memory and 256 MB a file, without a network; the process ends here."""
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 28, 1 << 28))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": home, "HOME": home, "BROWSER": "true"}
    become(Path(door))


def call(doors: Doors, cwd: Path, door: str, *arguments: str, seconds: float = 60.0, memory: int = 6 << 30) -> Called:
    """Return how `door` ended in `cwd`; after `seconds` it gets a SIGTERM, and ten later a SIGKILL."""
    began, was_stopped = time.monotonic(), False
    running = doors.start(door, *arguments, cwd=cwd, before=partial(bounded, memory, str(cwd), str(ROOT / door)))
    try:
        ended = running.wait(seconds)
    except TimeoutError:
        was_stopped = True
        running.send(signal.SIGTERM)
        try:
            ended = running.wait(10)
        except TimeoutError:
            running.send(signal.SIGKILL)
            ended = running.wait(10)
    status = ended.status if ended.status >= 0 else 128 - ended.status
    return Called(status, ended.out, ended.err, time.monotonic() - began, was_stopped)


def told(called: Called) -> str:
    """Return the one line in which a call was refused; AssertionError where it was not refused in one."""
    assert called.status == 2, (called.status, called.err[-2000:])
    *others, line, end = ["", *called.err.split("\n")]
    assert line.startswith("error: ") and not any(others) and not end, called.err[-2000:]
    return line
