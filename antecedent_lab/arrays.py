"""The test alone, for scores of heads that another program measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from probe.config import ProbeConfig
from probe.results import Estimate
from probe.statistics import Sample, chosen_again
from settings.errors import UserError
from settings.train import to_settings


@dataclass(frozen=True)
class HeadTest:
    """The head with the largest mean, and the tests of all heads. A head is its index."""

    head: tuple[int, ...]
    mean: Estimate  # with its 95 % interval; a little too high, as the same items chose the head
    p: np.ndarray  # one for each head, corrected for the search over all
    bar: float  # 95th percentile of the largest mean if no head is above `centre`
    chosen_again: float  # share of resampled items in which the same head has the largest mean
    rival: tuple[int, ...] | None  # the head with the next largest mean; None: there is one head only
    smallest_p: float  # that is possible with so few clusters: 1/4 with two, 1/64 with six

    def __str__(self) -> str:
        """Return one line."""
        mean = self.mean
        p = f"p {self.p[self.head]:.4f} (smallest possible p {self.smallest_p:.4f})"
        numbers = f"mean {mean.value:.3f} [{mean.low:.3f}, {mean.high:.3f}], {p}"
        others = f"bar {self.bar:.3f}, chosen again {self.chosen_again:.2f}, next {self.rival}"
        return f"head {self.head}: {numbers}, {others}"


def head_test(
    scores: ArrayLike,
    *clusters: Sequence[object] | np.ndarray,
    centre: float = 0.5,
    n_bootstrap: int = 2000,
    seed: int = 0,
) -> HeadTest:
    """Test whether heads score above `centre`, corrected for the search over all of them (`Sample.test`).

    `scores` [items, ...] has a number of each head for each item: 1 for right and 0 for wrong with `centre` .5, or a
    difference with `centre` 0; where there is no head, as in some layers of a hybrid, it is nan in all items. Each of
    `clusters` [items] says which items depend on each other, such as the sentence frame, and the noun: whole clusters
    are flipped and drawn. If a noun is the first in one item and the second in another, give both nouns as one array
    [items, 2]. Without any, items are independent. The interval and `chosen_again` are of the same items as the choice:
    choose on other items if the size of the mean matters.
    UserError for scores that are not finite numbers, outside 0 to 1 with `centre` .5, or nowhere below 0 with `centre`
    0, and for clusters of another length or with an unknown label.
    """
    if not (isinstance(centre, int | float | np.number) and np.isfinite(centre)):
        raise UserError("head_test: centre must be a finite number")
    form = "scores [items, layers, heads] must be finite real numbers without a mask"
    try:
        values = np.atleast_1d(scores).astype(float, casting="same_kind")
    except (TypeError, ValueError, RuntimeError) as problem:
        raise UserError(f"head_test: {form}: {problem}") from problem
    is_head = ~np.isnan(values).all(axis=0)
    is_known = values.ndim > 1 and is_head.any() and np.isfinite(values[:, is_head]).all()
    if not is_known or np.ma.isMaskedArray(scores):
        raise UserError(f"head_test: {form}, or nan in all items where there is no head")
    if centre == 0.5 and (np.nanmin(values) < 0 or np.nanmax(values) > 1):
        raise UserError("head_test: scores outside 0 to 1 are differences, which have centre=0")
    if centre == 0 and np.nanmin(values) >= 0:
        raise UserError("head_test: no score is below 0, so these are no differences, as centre=0 needs")
    if any(map(np.ma.isMaskedArray, clusters)):
        raise UserError("head_test: clusters: must have no mask, as a masked value is no label")
    labels = [np.asarray(each).astype(str) for each in clusters] or [np.arange(len(values)).astype(str)]
    for each in labels:
        # Unknown values as Python, numpy and pandas write them, and an empty cell of a table
        if np.isin(each, ["None", "nan", "NaT", "<NA>", ""]).any():
            raise UserError("head_test: clusters: an unknown value, as None, nan or an empty text, is no label")
        if each.shape not in {(len(values),), (len(values), 2)} or len(np.unique(each)) < 2:
            raise UserError(
                f"head_test: clusters: give {len(values)} labels, one or two an item, two of them different"
            )

    config = to_settings(ProbeConfig, {"n_bootstrap": n_bootstrap, "seed": seed}, "head_test: ")
    means = values.mean(axis=0)
    order = np.argsort(-means, axis=None, kind="stable")  # nan, of no head, last
    head, *others = [tuple(map(int, np.unravel_index(i, means.shape))) for i in order[: is_head.sum()]]
    sample = Sample(values, labels, [labels])
    test = sample.test(config, centre=centre)
    return HeadTest(
        head=head,
        mean=Sample(values.reshape(len(values), -1)[:, order[0]], labels, [labels]).mean(config),
        p=test.p,
        bar=sample.chance_level(n_bootstrap, seed, centre),
        chosen_again=chosen_again([values, np.broadcast_to(is_head, values.shape)], labels, seed),
        rival=next(iter(others), None),
        smallest_p=test.smallest_p,
    )
