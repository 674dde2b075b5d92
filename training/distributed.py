"""The processes that train one model together: how they find each other, agree, and end together; alone, nothing.

torchrun starts them and tells each its place (docs/ranks.md). Rank 0 alone makes a run's directory, evaluates, writes
and speaks; the others only take steps. What they must agree on goes over a channel of its own between the hosts (gloo),
beside the gradients' (gloo or NCCL), so that no host waits for its GPU in order to be heard.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store

T = TypeVar("T")


LOST = 75  # exit status where another process is gone: EX_TEMPFAIL of sysexits.h, to be tried again


# That a process is gone its closed connections say at once; one that only waits may wait for an evaluation, or for the
# stories to be told, however long that takes.
_PATIENCE = timedelta(days=1)


_MEETING = timedelta(minutes=5)  # for all to come up on every machine


_LOOKING = 2.0  # seconds: a killed process closes its connections a moment before it is gone


_FIRST_SPEAKS = 10.0  # seconds for rank 0 to find out what another rank has: torchrun ends all once one has ended


_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


# What torch has no type for: gloo's words, with its file before them or, as other versions have it, without.
_OF_CONNECTION = re.compile(
    r"\bgloo/|\bgloo \w+ failed|\bconnection (was )?(closed|reset|refused)\b|\bby peer\b|\bsocket closed\b"
    r"|\btimed out waiting\b|\bbroken pipe\b|\bNCCL (communicator|error)\b",
    re.IGNORECASE,
)


class World:
    """This process's place among all; of one process, every method gives back what it was given."""

    meets: ClassVar[bool] = False  # this process is past what every rank would say alike

    def __init__(self, rank: int = 0, size: int = 1, local_rank: int = 0) -> None:
        """Be number `rank` of `size`, and `local_rank` of those on this machine, without having met the others."""
        self.rank, self.size, self.local_rank = rank, size, local_rank
        self.run = ""  # the run's directory, once rank 0 has told of it
        self._store: Store | None = None
        self._others: list[tuple[str, int]] = []  # host and process of each rank

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def share(self) -> slice:
        """Return which rows of a batch are this process's: every `size`-th, for neighbours are alike in length."""
        return slice(self.rank, None, self.size)

    def join(self, *, cuda: bool) -> None:
        """Meet the others; ConnectionError in one line where they do not come.

        `cuda`: whether gradients may lie on a CUDA device, which is then the one of this process's number here.
        """
        import torch
        import torch.distributed as dist

        World.meets = True
        try:
            cuda = cuda and self.local_rank < torch.cuda.device_count()
            if cuda:
                torch.cuda.set_device(self.local_rank)
            self._store = next(dist.rendezvous("env://", timeout=_MEETING))[0]  # type: ignore[attr-defined]
            self._store.set(f"process/{self.rank}", json.dumps([gethostname(), os.getpid()]))
            names = [f"process/{rank}" for rank in range(self.size)]
            self._store.wait(names, _MEETING)  # what comes then has the patience of a training
            told = [json.loads(self._store.get(name)) for name in names]
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if cuda else "gloo",
                store=dist.PrefixStore("ranks", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=_PATIENCE,
            )
            self.agree(0)
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            raise ConnectionError(f"rank {self.rank} of {self.size} could not meet the others: {said}") from None
        self._others = [(host, process) for host, process in told]

    def leave(self) -> None:
        """Part from the others once all have come here."""
        import torch.distributed as dist

        self.agree(0)
        dist.destroy_process_group()

    def tell(self, value: T) -> T:
        """Return rank 0's `value` on every rank: anything that can be pickled."""
        if self.size == 1:
            return value
        import torch
        import torch.distributed as dist

        told: list[Any] = [value if self.is_first else None]
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        return told[0]

    def tell_run(self, path: Path | None) -> None:
        """Let every rank know rank 0's directory of the run, by which it is gone on with."""
        if self.size > 1:
            self.run = self.tell(str(path))

    def agree(self, number: int) -> int:
        """Return the largest `number` of all ranks, once every rank has come here."""
        if self.size == 1:
            return number
        import torch
        import torch.distributed as dist

        largest = torch.tensor(number)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest)

    def mean(self, value: Tensor) -> Tensor:
        """Return the mean of `value`, a tensor of any shape, over all ranks; on a GPU nobody waits for it."""
        if self.size == 1:
            return value
        import torch.distributed as dist

        summed = value.clone()
        dist.all_reduce(summed)
        return summed / self.size

    def reseed(self, seed: int, step: int) -> None:
        """Let dropout fall by (seed, step, rank) alone, and on each rank otherwise; alone it goes on as it was."""
        if self.size == 1:
            return
        import numpy as np
        import torch

        (drawn,) = np.random.SeedSequence([seed, step, self.rank]).generate_state(1, np.uint64)
        torch.manual_seed(int(drawn) >> 1)

    def may_speak(self, status: int) -> tuple[bool, int]:
        """Return whether this is the first process to end, and the status with which the first one does."""
        try:
            assert self._store is not None
            if self._store.add("ended", 1) == 1:
                self._store.set("status", str(status))
                return True, status
            self._store.wait(["status"], timedelta(seconds=_LOOKING))
            return False, int(self._store.get("status"))
        except (RuntimeError, AssertionError):  # gone with the machine that kept it: each speaks for itself
            return True, status

    def gone(self) -> list[str]:
        """Return which other processes of this machine have ended, in words, waiting a moment for the first."""
        here = {
            rank: process
            for rank, (host, process) in enumerate(self._others)
            if host == gethostname() and rank != self.rank
        }
        end = time.monotonic() + _LOOKING
        while True:
            found = [f"rank {rank} (process {process})" for rank, process in here.items() if not lives(process)]
            if found or time.monotonic() > end:
                return found
            time.sleep(0.02)


