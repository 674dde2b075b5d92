"""Heads with planted habits get the scores that their habit implies."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import norm

from data.links import LinkItem, Word
from model.observe import TransformerView
from probe.behaviour import measure_payoffs
from probe.contract import check_contract
from probe.scores import HeadRows, best_head, measure_heads, score_heads
from tests.planted import KINDS, plant
from tests.probe.story_items import (
    MODEL,
    member,
    planted,
    rows_of_scores,
    scores_by_word,
    story_items,
    vocabulary,
)


@pytest.fixture(scope="module")
def items() -> list[LinkItem]:
    return story_items("test", "agreement", "pronoun")


def coreference(item: LinkItem, word: Word) -> float:
    return 1.0 if word in item.antecedents else -1.0


def first(item: LinkItem, word: Word) -> float:
    return 1.0 if word == min(item.antecedents + item.distractors) else -1.0


def singular(item: LinkItem, word: Word) -> float:
    return 1.0 - 2 * member(item, word)


def word_preference(items: list[LinkItem]) -> Callable[[LinkItem, Word], float]:
    """Return a preference for one word of each pair: normal quantiles over blocks."""
    blocks = sorted({item.block for item in items})
    values = dict(zip(blocks, norm.ppf((np.arange(len(blocks)) + 0.5) / len(blocks)), strict=True))
    return lambda item, word: values[item.block] / 2 * singular(item, word)


def measure(rows: HeadRows, layer: int = 0, head: int = 0) -> tuple[float, float, float]:
    scores = score_heads(rows)
    arrays = (scores.accuracy, scores.block_accuracy, scores.pronoun_contrast)
    accuracy, block_accuracy, contrast = (float(array.mean(axis=0)[layer, head]) for array in arrays)
    return accuracy, block_accuracy, contrast


def test_coreference_under_a_stronger_preference_for_the_first_noun_is_no_link(items: list[LinkItem]) -> None:
    """Log ratio: 1.5 for coreference, +-3 for the first mention, and a word preference of SD 1 per block.

    First antecedents are always right; second ones only if the word preference exceeds 1.5. So accuracy is
    (1 + P(Z > 1.5)) / 2 = .533, a block is never right, and position and word cancel in the pronoun contrast.
    """
    noise = word_preference(items)
    scores = scores_by_word(
        items, lambda item, word: 0.75 * coreference(item, word) + 1.5 * first(item, word) + noise(item, word)
    )
    accuracy, block_accuracy, contrast = measure(rows_of_scores(items, scores))
    assert accuracy == pytest.approx((1 + norm.sf(1.5)) / 2, abs=0.005)
    assert block_accuracy == 0
    assert contrast == pytest.approx(1.5, abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("family", "site"), [("agreement", "pronoun"), ("later_cue", "cue")])
def test_a_planted_transformer_has_the_scores_of_its_habit(kind: str, family: str, site: str) -> None:
    items = story_items("test", family, site)
    rows = measure_heads(TransformerView(planted(kind, layer=1, head=2, seed=5)), items, 4096)
    expected = {"coreference": (1, 1, 2), "coreference+first": (0.5, 0, 1.5)}.get(kind, (0.5, 0, 0))
    assert measure(rows, 1, 2) == pytest.approx(expected, abs=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_a_planted_transformer_keeps_the_contract(items: list[LinkItem], kind: str) -> None:
    check_contract(TransformerView(planted(kind, layer=1)), items, n_items=8)


def test_the_planted_coreference_head_is_the_best_head(items: list[LinkItem]) -> None:
    rows = measure_heads(TransformerView(planted("coreference", layer=1, head=1)), items, 4096)
    assert best_head(score_heads(rows)) == (1, 1)


@pytest.mark.parametrize(("kind", "low", "high"), [("coreference", 0.97, 1), ("first", 0.45, 0.55)])
def test_the_planted_head_decides_the_models_answer(items: list[LinkItem], kind: str, low: float, high: float) -> None:
    assert low <= (measure_payoffs(TransformerView(planted(kind)), items, 4096)[0] > 0).mean() <= high


def test_strength_multiplies_the_log_ratio(items: list[LinkItem]) -> None:
    rows = measure_heads(TransformerView(planted("coreference", strength=2.5)), items[:40], 4096)
    np.testing.assert_allclose(rows.log_ratio[:, 0, 0], 5, atol=0.01)


def test_an_unknown_habit_is_refused() -> None:
    with pytest.raises(ValueError, match="coreference, first"):
        plant(MODEL, vocabulary(), "last")


def test_the_same_seed_plants_the_same_model() -> None:
    first_model, again, other = (planted("lexical", seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first_model[name], again[name]) for name in first_model)
    assert any(not torch.equal(first_model[name], other[name]) for name in first_model)
