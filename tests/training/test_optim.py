"""Muon, AdamW and the learning-rate schedule."""

import copy

import pytest
import torch
from torch import nn

from training.optim import AdamW, Muon, WeightGroup, learning_rate_factor

FINITE = torch.tensor(1.0)


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
    optimizer = Muon(WeightGroup(weights, 0.01, 0.1, rate=0.01), momentum=0.9)
    reference = torch.optim.Muon(reference_weights, lr=0.01, weight_decay=0.1, momentum=0.9)
    for step in range(5):
        gradients(weights, step + 1)
        gradients(reference_weights, step + 1)
        optimizer.step(FINITE)
        reference.step()
    for weight, expected in zip(weights, reference_weights, strict=True):
        torch.testing.assert_close(weight, expected, rtol=0, atol=2e-3)  # Newton-Schulz computes in bfloat16


def test_adamw_makes_the_same_updates_as_torch_adamw() -> None:
    weights = matrices(0)
    reference_weights = copy.deepcopy(weights)
    optimizer = AdamW([WeightGroup(weights, 0.01, 0.1, rate=0.01)], betas=(0.9, 0.97))
    reference = torch.optim.AdamW(reference_weights, lr=0.01, weight_decay=0.1, betas=(0.9, 0.97))
    for step in range(5):
        gradients(weights, step + 1)
        gradients(reference_weights, step + 1)
        optimizer.step(FINITE)
        reference.step()
    for weight, expected in zip(weights, reference_weights, strict=True):
        torch.testing.assert_close(weight, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_steps_before", [0, 2])
def test_a_step_that_is_not_finite_changes_nothing(n_steps_before: int) -> None:
    for make in (lambda group: Muon(group, 0.9), lambda group: AdamW([group], (0.9, 0.97))):
        weights = matrices(0)
        optimizer = make(WeightGroup(weights, 0.01, 0.1, rate=0.01))
        for step in range(n_steps_before):
            gradients(weights, step + 1)
            optimizer.step(FINITE)
        before = copy.deepcopy((weights, [optimizer.state[weight] for weight in weights]))
        gradients(weights, 9)
        weights[0].grad[0, 0] = float("nan")
        optimizer.step(torch.tensor(0.0))
        torch.testing.assert_close((weights, [optimizer.state[weight] for weight in weights]), before, rtol=0, atol=0)


def test_the_learning_rate_warms_up_linearly_and_decays_to_zero() -> None:
    factors = [learning_rate_factor(step, warmup_steps=4, max_steps=12, decay_power=2) for step in range(13)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == [pytest.approx((remaining / 8) ** 2) for remaining in range(8, -1, -1)]
