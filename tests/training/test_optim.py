"""Muon, AdamW and the learning-rate schedule."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from training.optim import AdamW, Muon, WeightGroup, learning_rate_factor


def matrices(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(12, 8), (12, 8), (8, 12), (6, 6)]
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]


def gradients(parameters: list[nn.Parameter], seed: int) -> None:
    for parameter, gradient in zip(parameters, matrices(seed), strict=True):
        parameter.grad = gradient.detach().clone()


@pytest.mark.parametrize(
    ("make", "reference_of", "atol"),
    [
        (lambda group: Muon(group, 0.9), partial(torch.optim.Muon, momentum=0.9), 2e-3),  # Newton-Schulz in bfloat16
        (lambda group: AdamW([group], (0.9, 0.97)), partial(torch.optim.AdamW, betas=(0.9, 0.97)), 1e-6),
    ],
    ids=["muon", "adamw"],
)
def test_the_updates_are_those_of_torch(make: Callable, reference_of: Callable, atol: float) -> None:
    weights = matrices(0)
    reference_weights = copy.deepcopy(weights)
    optimizer = make(WeightGroup(weights, 0.01, 0.1, rate=0.01))
    reference = reference_of(reference_weights, lr=0.01, weight_decay=0.1)
    for step in range(5):
        gradients(weights, step + 1)
        gradients(reference_weights, step + 1)
        optimizer.step(torch.tensor(1.0))
        reference.step()
    for weight, expected in zip(weights, reference_weights, strict=True):
        torch.testing.assert_close(weight, expected, rtol=0, atol=atol)


def test_the_learning_rate_warms_up_linearly_and_decays_to_zero() -> None:
    factors = [learning_rate_factor(step, warmup_steps=4, max_steps=12, decay_power=2) for step in range(13)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == [pytest.approx((remaining / 8) ** 2) for remaining in range(8, -1, -1)]
