"""Where a run computes: the device and its number format, the processes of torchrun, and the signals that stop it.

Every process takes the same steps on its own rows of each batch. Only rank 0 evaluates and writes files.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from multiprocessing import parent_process
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from settings.errors import UserError, one_line
from settings.train import Device, Precision

TIMEOUT = timedelta(days=1)  # the other ranks wait while rank 0 prepares the data or evaluates


@dataclass(frozen=True)
class ComputeDevice:
    """A device with the dtype of its matrix products; weights and losses are always float32."""

    device: torch.device
    dtype: torch.dtype
    description: str  # for people, for example "cpu (2 threads), float32"

    def autocast(self) -> torch.autocast:
        kind = self.device.type
        # In a CUDA graph a cached cast would keep the weights of the recorded step.
        return torch.autocast(
            kind, dtype=torch.bfloat16, enabled=self.dtype is torch.bfloat16, cache_enabled=kind == "cpu"
        )


def choose_device(device: Device, precision: Precision, threads: int | None = None) -> ComputeDevice:
    """Return the device and dtype that these settings mean on this machine; UserError if it has no such device."""
    if threads:
        torch.set_num_threads(threads)
    if device is Device.cuda and not torch.cuda.is_available():
        raise UserError("device=cuda: torch finds no CUDA device; use device=cpu or device=auto")
    is_cuda = torch.cuda.is_available() and device is not Device.cpu
    if is_cuda:
        try:
            torch.zeros(1, device="cuda").add_(1)
        except torch.AcceleratorError as error:  # a card that is too old for this build of torch
            raise UserError(f"device={device.value}: {one_line(error)}; use device=cpu") from None

    # bfloat16 only pays where there are instructions for it.
    if is_cuda:
        kind, facts = "cuda", torch.cuda.get_device_name()
        multiplies_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        n_threads = torch.get_num_threads()
        kind, facts = "cpu", "1 thread" if n_threads == 1 else f"{n_threads} threads"
        multiplies_bfloat16 = _cpu_multiplies_bfloat16()
    dtype = torch.float32
    if precision is Precision.bfloat16 or (precision is Precision.auto and multiplies_bfloat16):
        dtype = torch.bfloat16
    return ComputeDevice(torch.device(kind), dtype, f"{kind} ({facts}), {str(dtype).removeprefix('torch.')}")


def _cpu_multiplies_bfloat16() -> bool:
    """Return True if this CPU has instructions for products of bfloat16 (AVX-512 or AMX), as PyTorch reports them."""
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}  # not in torch 2.11
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def keep_freed_memory() -> None:
    """Make glibc keep freed memory for the next step: 15 % less CPU time in a default step (measured).

    By default it returns every block above 32 MB to the kernel, which fills it with zeros again for the next step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # not glibc; CDLL(None) is a TypeError on Windows
        return
    mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD of malloc.h
    mallopt(-4, 0)  # M_MMAP_MAX


@dataclass(frozen=True)
class Distributed:
    """The rank of this process and its collectives; with the default values a single process, without communication."""

    rank: int = 0
    world_size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's `value`, any object that pickle can copy."""
        if self.world_size == 1:
            return value
        values = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0, device=torch.device("cpu"))
        return values[0]

    def gather(self, value: Any) -> list[Any]:
        """Return the `value` of every rank, in their order, on all ranks."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return values


SINGLE_PROCESS = Distributed()


@contextmanager
def process_group(*, use_cuda: bool) -> Iterator[Distributed]:
    """Initialise the process group that torchrun describes in the environment, and destroy it at the end.

    With `use_cuda`, gradients are on the CUDA device with the number of this process on its machine, if there is one.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield SINGLE_PROCESS
        return
    # Imported before there is a group: the default arguments of its functions would refer to the group to the end.
    import_module("torch.distributed.nn.functional")
    if use_cuda and torch.cuda.is_available():
        # Each machine numbers its devices from 0.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("gloo", timeout=TIMEOUT)
    yield Distributed(dist.get_rank(), world_size)
    dist.barrier()
    dist.destroy_process_group()


def average_gradients(model: nn.Module, device: torch.device) -> DistributedDataParallel:
    """Return `model` with gradients that are the mean over the processes, after each backward pass.

    They have a process group of their own. The trainer keeps it for longer than `process_group`, and the threads of a
    group end only when nothing refers to it. Those of the default group, which sends Python objects, must end before
    the interpreter: a thread that frees a tensor of Python later aborts the process with "terminate called without an
    active exception" (2 of 90 runs on a loaded machine, PyTorch 2.13).
    """
    group = dist.new_group(timeout=TIMEOUT, backend="nccl" if device.type == "cuda" else "gloo")
    return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)  # no copy of the gradients


class StopRequest:
    """Remember the first SIGINT, SIGTERM or SIGHUP, so that the run can save a checkpoint and exit.

    A second signal ends the process at once, unless it comes within two seconds: torchrun passes on a Ctrl-C that its
    processes got too. A signal that is ignored (SIGHUP under nohup) or has another handler stays as it is.
    """

    def __init__(self) -> None:
        self._received: int | None = None
        self._received_at = 0.0
        self._old_handlers: dict[int, Any] = {}
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)  # no SIGHUP on Windows
            if number and signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                self._old_handlers[number] = signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received is None:
            self._received = number
            self._received_at = time.monotonic()
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
