"""What a speed is held against."""

import time

import pytest
import torch

from run.ceiling import matmul_ceiling, speed_line


@pytest.mark.parametrize("bfloat16", [False, True])
def test_no_product_of_matrices_is_much_faster_than_the_ceiling(bfloat16: bool) -> None:
    numbers = torch.bfloat16 if bfloat16 else torch.float32
    ceiling = matmul_ceiling(torch.device("cpu"), bfloat16=bfloat16)
    first, second = torch.rand((2, 512, 512), dtype=numbers)
    best = float("inf")
    for _ in range(20):
        began = time.perf_counter()
        first @ second
        best = min(best, time.perf_counter() - began)
    assert 1e8 < ceiling < 1e14
    assert 2 * 512**3 / best < 3 * ceiling  # the machine may have been busy then


def test_the_line_says_rate_share_numbers_and_ceiling() -> None:
    line = speed_line(41_200.4, 2e6, 212e9, bfloat16=True)
    assert line == "speed   41,200 tokens/s, 39 % of the matmul ceiling measured here (bfloat16, 212 GFLOP/s)"
    line = speed_line(5e6, 77e6, 790e12, bfloat16=False)
    assert line == "speed   5,000,000 tokens/s, 49 % of the matmul ceiling measured here (float32, 790 TFLOP/s)"
