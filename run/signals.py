"""SIGINT, SIGTERM and SIGHUP as a wish to stop, heard at the end of a step and between two batches of an evaluation.

So is the signal of a queue that has its own use for it: it is passed on when everything is saved.
"""

import _thread
import atexit
import ctypes
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
# Seconds in which a repeat is the same wish: who signals a whole job reaches a process of torchrun twice, for torchrun
# passes it on. A person's second Ctrl-C comes later than that.
_SAME_WISH = {signal.SIGINT: 0.2, signal.SIGTERM: 2.0, signal.SIGHUP: 2.0}

_DISPOSE = ctypes.CDLL(None).signal
_DISPOSE.argtypes, _DISPOSE.restype = (ctypes.c_int, ctypes.c_void_p), ctypes.c_void_p  # None: SIG_DFL


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

    One that comes within a moment of the first is no second one but the same wish, heard twice.

    Who ends the process that shares out runs side by side means its workers too, and no signal reaches them.
    """

    def __init__(self) -> None:
        """Listen from now on, in the main thread."""
        self._signal: int | None = None
        self._queue: int | None = None
        self._is_closed = False
        self._numbers = [one for one in _NUMBERS if signal.getsignal(one) is not signal.SIG_IGN]  # as nohup has it
        self._queues = {one: told for one in _OF_QUEUES if callable(told := signal.getsignal(one))}
        for number in self._queues:
            signal.signal(number, self._told)
        before = signal.getsignal(signal.SIGTERM)
        self._outlasts = callable(before) and before is not _leave  # somebody has settled that it is not the end
        atexit.register(_nothing_is_left_to_stop)
        self._listen(self._heard)

    def close(self) -> None:
        """Let a signal end this process from now on: between two runs of a sweep nobody asks what was heard."""
        self._is_closed = True
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
        for number in self._numbers:
            signal.signal(number, heard)

    def _heard(self, number: int, frame: FrameType | None) -> None:
        self._signal = number
        signal.signal(number, signal.SIG_IGN)
        # When a repeat has come Python does not say: it calls a handler once a step, or a wait for another process, is
        # over. So the system drops it, and a thread that nothing holds up ends that.
        _thread.start_new_thread(self._end_at_the_next, (number,))

    def _end_at_the_next(self, number: int) -> None:
        time.sleep(_SAME_WISH[signal.Signals(number)])
        if not self._is_closed:
            _DISPOSE(number, None)  # Python's own can be called in the main thread only

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
