"""What a speed is held against."""

import itertools

import pytest
import torch

from training import ceiling
from training.ceiling import matmul_ceiling, speed_line


@pytest.mark.parametrize("bfloat16", [False, True])
def test_the_ceiling_is_the_most_operations_a_second_of_the_shortest_product(
    bfloat16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock of our own: how fast this machine is does not matter, and real products are made."""
    # It is looked at three times for each product, so that the five waits are each in turn a product's own.
    clock = itertools.accumulate(itertools.cycle([0.012, 0.008, 0.009, 0.002, 0.011]))
    monkeypatch.setattr(ceiling.time, "perf_counter", lambda: next(clock))
    numbers: set[torch.dtype] = set()
    product = torch.mm
    monkeypatch.setattr(torch, "mm", lambda one, *rest, out: (numbers.add(one.dtype), product(one, *rest, out=out)))
    assert matmul_ceiling(torch.device("cpu"), bfloat16=bfloat16) == pytest.approx(2 * 2048**3 / 0.002)
    assert numbers == {torch.bfloat16 if bfloat16 else torch.float32}


def test_the_line_says_rate_share_numbers_and_ceiling() -> None:
    line = speed_line(41_200.4, 2e6, 212e9, bfloat16=True)
    assert line == "speed   41,200 tokens/s, 39 % of the matmul ceiling measured here (bfloat16, 212 GFLOP/s)"
    line = speed_line(5e6, 77e6, 790e12, bfloat16=False)
    assert line == "speed   5,000,000 tokens/s, 49 % of the matmul ceiling measured here (float32, 790 TFLOP/s)"
