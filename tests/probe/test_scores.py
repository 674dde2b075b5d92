"""Scores of heads whose behaviour is known, and the regression that separates cues."""

from types import SimpleNamespace

import numpy as np
import pytest

from probe.scores import best_head, check_blocks, score

ORDER, MEANT = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])  # the cells of a block


def log_ratios(
    n_blocks: int = 13, *, coreference: float = 0, first: float = 0, singular: float = 0, lexical: float = 0
) -> np.ndarray:
    """Return the log ratios [4 n_blocks] of a head that is the sum of these habits."""
    to_first = np.where(ORDER == MEANT, first, -first)
    to_singular = np.where(MEANT == 0, singular, -singular)
    per_word = np.random.default_rng(0).normal(size=n_blocks) * lexical
    to_word = np.where(MEANT == 0, 1, -1)[None] * per_word[:, None]
    return (coreference + to_first + to_singular + to_word).ravel()


def measure(values: np.ndarray) -> tuple[float, ...]:
    scores = score(values, values, (values > 0).astype(float))
    names = ("accuracy", "pair_accuracy", "block_accuracy", "pronoun_contrast")
    return tuple(float(getattr(scores, name).mean()) for name in names)


@pytest.mark.parametrize(
    ("habits", "expected"),
    [
        ({"coreference": 2}, (1, 1, 1, 2)),
        ({"first": 2}, (0.5, 0, 0, 0)),
        ({"singular": 2}, (0.5, 0, 0, 0)),
        ({"lexical": 2}, (0.5, 0, 0, 0)),
        ({"coreference": 1.5, "first": 2}, (0.5, 0, 0, 1.5)),
        ({"coreference": 2, "first": 1.5}, (1, 1, 1, 2)),
        ({}, (0.5, 0, 0, 0)),  # ties
    ],
    ids=str,
)
def test_a_habit_scores_what_its_definition_says(habits: dict[str, float], expected: tuple) -> None:
    assert measure(log_ratios(**habits)) == pytest.approx(expected)


def test_both_pronouns_right_in_one_order_is_a_pair_and_not_a_block() -> None:
    assert measure(np.array([1.0, 1.0, -1.0, 1.0])) == (0.75, 0.5, 0, 0.5)


def test_the_best_head_has_the_highest_block_accuracy() -> None:
    values = np.stack([log_ratios(first=1), log_ratios(coreference=2)], axis=-1)[:, None]  # [N, 1 layer, 2 heads]
    assert best_head(score(values, values, (values > 0).astype(float))) == (0, 1)


def cells(pairs: list[str]) -> list[SimpleNamespace]:
    return [
        SimpleNamespace(block=i, order=o, meant=m, pair=pair)
        for i, pair in enumerate(pairs)
        for o, m in zip(ORDER.tolist(), MEANT.tolist(), strict=True)
    ]


@pytest.mark.parametrize("index", [[3, 2, 1, 0], [0, 1, 2], [0, 1, 2, 7]], ids=["reversed", "incomplete", "mixed"])
def test_items_that_are_not_whole_blocks_are_refused(index: list[int]) -> None:
    items = cells(["a b", "c d"])
    check_blocks(items)
    with pytest.raises(ValueError, match="whole blocks"):
        check_blocks([items[i] for i in index])
