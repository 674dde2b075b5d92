"""Validation loss by token class, its standard error, and the gap to the entropy lower bound."""

import math

import numpy as np
import pytest
import torch

from data.corpus import TOKEN_CLASSES
from data.loader import IGNORE, Batch, Split, StorySplit
from model.transformer import Transformer
from tests.program import SMALL
from training.evaluate import mean_and_error, row_losses, token_losses, validation_loss
from training.settings import compose_settings

VOCAB_SIZE = 31


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(compose_settings(SMALL).model, VOCAB_SIZE, seed=0).eval()


def random_batch(n_rows: int, length: int, seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    tokens, targets = torch.randint(VOCAB_SIZE, (2, n_rows, length), generator=generator)
    targets[0, 2:] = IGNORE
    classes = torch.randint(len(TOKEN_CLASSES), (n_rows, length), generator=generator)
    return Batch(tokens, targets, None, classes, torch.rand(n_rows, length, generator=generator))


def test_losses_and_lower_bounds_are_summed_by_row_and_class(model: Transformer) -> None:
    batches = [random_batch(3, 7, 1), random_batch(2, 11, 2)]
    rows = row_losses(model, batches, len(TOKEN_CLASSES))
    assert rows.floors is not None
    row = 0
    for batch in batches:
        losses = token_losses(model(batch.tokens), batch.targets)
        assert batch.classes is not None and batch.floor is not None
        for i in range(len(batch.tokens)):
            for c in range(len(TOKEN_CLASSES)):
                selected = (batch.classes[i] == c) & (batch.targets[i] != IGNORE)
                expected = [selected.sum(), losses[i][selected].sum(), batch.floor[i][selected].sum()]
                found = [rows.counts[row, c], rows.losses[row, c], rows.floors[row, c]]
                assert [x.item() for x in found] == pytest.approx([x.item() for x in expected], rel=1e-5)
            row += 1


def test_the_standard_error_of_rows_of_equal_length_is_that_of_their_means() -> None:
    sums = torch.randn(13, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    expected = (sums.mean() / 7, sums.std() / 7 / 13**0.5)
    assert mean_and_error(sums, torch.full((13,), 7.0)) == pytest.approx([number.item() for number in expected])


@pytest.mark.parametrize("tokens_per_batch", [1, 100, 10_000])
def test_validation_covers_every_token_whatever_the_batch_size(model: Transformer, tokens_per_batch: int) -> None:
    tokens = np.random.default_rng(0).integers(VOCAB_SIZE, size=200).astype(np.uint16)
    measured = validation_loss(model, Split(tokens, 100), tokens_per_batch)
    context, total = model.config.context_length, 0.0
    for start in range(0, 199, context):
        window = torch.from_numpy(tokens[start : start + context + 1].astype(np.int64))[None]
        total += token_losses(model(window[:, :-1]), window[:, 1:]).sum().item()
    assert measured.loss == pytest.approx(total / 199, rel=1e-5)
    assert measured.bits_per_byte == pytest.approx(total / math.log(2) / 100, rel=1e-5)
    assert measured.known().keys() == {"loss", "bits_per_byte"}


def test_a_model_that_predicts_the_true_probabilities_has_no_gap(model: Transformer) -> None:
    rng, n_stories, length = np.random.default_rng(0), 6, 8
    tokens = rng.integers(VOCAB_SIZE, size=n_stories * length + 1).astype(np.uint16)
    starts = np.arange(n_stories + 1) * length
    classes = rng.integers(len(TOKEN_CLASSES), size=len(tokens)).astype(np.uint8)
    floor = np.zeros(len(tokens), np.float32)
    split = StorySplit(tokens, 100, starts=starts, classes=classes, floor=floor)
    loss = validation_loss(model, split, 100)
    row_length = torch.from_numpy(tokens.astype(np.int64)).unfold(0, length + 1, length)
    expected = token_losses(model(row_length[:, :-1]), row_length[:, 1:])
    floor[1:] = expected.detach().flatten().numpy()
    assert loss.gap == pytest.approx(loss.loss)
    assert validation_loss(model, split, 100).gap == pytest.approx(0, abs=1e-6)
