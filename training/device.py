"""Where and in which precision to compute, and why."""

import ctypes
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch

from training.settings import Device, Precision


@dataclass(frozen=True, slots=True)
class Place:
    """A choice of device and precision with the reason to print."""

    device: torch.device
    bfloat16: bool
    where: str  # the device, with why
    reason: str  # the same with the precision

    @property
    def works_ahead(self) -> bool:
        """Whether this process hands out work and goes on, so that asking for a number waits for all of it."""
        return self.device.type != "cpu"

    def autocast(self) -> AbstractContextManager:
        """Return the context in which a forward pass runs."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.bfloat16)


def choose_place(device: Device, precision: Precision) -> Place:
    """Turn "auto" into what this machine does best; raise ValueError for what it cannot do."""
    has_cuda = torch.cuda.is_available()
    if device is Device.cuda and not has_cuda:
        raise ValueError("device=cuda, but torch sees no CUDA device here: use device=cpu or device=auto")
    use_cuda = has_cuda and device is not Device.cpu
    native = torch.cuda.is_bf16_supported() if use_cuda else _cpu_has_bfloat16()
    bfloat16 = precision is Precision.bfloat16 or (precision is Precision.auto and native)
    where = (
        torch.cuda.get_device_name()
        if use_cuda
        else "1 thread"
        if torch.get_num_threads() == 1
        else f"{torch.get_num_threads()} threads"
    )
    why_device = "asked for" if device is not Device.auto else "found" if use_cuda else "no CUDA device found"
    why_precision = "asked for" if precision is not Precision.auto else "native here" if native else "no bfloat16 here"
    kind = "cuda" if use_cuda else "cpu"
    full = f"{kind} ({why_device}; {where})"
    numbers = f"{'bfloat16' if bfloat16 else 'float32'} ({why_precision})"
    return Place(torch.device(kind), bfloat16, full, f"{full}, {numbers}")


def resident_room(device: torch.device) -> int:
    """Return how many bytes of a text may lie in the device's own memory: a quarter of what is free on a GPU."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 0


# glibc's malloc.h: what freed memory at the heap's end is given back, how much is asked for beyond what is needed, and
# how many blocks may be mapped one by one.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for the next step to use; return whether this C library can.

    glibc maps each block of more than 32 MB anew and gives it back when it is freed, so that at every step the kernel
    fills the same pages with zeros again: a tenth of a step's time with a vocabulary of 2,048 (measured, docs/gpu.md).
    No number depends on it. The process stays as large as it once was.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # not glibc
        return False
    return all(mallopt(*one) for one in ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 2**26)))


def _cpu_has_bfloat16() -> bool:
    """Whether the processor multiplies bfloat16 itself; emulated, it is slower than float32."""
    ask = getattr(torch.cpu, "get_capabilities", None)  # torch 2.12 and later; before, stay with float32
    capabilities = ask() if ask else {}
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
