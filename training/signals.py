"""SIGINT, SIGTERM and SIGHUP as a wish to stop, heard at the end of a step and between two batches of an evaluation.

So is the signal of a queue that has its own use for it: it is passed on when everything is saved.
"""

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import parent_process
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# By which a queue lets a job know that its time is up, where somebody has arranged for that (submitit, of SLURM).
_OF_QUEUES = (signal.SIGUSR1, signal.SIGUSR2)


_ONE = 2.0  # seconds: what comes twice within them, once from who means all processes and once passed on, is one signal


class Stopped(Exception):
    """A signal was heard in the midst of what can be left, and done again another time."""


def is_orphan() -> bool:
    """Whether this process works for one of several runs side by side, and who shared them out is gone."""
    parent = parent_process()
    return parent is not None and parent.pid != os.getppid()


def _nothing_is_left_to_stop() -> None:
    """Let no signal change the exit status any more: Python takes its own handlers away before it has tidied up."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


class StopRequest:
    """Remembers the first signal; a second one of the same kind ends the process at once.

    Who ends the process that shares out runs side by side means its workers too, and no signal reaches them.
    """

    def __init__(self, *, is_shared: bool = False) -> None:
        """Listen from now on, in the main thread.

        `is_shared`: torchrun started this process with others and passes on what it hears itself. Who signals the whole
        job then reaches each twice, a moment apart: only after two seconds does another of its kind end the process, at
        its next line of Python. A process that never comes to that torchrun kills after half a minute.
        """
        self._is_shared, self._heard_at = is_shared, dict[int, float]()
        self._signal: int | None = None
        self._queue: int | None = None
        self._queues = {one: told for one in _OF_QUEUES if callable(told := signal.getsignal(one))}
        for number in self._queues:
            signal.signal(number, self._told)
        before = signal.getsignal(signal.SIGTERM)
        self._outlasts = callable(before) and before is not _leave  # somebody has settled that it is not the end
        atexit.register(_nothing_is_left_to_stop)
        self._listen(self._heard)

    def close(self) -> None:
        """Let a signal end this process from now on: between two runs of a sweep nobody asks what was heard.

        One of several processes goes on as before: those make no sweep, and the others would miss one that left early.
        """
        if not self._is_shared:
            self._listen(_leave)
        for number, told in self._queues.items():
            signal.signal(number, told)

    def pass_on(self) -> None:
        """Once closed, when all is saved, leave what happens next to a queue that this process is a job of.

        Who waits for the queue's signal hears it: submitit has the job begun again and ends the process, or raises an
        exception of its own where that was done as often as is allowed. Where SIGTERM came, and submitit has settled
        that it is not the end, this process waits for what is: SLURM gives a job that ends itself in its time of grace
        for a failed one, and does not begin it again (measured, docs/sweeps.md).
        """
        if self._queue is not None:
            signal.raise_signal(self._queue)
        while self._outlasts and self._signal == signal.SIGTERM:
            signal.pause()

    def _listen(self, heard: Callable[[int, FrameType | None], None]) -> None:
        for number in _NUMBERS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it, for whom a closed terminal is nothing
                signal.signal(number, heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number
        if not self._is_shared:
            signal.signal(number, signal.SIG_DFL)
        elif time.monotonic() - self._heard_at.setdefault(number, time.monotonic()) > _ONE:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def _told(self, number: int, frame: FrameType | None) -> None:
        self._queue = self._signal = number

    @property
    def signal(self) -> int | None:
        """Return what was heard first; None as long as that is nothing."""
        if self._signal is None and is_orphan():
            self._signal = signal.SIGTERM
        return self._signal

    def hear(self, number: int) -> None:
        """Take the signal that the processes of a run have agreed on for one's own; 0: they have heard none."""
        self._signal = number or self._signal

    def before_each(self, items: Iterable[T]) -> Iterator[T]:
        """Pass `items` on; raise Stopped before the next of them once a signal was heard."""
        for item in items:
            if self.signal is not None:
                raise Stopped
            yield item

    @property
    def exit_status(self) -> int:
        """Return what a shell expects of a process that a signal ended: 130, 143 or 129."""
        return 128 + (self.signal or 0)
