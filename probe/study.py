"""How heads are studied, whatever the question: chosen on some items, tested once on others.

    items        from the stories, or from passages, in two parts that share no document or word
    numbers      one for each item and head, measured in one pass (`Sample`)
    choose       a head, on the first part
    test         it once on the second part, corrected for the search over all heads
    compare      with heads of untrained models
    judge        by criteria that were fixed in advance (`probe.verdict`)

`probe.next_pronoun` (effects on the model's decision) does these steps by `choose_and_test`. `probe.links` (attention
to the antecedent) needs two tests and its own choice, by accuracy, and lets each untrained model choose a head too; it
tests by `Sample`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from probe.config import ProbeConfig
from probe.results import Estimate
from probe.statistics import Design, MaxT, max_t_test, mean_interval, ratio_interval

Place = tuple[int, ...]  # where a head stands in `Sample.values`: (layer, head) or (candidate,)
_FLIPS_FOR_T = 100  # t does not depend on the number of sign flips


@dataclass(frozen=True)
class Sample:
    """A number of every head for each of N items, and which items depend on each other."""

    values: np.ndarray  # [N, ...], the other axes are those of a `Place`
    clusterings: Sequence[np.ndarray]  # each [N], for the test
    designs: Sequence[Design]  # for the intervals

    def test(self, config: ProbeConfig, *, centre: float = 0.0, two_sided: bool = False) -> MaxT:
        """Return the max-T test that the means are above `centre`, or with `two_sided` differ from it."""
        return max_t_test(self.values, self.clusterings, centre, config.n_bootstrap, config.seed, two_sided=two_sided)

    def t(self, config: ProbeConfig, *, two_sided: bool = False) -> np.ndarray:
        """Return the studentised mean of every head, [...]."""
        seed = config.seed
        return max_t_test(self.values, self.clusterings, 0.0, _FLIPS_FOR_T, seed, two_sided=two_sided).t

    def largest_t(self, config: ProbeConfig, *, two_sided: bool = False) -> float:
        """Return the largest t of all heads, or with `two_sided` the largest |t|."""
        t = self.t(config, two_sided=two_sided)
        return float((np.abs(t) if two_sided else t).max())


@dataclass(frozen=True)
class HeadTests:
    """The chosen heads, and every head tested on the other part of the items."""

    chosen: list[Place]
    tested: MaxT
    untrained_t: list[float]  # for each untrained model the largest t (two-sided: |t|) of all its heads


def choose_and_test(
    choosing: Sample,
    tested: Sample,
    choose: Callable[[Sample], list[Place]],
    untrained: Iterable[Sample],
    config: ProbeConfig,
    *,
    two_sided: bool = False,
) -> HeadTests:
    """Choose heads on one sample and test all heads on the other, also in untrained models.

    `untrained` are the samples of untrained models on the tested items; they are consumed one at a time.
    """
    chosen = choose(choosing)
    test = tested.test(config, two_sided=two_sided)
    untrained_t = [sample.largest_t(config, two_sided=two_sided) for sample in untrained]
    return HeadTests(chosen, test, untrained_t)


def estimate_mean(values: np.ndarray, designs: Sequence[Design], config: ProbeConfig) -> Estimate:
    """Return the mean of values [N] with its interval; `designs` are those of `mean_interval`."""
    low, high = mean_interval(values, designs, config.n_bootstrap, config.seed).tolist()
    return Estimate(float(values.mean()), low, high)


def estimate_ratio(
    numerator: np.ndarray, denominator: np.ndarray, designs: Sequence[Design], config: ProbeConfig
) -> Estimate:
    """Return the ratio of the means of two values [N] with its interval; nan if the denominator is 0 everywhere."""
    if not denominator.any():
        return Estimate(float("nan"), float("nan"), float("nan"))
    low, high = ratio_interval(numerator, denominator, designs, config.n_bootstrap, config.seed).tolist()
    return Estimate(float(numerator.sum() / denominator.sum()), low, high)
