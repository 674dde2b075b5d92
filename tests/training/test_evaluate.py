"""Validation loss by token class, its standard error, and the gap to the entropy lower bound."""

import math

import numpy as np
import pytest
import torch

from data.corpus import TOKEN_CLASSES
from data.loader import IGNORE, Batch, Split, StorySplit
from model.transformer import Transformer
from tests.program import SMALL
from training.evaluate import mean_and_error, row_losses, summarise, token_losses, validation_loss
from training.logging import gap_lines
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


def test_the_loss_of_a_token_is_minus_its_log_probability() -> None:
    logits = torch.tensor([[[0.0, math.log(3.0)], [5.0, 5.0]]])
    targets = torch.tensor([[1, IGNORE]])
    torch.testing.assert_close(token_losses(logits, targets), torch.tensor([[math.log(4 / 3), 0.0]]))


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
                assert rows.counts[row, c] == selected.sum()
                assert rows.losses[row, c].item() == pytest.approx(losses[i][selected].sum().item(), rel=1e-5)
                assert rows.floors[row, c].item() == pytest.approx(batch.floor[i][selected].sum().item(), rel=1e-5)
            row += 1


def test_the_standard_error_of_rows_of_equal_length_is_that_of_their_means() -> None:
    sums = torch.randn(13, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean, error = mean_and_error(sums, torch.full((13, 3), 7.0))
    torch.testing.assert_close(mean, sums.mean(0) / 7)
    torch.testing.assert_close(error, sums.std(0) / 7 / 13**0.5)


def test_tokens_of_one_row_are_one_cluster() -> None:
    generator = torch.Generator().manual_seed(3)
    sums, counts = torch.randn(13, generator=generator), torch.randint(1, 9, (13,), generator=generator).float()
    for once, twice in zip(mean_and_error(sums, counts), mean_and_error(2 * sums, 2 * counts), strict=True):
        torch.testing.assert_close(once, twice)


def test_the_mean_over_classes_weighted_by_their_tokens_is_the_mean_loss(model: Transformer) -> None:
    rows = row_losses(model, [random_batch(5, 9, 4)], len(TOKEN_CLASSES))
    summary, counts = summarise(rows, TOKEN_CLASSES), rows.counts.sum(0)
    assert summary.loss_by_class and summary.floor is not None
    weighted = sum(summary.loss_by_class[name] * counts[i] for i, name in enumerate(TOKEN_CLASSES)) / counts.sum()
    assert summary.loss == pytest.approx(weighted.item(), rel=1e-5)
    assert summary.gap == pytest.approx(summary.loss - summary.floor, rel=1e-5)


def test_a_class_without_tokens_is_left_out(model: Transformer) -> None:
    batch = random_batch(4, 9, 5)
    assert batch.classes is not None
    batch.classes[batch.classes == 0] = 1
    summary = summarise(row_losses(model, [batch], len(TOKEN_CLASSES)), TOKEN_CLASSES)
    assert summary.loss_by_class and set(summary.loss_by_class) == set(TOKEN_CLASSES[1:])


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


@pytest.mark.parametrize(("gap", "warns"), [(0.01, False), (-0.029, False), (-0.031, True)])
def test_a_loss_below_its_lower_bound_by_three_standard_errors_is_a_warning(gap: float, warns: bool) -> None:
    lines = gap_lines(gap, 0.01, {})
    assert any(line.startswith("warning") for line in lines) == warns


def test_a_model_that_sees_its_targets_gets_a_note_instead_of_a_warning() -> None:
    lines = gap_lines(-1.0, 0.01, {}, is_causal=False)
    assert [line.partition(":")[0] for line in lines[1:]] == ["note"]


def test_without_a_lower_bound_there_is_no_gap() -> None:
    assert gap_lines(None, None, None) == []
