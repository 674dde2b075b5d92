"""Muon, AdamW and the learning-rate schedule."""

import copy

import pytest
import torch
from torch import nn

from model.transformer import Transformer
from tests.program import SMALL
from training.optim import Muon, learning_rate_factor, make_optimizers, set_learning_rates
from training.settings import compose_settings


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


def test_muon_leaves_a_matrix_without_gradient_as_it_is() -> None:
    parameters = matrices(0)
    gradients(parameters, 1)
    parameters[1].grad = None
    old_weight = parameters[1].detach().clone()
    Muon(parameters, lr=0.01).step()
    torch.testing.assert_close(parameters[1].detach(), old_weight, rtol=0, atol=0)


def test_the_learning_rate_warms_up_linearly_and_decays_to_zero() -> None:
    factors = [learning_rate_factor(step, warmup_steps=4, max_steps=12, decay_power=2) for step in range(13)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4:] == [pytest.approx((remaining / 8) ** 2) for remaining in range(8, -1, -1)]


@pytest.mark.parametrize("steps", [(0, 1), (5, 5)])
def test_the_schedule_allows_no_warmup_and_nothing_but_warmup(steps: tuple[int, int]) -> None:
    warmup_steps, max_steps = steps
    factors = [learning_rate_factor(step, warmup_steps, max_steps) for step in range(max_steps)]
    assert all(0 < factor <= 1 for factor in factors)


@pytest.mark.parametrize(("name", "n_optimizers"), [("muon", 2), ("adamw", 1)])
def test_every_weight_is_in_one_group_and_norms_do_not_decay(name: str, n_optimizers: int) -> None:
    settings = compose_settings([*SMALL, f"optim={name}"])
    model = Transformer(settings.model, 11, 0)
    optimizers = make_optimizers(model, settings.optim)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    weights = [weight for group in groups for weight in group["params"]]
    assert len(optimizers) == n_optimizers
    assert sorted(map(id, weights)) == sorted(map(id, model.parameters()))
    assert all(group["weight_decay"] == 0 for group in groups if group["params"][0].ndim < 2)
    rates = {id(weight): group["lr"] for group in groups for weight in group["params"]}
    assert rates[id(model.token_embedding.weight)] == settings.optim.embedding_learning_rate
    assert rates[id(dict(model.named_parameters())["blocks.0.mlp.down.weight"])] == settings.optim.learning_rate


def test_a_factor_scales_the_peak_of_each_group_however_often_it_is_set() -> None:
    settings = compose_settings(SMALL)
    optimizers = make_optimizers(Transformer(settings.model, 11, 0), settings.optim)
    for factor in (0.1, 0.5):
        set_learning_rates(optimizers, factor)
    assert optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5 * settings.optim.learning_rate)
