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
    exact = preference.astype(np.float64)  # in single precision a mean depends on the order of its terms
    mean = cells(exact).mean(axis=2)  # over the two pronouns of one prefix
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


@dataclass(frozen=True, slots=True)
class Factorial:
    """What lambda is made of, in each head: effects b of a regression on contrasts of +1 and -1. Axes: ... heads.

    A block's four cells, order x meant, bear four effects and no more: the mean, *first* (+1 where the antecedent is
    mentioned first), *member* (+1 where the pair's first member is meant) and their product, which is the order.
    Within a block the pronoun and the member that is meant are the same thing, since the pair's first member is
    always the singular, the feminine or the animal one. What the blocks share of the member effect is called
    `pronoun`: a taste for the singular, or sharper looks at "It", which cannot be told apart. What differs from
    noun to noun is called `lexical`: its standard deviation over words, from how alike two blocks are that share a
    word, so that noise does not count as taste.
    """

    coreference: np.ndarray  # b0: lambda over balanced cells, position, taste and pronoun cancelled
    first: np.ndarray  # bf: half of what being mentioned first is worth
    pronoun: np.ndarray  # bg: the member effect that all nouns share
    lexical: np.ndarray  # bx, 0 or more: SD of the member effect over words; nan where no two blocks share a word
    order: np.ndarray  # first x member: the interaction

    @property
    def share(self) -> np.ndarray:
        """Coreference's share, b0^2 / sum of b^2; nan for a head whose lambda is always 0."""
        effects = np.stack([self.coreference, self.first, self.pronoun, self.lexical, self.order]) ** 2
        total = effects.sum(axis=0)
        return np.divide(effects[0], total, out=np.full_like(total, np.nan), where=total != 0)


# Of the cells (order, meant) = (0, 0), (0, 1), (1, 0), (1, 1).
_CONTRASTS = {"coreference": (1, 1, 1, 1), "first": (1, -1, -1, 1), "member": (1, -1, 1, -1), "order": (1, 1, -1, -1)}


def factorial(preference: np.ndarray, items: Sequence[LinkItem]) -> Factorial:
    """Take lambda [4 N_b, ...] of whole blocks apart; the effects are those of ordinary least squares."""
    check_blocks(items)
    cells = preference.reshape(-1, 4, *preference.shape[1:]).astype(float)  # [N_b, 4, ...]
    effect = {name: np.tensordot(signs, cells, (0, 1)) / 4 for name, signs in _CONTRASTS.items()}  # each [N_b, ...]
    taste = effect["member"] - effect["member"].mean(axis=0)
    words = np.array([item.pair.split()[:2] for item in items[::4]]).T
    variance = sum(_shared_variance(taste, some) for some in words)
    return Factorial(
        coreference=effect["coreference"].mean(axis=0),
        first=effect["first"].mean(axis=0),
        pronoun=effect["member"].mean(axis=0),
        lexical=np.sqrt(variance),
        order=effect["order"].mean(axis=0),
    )


def _shared_variance(deviations: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the mean product of two deviations [N_b, ...] of one group, at least 0: the variance over groups.

    Unlike the variance of the groups' means it holds no noise: noise is not shared. nan where no group has two.
    """
    _, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    sums = np.zeros((len(sizes), *deviations.shape[1:]))
    np.add.at(sums, index, deviations)
    n_products = (sizes * (sizes - 1)).sum()
    if not n_products:
        return np.full(deviations.shape[1:], np.nan)
    return np.maximum(((sums**2).sum(axis=0) - (deviations**2).sum(axis=0)) / n_products, 0)
