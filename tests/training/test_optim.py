"""Muon, AdamW and the learning-rate schedule."""

import copy

import pytest
import torch
from torch import nn

from training.optim import Muon, learning_rate_factor


def matrices(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(12, 8), (12, 8), (8, 12), (6, 6)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def gradients(parameters: list[nn.Parameter], seed: int) -> None:
    for parameter, gradient in zip(parameters, matrices(seed), strict=True):
        parameter.grad = gradient.detach().clone()


def test_muon_makes_the_same_updates_as_torch_muon() -> None:
    weights = matrices(0)
    reference_weights = copy.deepcopy(weights)
    optimizer = Muon(weights, lr=0.01, weight_decay=0.1, momentum=0.9)
    reference = torch.optim.Muon(reference_weights, lr=0.01, weight_decay=0.1, momentum=0.9)
    for step in range(5):
        gradients(weights, step + 1)
        gradients(reference_weights, step + 1)
        optimizer.step()
        reference.step()
    for weight, expected in zip(weights, reference_weights, strict=True):
        torch.testing.assert_close(weight, expected, rtol=0, atol=2e-3)  # Newton-Schulz computes in bfloat16


def test_the_learning_rate_warms_up_linearly_and_decays_to_zero() -> None:
    factors = [learning_rate_factor(step, warmup_steps=4, max_steps=12, decay_power=2) for step in range(13)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == [pytest.approx((remaining / 8) ** 2) for remaining in range(8, -1, -1)]
