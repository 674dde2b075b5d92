"""probe/study.py: heads are chosen on one part, tested once on the other, and compared with untrained models."""

import numpy as np
import pytest

from probe.config import ProbeConfig
from probe.study import Place, Sample, choose_and_test, estimate_mean, estimate_ratio

CONFIG = ProbeConfig(n_bootstrap=400)
CLUSTERS = np.repeat(np.arange(20), 4)


def sample(means: list[float], seed: int) -> Sample:
    """Return a sample of 80 items in 20 clusters; each head's values have standard deviation 1."""
    noise = np.random.default_rng(seed).normal(size=(len(CLUSTERS), len(means)))
    return Sample(noise + means, [CLUSTERS], [(CLUSTERS,)])


def largest_mean(values: Sample) -> list[Place]:
    return [(int(values.values.mean(axis=0).argmax()),)]


def test_the_head_is_chosen_on_one_part_and_tested_on_the_other() -> None:
    choosing, tested = sample([0.0, 2.0, 0.0], 0), sample([0.0, 2.0, 0.0], 1)
    tests = choose_and_test(choosing, tested, largest_mean, [], CONFIG)
    assert tests.chosen == [(1,)]
    assert tests.tested.p[1] < 0.01 < tests.tested.p[0]
    swapped = choose_and_test(sample([2.0, 0.0, 0.0], 0), tested, largest_mean, [], CONFIG)
    assert swapped.chosen == [(0,)] and swapped.tested.p[0] > 0.01


def test_untrained_models_give_their_largest_t_of_either_sign() -> None:
    tested, untrained = sample([0.0, 0.0], 1), sample([-2.0, 0.5], 2)
    one_sided = choose_and_test(tested, tested, largest_mean, [untrained], CONFIG)
    two_sided = choose_and_test(tested, tested, largest_mean, [untrained], CONFIG, two_sided=True)
    t = untrained.test(CONFIG).t
    assert one_sided.untrained_t == [pytest.approx(t[1])]
    assert two_sided.untrained_t == [pytest.approx(-t[0])]


def test_t_does_not_depend_on_the_number_of_flips() -> None:
    values = sample([0.3, -0.2], 3)
    assert np.array_equal(values.t(CONFIG), values.test(CONFIG).t)


def test_an_estimate_lies_within_its_interval_and_a_ratio_is_one_of_means() -> None:
    values = sample([1.0], 4).values[:, 0]
    mean = estimate_mean(values, [(CLUSTERS,)], CONFIG)
    assert mean.value == pytest.approx(values.mean())
    assert mean.low < mean.value < mean.high
    ratio = estimate_ratio(2 * values, values, [(CLUSTERS,)], CONFIG)
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert np.isnan(estimate_ratio(values, 0 * values, [(CLUSTERS,)], CONFIG).value)
