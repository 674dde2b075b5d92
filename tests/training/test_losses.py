"""Losses by row and token class."""

import math

import numpy as np
import pytest
import torch

from model.transformer import Transformer
from tests.model.standard import config
from training.evaluate import mean_and_error, mean_loss, row_losses, token_losses


def test_losses_are_minus_the_log_of_what_the_target_was_given() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [5.0, 5.0]]])
    losses = token_losses(logits, torch.tensor([[1, -100]]))
    torch.testing.assert_close(losses, torch.tensor([[math.log(4 / 3), 0.0]]))
    assert mean_loss(logits, torch.tensor([[1, -100]])).item() == pytest.approx(math.log(4 / 3))


def test_losses_by_class_add_up_to_the_mean_loss() -> None:
    model = Transformer(config(), 31, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    tokens, targets = torch.randint(31, (2, 3, 7), generator=generator)
    targets[0, 2] = -100
    classes = torch.randint(5, (3, 7), generator=generator)
    rows = row_losses(model, [((tokens,), targets, classes, None)], 5)
    sums, counts = rows.losses.sum(0), rows.counts.sum(0)
    assert counts.sum() == 20
    assert (sums.sum() / counts.sum()).item() == pytest.approx(mean_loss(model(tokens), targets).item(), rel=1e-6)
    alone = token_losses(model(tokens), targets)[(classes == 3) & (targets >= 0)].sum().item()
    assert sums[3].item() == pytest.approx(alone, rel=1e-6)


def test_row_losses_add_up_each_row_and_class_and_the_floor_over_the_very_same_tokens() -> None:
    model = Transformer(config(), 31, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    batches = []
    for n_rows, length in ((3, 7), (2, 11)):
        tokens, targets = torch.randint(31, (2, n_rows, length), generator=generator)
        targets[0, 2:] = -100
        classes = torch.randint(5, (n_rows, length), generator=generator)
        batches.append(((tokens,), targets, classes, torch.rand(n_rows, length, generator=generator)))
    rows = row_losses(model, batches, 5)
    assert rows.losses.shape == rows.counts.shape == rows.floors.shape == (5, 5)
    first = 0
    for (tokens,), targets, classes, floor in batches:
        losses = token_losses(model(tokens), targets)
        for row, name in np.ndindex(len(tokens), 5):
            there = (classes[row] == name) & (targets[row] >= 0)
            assert rows.counts[first + row, name] == there.sum()
            assert rows.losses[first + row, name].item() == pytest.approx(losses[row][there].sum().item(), abs=1e-5)
            assert rows.floors[first + row, name].item() == pytest.approx(floor[row][there].sum().item(), abs=1e-5)
        first += len(tokens)
    assert row_losses(model, [(*batches[0][:2], None, None)], 1).floors is None


def test_the_error_of_a_mean_over_tokens_is_that_over_whole_rows() -> None:
    """Of rows of one length it is the standard error of their means; said twice, a row's token says nothing new."""
    generator = torch.Generator().manual_seed(2)
    sums = torch.randn(13, 3, generator=generator, dtype=torch.float64)
    mean, error = mean_and_error(sums, torch.full((13, 3), 7.0))
    torch.testing.assert_close(mean, sums.mean(0) / 7)
    torch.testing.assert_close(error, sums.std(0) / 7 / 13**0.5)
    counts = torch.randint(1, 9, (13, 3), generator=generator).double()
    for once, twice in zip(mean_and_error(sums, counts), mean_and_error(2 * sums, 2 * counts), strict=True):
        torch.testing.assert_close(once, twice)


def test_the_error_over_rows_of_any_length_is_how_far_means_of_new_rows_scatter() -> None:
    generator = torch.Generator().manual_seed(3)
    counts = torch.randint(1, 12, (211, 4000), generator=generator).double()
    taste = torch.randn(211, 4000, generator=generator, dtype=torch.float64)  # what a row's tokens share
    means, errors = mean_and_error(counts * (3.0 + taste), counts)
    assert means.mean().item() == pytest.approx(3.0, abs=0.01)
    assert errors.mean().item() == pytest.approx(means.std().item(), rel=0.05)


def test_one_row_has_no_error_and_no_token_no_mean() -> None:
    mean, error = mean_and_error(torch.tensor([[3.0, 0.0]]), torch.tensor([[2.0, 0.0]]))
    assert mean[0] == 1.5 and mean[1].isnan() and error.isnan().all()
