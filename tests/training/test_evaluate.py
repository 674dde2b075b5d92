"""Validation loss, its standard error, and the gap to the entropy lower bound."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from data.loader import Split, StorySplit
from model.transformer import Transformer
from tests.program import SMALL
from tests.tiny_models import random_model
from training.evaluate import mean_and_error, sample, validation_loss
from training.settings import compose_settings

VOCAB_SIZE = 31


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(compose_settings(SMALL).model, VOCAB_SIZE, seed=0).eval()


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
        total += F.cross_entropy(model(window[:, :-1]).mT, window[:, 1:], reduction="sum").item()
    assert measured.loss == pytest.approx(total / 199, rel=1e-5)
    assert measured.bits_per_byte == pytest.approx(total / math.log(2) / 100, rel=1e-5)
    assert measured.known().keys() == {"loss", "bits_per_byte"}


def test_the_gap_is_the_loss_minus_its_lower_bound(model: Transformer) -> None:
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, 8, 3, 11, 5, 12, 7])
    tokens = rng.integers(VOCAB_SIZE, size=starts[-1] + 1).astype(np.uint16)
    floor = np.zeros(len(tokens), np.float32)
    split = StorySplit(tokens, 100, starts=starts, floor=floor)
    losses = np.empty(starts[-1])
    for start, end in pairwise(starts):
        story = torch.from_numpy(tokens[None, start : end + 1].astype(np.int64))
        losses[start:end] = F.cross_entropy(model(story[:, :-1]).mT, story[:, 1:], reduction="none").detach()

    # A bound of 0, and a model that predicts the true probabilities
    loss = validation_loss(model, split, 100)
    assert loss.gap == pytest.approx(loss.loss) == pytest.approx(losses.mean(), rel=1e-5)
    floor[1:] = losses
    assert validation_loss(model, split, 100).gap == pytest.approx(0, abs=1e-6)


def test_samples_depend_on_their_seed_alone_and_stop_at_logits_that_are_not_finite() -> None:
    model, start, state = random_model(), torch.tensor([3, 1]), torch.get_rng_state()
    text = sample(model, start, 23, seed=5)
    assert len(text) == 25 and torch.equal(state, torch.get_rng_state())
    assert torch.equal(text, sample(model, start, 23, seed=5))
    assert not torch.equal(text, sample(model, start, 23, seed=6))
    model.final_norm.gain.data.fill_(torch.nan)
    assert sample(model, torch.tensor([3]), 9, seed=0).tolist() == [3]
