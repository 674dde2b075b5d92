"""The scores on heads whose behaviour is planted, so that what they must say is known."""

import numpy as np
import pytest

from probe.scores import best_head, check_blocks, score

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
    return tuple(float(getattr(scores, name).mean()) for name in ("sel1", "f2", "f4", "dd"))


def test_pure_coreference_scores_one_and_two() -> None:
    assert measure(planted(coreference=2)) == (1, 1, 1, 2)


@pytest.mark.parametrize("habit", ["first", "singular", "lexical"])
def test_position_number_and_taste_score_a_half_and_nothing(habit: str) -> None:
    assert measure(planted(**{habit: 2})) == pytest.approx((0.5, 0, 0, 0))


def test_a_habit_on_top_of_coreference_is_cancelled_in_dd_but_not_in_f4() -> None:
    assert measure(planted(coreference=1.5, first=2)) == (0.5, 0, 0, 1.5)
    assert measure(planted(coreference=2, first=1.5)) == (1, 1, 1, 2)


def test_what_is_right_in_one_order_only_is_a_pair_and_not_a_block() -> None:
    assert measure(np.array([1.0, 1.0, -1.0, 1.0])) == (0.75, 0.5, 0, 0.5)


def test_a_tie_counts_half_and_is_never_right() -> None:
    assert measure(np.zeros(8)) == (0.5, 0, 0, 0)


def test_scores_keep_the_axes_of_layers_and_heads() -> None:
    values = np.stack([planted(coreference=2), planted(first=1)], axis=-1)[:, None]  # [N, 1 layer, 2 heads]
    scores = score(values, values, (values > 0).astype(float))
    assert scores.f4.shape == (13, 1, 2)
    assert scores.f4.mean(axis=0).tolist() == [[1, 0]]
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