ALONE = World()


def world_of(environment: Mapping[str, str]) -> World:
    """Return this process's place as torchrun tells it; alone where nobody tells. ValueError for what is no number."""
    if not all(environment.get(name) for name in _NAMES):
        return World()
    rank, size, local_rank = (environment[name] for name in _NAMES[:3])
    if not (rank.isdecimal() and size.isdecimal() and local_rank.isdecimal() and int(rank) < int(size)):
        raise ValueError(f"RANK={rank}, WORLD_SIZE={size}, LOCAL_RANK={local_rank}: torchrun sets these to numbers")
    return World(int(rank), int(size), int(local_rank))


def lives(process: int) -> bool:
    """Whether a process of this machine is still at work; one that waits to be noticed is not."""
    try:
        said = Path(f"/proc/{process}/stat").read_text()
        return said.rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        pass
    if Path("/proc/self/stat").exists():
        return False
    try:  # no Linux: one that waits to be noticed counts as alive there, for its parent looks ten times a second
        os.kill(process, 0)
    except OSError:
        return False
    return True


@contextmanager
def one_voice(world: World) -> Iterator[None]:
    """Let rank 0 alone say what every rank would say: that a setting is wrong. An unforeseen error shows everywhere.

    The others end after it, for torchrun ends whoever is left at the first that does.
    """
    if world.is_first:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        try:
            yield
        except SystemExit as ended:
            if ended.code in (1, 2) and not World.meets:  # no signal's
                with suppress(KeyboardInterrupt):
                    time.sleep(_FIRST_SPEAKS)
            raise


@contextmanager
def together(world: World, *, cuda: bool) -> Iterator[None]:
    """Meet the others, and end with them.

    Whoever ends first by an error has said why, and the others leave without a word and with its status. Where a
    process is gone without a word, the first that finds out says so in one line, and all end with status `LOST`. Where
    they do not all meet, one line says that, and the status is 2.
    """
    if world.size == 1:
        yield
        return
    with redirect_stderr(sys.__stderr__):  # from here on a rank speaks of what it alone knows
        try:
            world.join(cuda=cuda)
        except ConnectionError as error:  # raised over one of torch's, and yet nobody is gone
            is_first, status = world.may_speak(2)
            if is_first:
                print(f"error: {error}", file=sys.stderr)
            sys.exit(status)
        try:
            yield
            world.leave()
        except BaseException as error:
            if broken := broken_connection(error):
                end_alone(world, broken)
            world.may_speak(error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1)
            raise


def broken_connection(error: BaseException | None) -> RuntimeError | None:
    """Return torch's error of a connection that broke, where that is what `error` is or was raised over.

    torchrun sends those that are left a signal, which may come while they are ending.
    """
    import torch.distributed as dist

    of_torch = getattr(dist, "DistError", ())  # of NCCL and of the store
    while error is not None:
        if isinstance(error, of_torch):
            return error
        if isinstance(error, RuntimeError) and _OF_CONNECTION.search(str(error)):
            return error
        error = error.__context__
    return None


def end(status: int) -> NoReturn:
    """End this process, whose work is done and whose files are closed.

    At once: what torch does at a process's end may wait for those that are no more, or for threads of its own.
    """
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def end_alone(world: World, error: RuntimeError) -> NoReturn:
    """End this process, as `end` does, where another is gone, with one line from the first that finds out."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # this is the end that they ask for
    gone = world.gone()
    is_first, status = world.may_speak(LOST)
    if is_first:
        print(f"error: {lost_line(gone, str(error), world.run)}", file=sys.stderr)
    end(status)


def lost_line(gone: list[str], error: str, run: str) -> str:
    """Return what to say where a connection broke: who is gone, and how to go on.

    Args:
        gone: the processes of this machine that are, in words; none: it was one of another machine.
        error: torch's words, which name the other side's address.
        run: the run's directory; "" where it was not yet known.

    """
    address = re.search(r"\[([^\[\]/]+)\]:\d+", error)
    elsewhere = f"a process{f' on {address[1]}' if address else ''} ({error.splitlines()[0] if error else ''})"
    are, them = ("are", "them") if len(gone) > 1 else ("is", "it")
    who = f"{' and '.join(gone) or elsewhere} {are} gone, and the others end with {them}"
    if not run:
        return f"{who}: begin again"
    command = f"python train.py resume=true {shlex.quote(f'out={run}')}"
    return f"{who}; the last checkpoint goes on, with as many processes as you like: {command}"
