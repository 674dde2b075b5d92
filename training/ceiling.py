"""How fast this machine multiplies matrices, measured, so that a training speed can be held against it."""

import time

import torch

_SECONDS = 0.15  # for each size, after one product that is not counted


_WIDTHS = {"cpu": (1024, 2048), "cuda": (4096, 8192)}  # of square matrices: smaller ones do not fill the machine


_LONG = 0.01  # seconds: where one product takes longer, the machine is filled and the next size would take eight times


_LAUNCHES = 8  # products between two looks at the clock on a device that has to be waited for


def matmul_ceiling(device: torch.device, *, bfloat16: bool) -> float:
    """Return the most floating-point operations a second seen in square matrix products on `device`.

    On a CPU with as many threads as torch now uses. A ceiling of this machine in this state, not of its data sheet.
    """
    numbers = torch.bfloat16 if bfloat16 else torch.float32
    found = 0.0
    for width in _WIDTHS[device.type]:
        seconds = _shortest(width, device, numbers)
        found = max(found, 2 * width**3 / seconds)
        if seconds > _LONG:
            break
    return found


def _shortest(width: int, device: torch.device, numbers: torch.dtype) -> float:
    """Return the seconds of the shortest of several products of two [width, width] matrices."""
    generator = torch.Generator(device).manual_seed(0)
    shape = (2, width, width)  # of random numbers, made where they are used: zeros would take a GPU less power
    first, second = torch.rand(shape, generator=generator, device=device, dtype=numbers)
    out = first @ second
    launches = 1 if device.type == "cpu" else _LAUNCHES
    best, began = float("inf"), time.perf_counter()
    while time.perf_counter() - began < _SECONDS or best == float("inf"):
        _wait(device)
        start = time.perf_counter()
        for _ in range(launches):
            torch.mm(first, second, out=out)
        _wait(device)
        best = min(best, (time.perf_counter() - start) / launches)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def speed_line(tokens_per_second: float, flops_per_token: float, ceiling: float, *, bfloat16: bool) -> str:
    """Return how fast a run was, and how much of the machine's matrix products that is, for a person."""
    numbers = "bfloat16" if bfloat16 else "float32"
    per_second = f"{ceiling / 1e12:,.0f} TFLOP/s" if ceiling >= 1e13 else f"{ceiling / 1e9:,.0f} GFLOP/s"
    share = tokens_per_second * flops_per_token / ceiling
    return (
        f"speed   {tokens_per_second:,.0f} tokens/s, {share:.0%} of the matmul ceiling measured here "
        f"({numbers}, {per_second})"
    ).replace("%", " %")
