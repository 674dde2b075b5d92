"""The loss and what goes on from a prompt."""

import math

import pytest
import torch

from model.generate import generate
from model.loss import class_losses, mean_loss, token_losses
from model.transformer import Transformer
from tests.model.test_attention import config


def test_losses_are_minus_the_log_of_what_the_target_was_given() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [5.0, 5.0]]])
    losses = token_losses(logits, torch.tensor([[1, -100]]))
    torch.testing.assert_close(losses, torch.tensor([[math.log(4 / 3), 0.0]]))
    assert mean_loss(logits, torch.tensor([[1, -100]])).item() == pytest.approx(math.log(4 / 3))


def test_class_losses_add_up_to_the_mean_loss() -> None:
    model = Transformer(config(), 31, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(31, (2, 3, 7), generator=generator)
    targets[0, 2] = -100
    classes = torch.randint(5, (3, 7), generator=generator)
    sums, counts = class_losses(model, [(tokens, targets, classes)], 5)
    assert counts.sum() == 20
    assert (sums.sum() / counts.sum()).item() == pytest.approx(mean_loss(model(tokens), targets).item(), rel=1e-6)
    alone = token_losses(model(tokens), targets)[(classes == 3) & (targets >= 0)].sum().item()
    assert sums[3].item() == pytest.approx(alone, rel=1e-6)


def test_generation_is_decided_by_its_seed_and_leaves_the_global_state_alone() -> None:
    model = Transformer(config(), 31, seed=0).eval()
    start = torch.tensor([3, 1])
    state = torch.get_rng_state()
    one = generate(model, start, 23, temperature=1.0, seed=5)
    assert torch.equal(state, torch.get_rng_state())
    assert len(one) == 25  # longer than the context of 13: the window slides
    assert torch.equal(one, generate(model, start, 23, temperature=1.0, seed=5))
    assert not torch.equal(one, generate(model, start, 23, temperature=1.0, seed=6))


def test_generation_without_temperature_takes_the_likeliest_and_stops_at_the_end() -> None:
    model = Transformer(config(), 31, seed=0).eval()
    start = torch.tensor([3])
    first = model(start[None])[0, -1].argmax().item()
    assert generate(model, start, 1, temperature=0, seed=0)[1].item() == first
    assert generate(model, start, 9, temperature=0, seed=0, end=first).tolist() == [3]
