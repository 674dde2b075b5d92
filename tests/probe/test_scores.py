"""The scores on heads whose behaviour is planted, so that what they must say is known."""

import numpy as np
import pytest

from probe.scores import best_head, check_blocks, factorial, score

# One block: cells (order, meant); the pair's first member is the singular one.
ORDER = np.array([0, 0, 1, 1])
MEANT = np.array([0, 1, 0, 1])


def planted(
    n_blocks: int = 13, *, coreference: float = 0, first: float = 0, singular: float = 0, lexical: float = 0
) -> np.ndarray:
    """Return lambda (antecedent over distractor) of a head that is the sum of these habits."""
    to_gold = np.full(4, coreference)
    to_first = np.where(ORDER == MEANT, first, -first)
    to_singular = np.where(MEANT == 0, singular, -singular)
    taste = np.random.default_rng(0).normal(size=n_blocks) * lexical  # for one noun of each pair
    to_noun = np.where(MEANT == 0, 1, -1)[None] * taste[:, None]
    return (to_gold + to_first + to_singular + to_noun).ravel()


def measure(preference: np.ndarray) -> tuple[float, float, float, float]:
    scores = score(preference, preference, (preference > 0).astype(float))
    return tuple(
        float(getattr(scores, name).mean())
        for name in ("accuracy", "pair_accuracy", "block_accuracy", "pronoun_contrast")
    )


def test_pure_coreference_scores_one_and_two() -> None:
    assert measure(planted(coreference=2)) == (1, 1, 1, 2)


@pytest.mark.parametrize("habit", ["first", "singular", "lexical"])
def test_position_number_and_taste_score_a_half_and_nothing(habit: str) -> None:
    assert measure(planted(**{habit: 2})) == pytest.approx((0.5, 0, 0, 0))


def test_a_habit_on_top_of_coreference_is_cancelled_in_pronoun_contrast_but_not_in_block_accuracy() -> None:
    assert measure(planted(coreference=1.5, first=2)) == (0.5, 0, 0, 1.5)
    assert measure(planted(coreference=2, first=1.5)) == (1, 1, 1, 2)


def test_what_is_right_in_one_order_only_is_a_pair_and_not_a_block() -> None:
    assert measure(np.array([1.0, 1.0, -1.0, 1.0])) == (0.75, 0.5, 0, 0.5)


def test_a_tie_counts_half_and_is_never_right() -> None:
    assert measure(np.zeros(8)) == (0.5, 0, 0, 0)


def test_scores_keep_the_axes_of_layers_and_heads() -> None:
    values = np.stack([planted(coreference=2), planted(first=1)], axis=-1)[:, None]  # [N, 1 layer, 2 heads]
    scores = score(values, values, (values > 0).astype(float))
    assert scores.block_accuracy.shape == (13, 1, 2)
    assert scores.block_accuracy.mean(axis=0).tolist() == [[1, 0]]
    assert best_head(scores) == (0, 0)


def test_items_out_of_block_order_are_refused() -> None:
    class Item:
        def __init__(self, order: int, meant: int, block: int) -> None:
            self.order, self.meant, self.block = order, meant, block

    good = [Item(o, m, 0) for o in (0, 1) for m in (0, 1)]
    check_blocks(good)
    for bad in (good[::-1], good[:3], [*good[:3], Item(1, 1, 1)]):
        with pytest.raises(ValueError, match="whole blocks"):
            check_blocks(bad)


class Cell:
    """What the regression reads of an item."""

    def __init__(self, block: int, order: int, meant: int, pair: str) -> None:
        self.block, self.order, self.meant, self.pair = block, order, meant, pair


def cells(pairs: list[str]) -> list[Cell]:
    return [Cell(i, o, m, pair) for i, pair in enumerate(pairs) for o in (0, 1) for m in (0, 1)]


def test_effects_are_those_of_least_squares_on_the_four_contrasts() -> None:
    rng = np.random.default_rng(0)
    items = cells([f"a{i % 3} b{i % 5}" for i in range(17)])
    values = rng.normal(size=(len(items), 2, 3))
    order, meant = (np.array([getattr(item, name) for item in items]) for name in ("order", "meant"))
    first, member = np.where(order == meant, 1, -1), 1 - 2 * meant
    design = np.stack([np.ones(len(items)), first, member, first * member], axis=1)
    b0, bf, bg, bo = np.linalg.lstsq(design, values.reshape(len(items), -1), rcond=None)[0]
    found = factorial(values, items)
    for effect, expected in zip(("coreference", "first", "pronoun", "order"), (b0, bf, bg, bo), strict=True):
        np.testing.assert_allclose(getattr(found, effect).ravel(), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("habit", "effect"), [("coreference", "coreference"), ("first", "first"), ("singular", "pronoun")]
)
def test_each_habit_is_one_effect_and_no_other(habit: str, effect: str) -> None:
    found = factorial(planted(12, **{habit: 2}), cells([f"a{i % 3} b{i % 2}" for i in range(12)]))
    effects = {name: float(getattr(found, name)) for name in found.__dataclass_fields__}
    assert effects == pytest.approx(dict.fromkeys(effects, 0.0) | {effect: 2.0})
    assert found.share == (effect == "coreference")


def test_taste_is_found_by_the_words_that_come_again_and_noise_is_not_taken_for_it() -> None:
    """The tastes of 40 first words have SD .8, those of 30 second words .6: together 1, under noise of SD 2."""
    rng = np.random.default_rng(0)
    one, two = rng.integers(0, 40, size=4000), rng.integers(0, 30, size=4000)
    items = cells([f"a{i} b{j}" for i, j in zip(one, two, strict=True)])
    taste_one, taste_two = rng.normal(size=40), rng.normal(size=30)
    taste = 0.8 * (taste_one / taste_one.std())[one] - 0.6 * (taste_two / taste_two.std())[two]
    member = np.array([1 - 2 * item.meant for item in items])
    noise = rng.normal(0, 2, size=len(items))
    assert factorial(noise, items).lexical < 0.1
    assert factorial(noise + member * taste.repeat(4), items).lexical == pytest.approx(1, abs=0.05)


def test_taste_is_unknown_where_no_word_comes_again() -> None:
    found = factorial(planted(5, lexical=1), cells([f"a{i} b{i}" for i in range(5)]))
    assert np.isnan(found.lexical) and np.isnan(found.share)
