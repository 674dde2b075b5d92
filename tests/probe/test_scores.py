"""Scores of heads whose behaviour is known, and the regression that separates cues."""

from types import SimpleNamespace

import numpy as np
import pytest

from probe.scores import best_head, check_blocks, cue_effects, score

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


def test_cue_effects_are_least_squares_effects() -> None:
    rng = np.random.default_rng(0)
    items = cells([f"a{i % 3} b{i % 5}" for i in range(17)])
    values = rng.normal(size=(len(items), 2, 3))
    order, meant = (np.array([getattr(item, name) for item in items]) for name in ("order", "meant"))
    first, member = np.where(order == meant, 1, -1), 1 - 2 * meant
    design = np.stack([np.ones(len(items)), first, member, first * member], axis=1)
    effects = np.linalg.lstsq(design, values.reshape(len(items), -1), rcond=None)[0]
    cues = cue_effects(values, items)
    for name, expected in zip(("coreference", "first", "pronoun", "order"), effects, strict=True):
        np.testing.assert_allclose(getattr(cues, name).ravel(), expected, atol=1e-12)


def test_the_lexical_effect_is_the_spread_over_words_without_noise() -> None:
    """Effects of 40 first words with SD .8 and of 30 second words with SD .6: together 1, under noise of SD 2."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 40, size=4000), rng.integers(0, 30, size=4000)
    items = cells([f"a{i} b{j}" for i, j in zip(first, second, strict=True)])
    of_first, of_second = rng.normal(size=40), rng.normal(size=30)
    effect = 0.8 * (of_first / of_first.std())[first] - 0.6 * (of_second / of_second.std())[second]
    sign = np.array([1 - 2 * item.meant for item in items])
    noise = rng.normal(0, 2, size=len(items))
    assert cue_effects(noise, items).lexical < 0.1
    assert cue_effects(noise + sign * effect.repeat(4), items).lexical == pytest.approx(1, abs=0.05)


def test_the_lexical_effect_is_unknown_if_no_word_repeats() -> None:
    cues = cue_effects(log_ratios(5, lexical=1), cells([f"a{i} b{i}" for i in range(5)]))
    assert np.isnan(cues.lexical)
    assert np.isnan(cues.coreference_share)
