"""How well a head, or a rule, tells antecedents from distractors: every score from one array of preferences."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.links import LinkItem


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of several heads per block; a mean over blocks is the score itself. Axes: N_b blocks, ... heads.

    A block holds four cells, order of the mentions x which is meant. One that looks at position, at a noun's taste
    or at the pronoun alone is right in half of them, so it scores sel1 1/2, f4 0 and dd 0 (up to chance).
    """

    sel1: np.ndarray  # [N_b, ...] share of cells where the antecedent is preferred; a tie counts half
    f2: np.ndarray  # [N_b, ...] share of orders for which both pronouns are right
    f4: np.ndarray  # [N_b, ...] whether all four cells are right
    dd: np.ndarray  # [N_b, ...] mean preference: half of lambda(one pronoun) - lambda(the other), one prefix
    str1: np.ndarray  # [N_b, ...] share of cells where no token but the first outweighs the antecedent
    preference: np.ndarray  # [N_b, ...] mean lambda; over whole blocks the same number as dd, under its own name


def score(preference: np.ndarray, selects: np.ndarray, strict: np.ndarray) -> Scores:
    """Score items that come in whole blocks, cells in the order (0, 0), (0, 1), (1, 0), (1, 1) of (order, meant).

    Args:
        preference: [4 N_b, ...] lambda.
        selects: [4 N_b, ...] positive where the antecedent is the preferred candidate, 0 for a tie.
        strict: [4 N_b, ...] 1 where it is preferred to every token but the first.

    """

    def cells(values: np.ndarray) -> np.ndarray:
        return values.reshape(-1, 2, 2, *values.shape[1:])  # [N_b, order, meant, ...]

    right = cells((selects > 0) + 0.5 * (selects == 0))
    both = (right == 1).all(axis=2)  # [N_b, order, ...]
    mean = cells(preference).mean(axis=2)  # over the two pronouns of one prefix
    return Scores(
        sel1=right.mean(axis=(1, 2)),
        f2=both.mean(axis=1),
        f4=both.all(axis=1).astype(float),
        dd=mean.mean(axis=1),
        str1=cells(strict).mean(axis=(1, 2)),
        preference=mean.mean(axis=1),
    )


def check_blocks(items: Sequence[LinkItem]) -> None:
    """Raise ValueError unless the items are whole blocks, in the order in which `score` reads them."""
    cells = [(item.order, item.meant) for item in items]
    blocks = [item.block for item in items]
    whole = cells == [(0, 0), (0, 1), (1, 0), (1, 1)] * (len(items) // 4)
    if not whole or any(len(set(blocks[i : i + 4])) > 1 for i in range(0, len(blocks), 4)):
        raise ValueError("probe items are not whole blocks of four cells")


def best_head(scores: Scores) -> tuple[int, int]:
    """Return the (layer, head) of highest mean F4, ties broken by Sel@1 and then by DD."""
    order = np.lexsort([getattr(scores, name).mean(axis=0).ravel() for name in ("dd", "sel1", "f4")])
    layer, head = np.unravel_index(order[-1], scores.f4.shape[1:])
    return int(layer), int(head)
