"""The request to stop: a signal lets a run save a checkpoint before it exits."""

import os
import signal
import time
from multiprocessing import parent_process
from types import FrameType
from typing import Any


class StopRequest:
    """Remember the first SIGINT, SIGTERM or SIGHUP, so that the run can save a checkpoint and exit.

    A second signal ends the process at once, unless it comes within two seconds: Ctrl-C reaches a process of torchrun
    twice, from the terminal and from torchrun. A signal that is ignored (SIGHUP under nohup) or has another
    handler (SIGTERM in jobs of submitit) stays as it is. Must be created in the main thread.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._received_at = 0.0
        self._old_handlers: dict[int, Any] = {}
        numbers = [signal.SIGINT, signal.SIGTERM]
        if hasattr(signal, "SIGHUP"):  # not on Windows
            numbers.append(signal.SIGHUP)
        for number in numbers:
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._old_handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received, self._received_at = number, time.monotonic()
        elif time.monotonic() > self._received_at + 2:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def close(self) -> None:
        for number, handler in self._old_handlers.items():
            signal.signal(number, handler)

    @property
    def signal(self) -> int | None:
        """The number of the first signal, None if there was none."""
        parent = parent_process()
        if self._received is None and parent is not None and parent.pid != os.getppid():
            # The sweep that started this process (hydra/launcher=joblib) has ended.
            self._received = signal.SIGTERM
        return self._received

    def receive(self, number: int) -> None:
        """Take over the signal that another process of this run received; 0: none."""
        self._received = self._received or number or None

    @property
    def exit_status(self) -> int:
        """The exit status of the process: 0 without a signal, else 128 + its number, as shells expect."""
        return 128 + self.signal if self.signal is not None else 0
