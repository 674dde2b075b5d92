"""What goes wrong in a run: each is called in the run's own process before its door, and spoils what it stands on."""

import ctypes
import io
import itertools
import os
import resource
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

LEFT = 99  # exit status of a process that left in the middle


def speak_soon() -> None:
    """Let a rank wait for the first one's word no longer than a test wants to: what it does then is the same."""
    import training.distributed

    training.distributed._FIRST_SPEAKS = 1.0


def tell_few_stories() -> None:
    """Let the default stories be few: what a door does with them is the same."""

    import training.settings as configs

    typed = configs.typed_train

    def few(config: Any) -> Any:
        settings = typed(config)
        stories = {"n_train_stories": 4000, "n_validation_stories": 40, "n_test_templates": 2, "n_test_pairs": 2}
        return replace(settings, data=replace(settings.data, **stories))

    configs.typed_train = few


def leave_at(point: int, log: Path) -> None:
    """Leave, as a crash would, right before the `point`-th thing that is done to a file in checkpoints/; -1: never.

    What is done is written to `log`, a line each: create, write (half of the bytes), write (the other half), sync,
    rename, unlink, sync folder. The calls are those of the operating system that run/checkpoint.py makes.
    """
    count = 0

    def reach(what: str, path: Any) -> None:
        nonlocal count
        path = Path(os.fsdecode(path))
        if "checkpoints" not in path.parts:
            return
        with log.open("a") as stream:
            stream.write(f"{what} {path.name}\n")
        if count == point:
            os._exit(LEFT)
        count += 1

    def told(what: str, call: Callable[..., Any], where: Callable[..., Any]) -> Callable[..., Any]:
        def instead(*arguments: Any, **named: Any) -> Any:
            reach(what, where(*arguments))
            return call(*arguments, **named)

        return instead

    class Halved:
        """A file that is written in two halves."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        def __enter__(self) -> "Halved":
            return self

        def __exit__(self, *_: object) -> None:
            self._stream.close()

        def write(self, content: bytes) -> int:
            for half in (content[: len(content) // 2], content[len(content) // 2 :]):
                reach("write", self._stream.name)
                self._stream.write(half)
                self._stream.flush()
            return len(content)

    real_open = io.open

    def open_told(path: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if mode != "wb":
            return real_open(path, mode, *arguments, **named)
        reach("create", path)
        return Halved(real_open(path, mode, *arguments, **named))

    def of_descriptor(descriptor: int) -> str:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        return f"{path}/folder" if Path(path).is_dir() else path

    io.open = open_told
    os.fsync = told("sync", os.fsync, of_descriptor)
    os.unlink = told("unlink", os.unlink, lambda path, **_: path)
    for name in ("rename", "replace"):
        setattr(os, name, told("rename", getattr(os, name), lambda _, path: path))


def clock_back(seconds: float) -> None:
    """Set the clock back; monotonic clocks go on, as they do."""
    real = time.time
    time.time = lambda: real() - seconds


def freeze_clock() -> None:
    """Let every run begin in the same microsecond."""
    import training.run_dir

    class Frozen(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Frozen":
            return cls(2026, 1, 1, tzinfo=tz)

    training.run_dir.datetime = Frozen


def limit_file_size(n_bytes: int) -> None:
    """Let no file grow beyond `n_bytes`; whoever tries is told as on a full disk, though by another number."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, n_bytes))


def give_up_rights() -> None:
    """Give up root's right to write everywhere, so that permissions count whoever runs this."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    none = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(header, none) == 0


def send_before_run(number: int, count: int) -> None:
    """Send this process a signal when the run with that count, from 0 on, of a sweep is about to be set up."""
    from training import setup as preparing

    prepare, places = preparing.prepare, itertools.count()

    def told(*arguments: Any) -> Any:
        if next(places) == count:
            os.kill(os.getpid(), number)
        return prepare(*arguments)

    preparing.prepare = told


def forget(part: str) -> None:
    """Go on from a checkpoint as a trainer would that had left a part of it out: a negative control."""
    from training.trainer import Training

    load = Training.load

    def load_without(training: Training, state: dict[str, Any]) -> None:
        fresh = training.state()
        if part == "random":
            state = state | {"random": fresh["random"]}
        if part == "optimizers":
            state = state | {"optimizers": fresh["optimizers"]}
        load(training, state)
        if part == "position":  # the order of batches begins again
            batch_at, begun = training.batch_at, training.step * training.own.gradient_accumulation_steps
            training.batch_at = lambda number: batch_at(number - begun)

    Training.load = load_without
