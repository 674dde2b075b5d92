"""Intervals that cover what they say, and luck that reaches where it says."""

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from probe.statistics import (
    cluster_interval,
    luck_line,
    max_t_p,
    ranks,
    seeds_interval,
    share_interval,
    two_way_interval,
)


def test_an_interval_covers_the_truth_in_about_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for trial in range(300):
        clusters = np.repeat(np.arange(40), 5)
        values = (rng.random(200) < np.repeat(rng.beta(8, 2, size=40), 5)).astype(float)
        low, high = cluster_interval(values, clusters, 400, seed=trial)
        covered += low <= 0.8 <= high
    assert 0.89 <= covered / 300 <= 0.99


def test_blocks_of_one_cluster_count_as_one() -> None:
    """Copying every block tenfold within its cluster must not make the interval narrower."""
    values = np.random.default_rng(1).random(30)
    once = cluster_interval(values, np.arange(30), 2000, seed=0)
    tenfold = cluster_interval(values.repeat(10), np.arange(30).repeat(10), 2000, seed=0)
    assert tenfold == pytest.approx(once)


def test_an_interval_of_a_constant_is_a_point() -> None:
    assert cluster_interval(np.ones(12), np.arange(12), 500, seed=0) == (1, 1)


def test_the_best_of_many_know_nothing_heads_passes_the_luck_line_in_about_5_of_100_cases() -> None:
    rng = np.random.default_rng(2)
    passed = 0
    for trial in range(300):
        values = rng.integers(0, 5, size=(60, 6, 6)) / 4  # Sel@1 of a block: 0, 1/4 .. 1
        line = luck_line(values, [np.arange(60)], 0.5, 400, seed=trial)
        passed += values.mean(axis=0).max() > line
    assert 0.01 <= passed / 300 <= 0.10


def test_more_heads_raise_the_line_and_more_templates_lower_it() -> None:
    rng = np.random.default_rng(3)

    def line(n_blocks: int, n_heads: int) -> float:
        return luck_line(
            rng.integers(0, 2, size=(n_blocks, n_heads)).astype(float), [np.arange(n_blocks)], 0.5, 1000, 0
        )

    assert line(50, 48) > line(50, 2)
    assert line(50, 48) > line(500, 48)


def test_a_taste_for_words_raises_the_line_once_words_are_a_way_to_cluster() -> None:
    templates, pairs = np.arange(60), np.arange(60) % 6
    taste = np.random.default_rng(4).integers(0, 3, size=(6, 8)) / 2  # of 8 heads for each of 6 pairs
    values = taste[pairs]
    by_template = luck_line(values, [templates], 0.5, 1000, 0)
    assert luck_line(values, [templates, pairs], 0.5, 1000, 0) > by_template + 0.05


class Design(NamedTuple):
    """Blocks that share templates and words."""

    template: np.ndarray
    first: np.ndarray
    second: np.ndarray

    @property
    def pair(self) -> np.ndarray:
        return self.first * 1000 + self.second


def design(n_templates: int, n_words: int, n_blocks: int, rng: np.random.Generator) -> Design:
    return Design(*(rng.integers(n, size=n_blocks) for n in (n_templates, n_words, n_words)))


def tastes(of: Design, n_heads: int, rng: np.random.Generator) -> np.ndarray:
    """Heads that know nothing: (u(first) - u(second)) / 2 of a random taste per word, and something per template."""
    per_word, per_template = rng.normal(size=(2, 100, n_heads)), rng.normal(size=(100, n_heads))
    noise = rng.normal(size=(len(of.first), n_heads)) / 2
    return per_word[0][of.first] - per_word[1][of.second] + per_template[of.template] / 2 + noise


def test_tastes_for_words_pass_no_oftener_than_they_should_and_flips_of_templates_alone_fail() -> None:
    """The family-wise error, over heads, at .01 and .05; u has a spread of 2, so u/2 of 1."""
    rng = np.random.default_rng(0)
    n_trials, passed, naive = 1200, {0.01: 0, 0.05: 0}, 0
    for trial in range(n_trials):
        of = design(37, 11, 211, rng)
        values = tastes(of, 7, rng)
        least = max_t_p(values, of, 0, 499, seed=trial).p.min()
        for level in passed:
            passed[level] += least <= level
        naive += max_t_p(values, of[:1], 0, 499, seed=trial).p.min() <= 0.05
    for level, count in passed.items():
        assert stats.binomtest(count, n_trials, level, alternative="greater").pvalue > 0.05, (level, count)
    assert share_interval(naive, n_trials)[0] > 0.4


def test_a_head_that_links_is_found_among_heads_with_tastes() -> None:
    rng = np.random.default_rng(1)
    found = others = 0
    for trial in range(40):
        of = design(37, 19, 211, rng)
        values = tastes(of, 7, rng)
        values[:, 3] += 2
        p = max_t_p(values, of, 0, 499, seed=trial).p
        found += p[3] < 0.01
        others += np.delete(p, 3).min() < 0.01
    assert found >= 30 and others <= 3


def test_every_pattern_of_signs_of_few_clusters_is_counted() -> None:
    """Against the definition, written out: one clustering, t = mean / spread of cluster means, equal sizes."""
    rng = np.random.default_rng(2)
    clusters = np.repeat(np.arange(7), 3)
    values = rng.normal(size=(21, 2, 5)) + 0.3
    found = max_t_p(values, [clusters], 0, 2000, seed=0)

    def t(means: np.ndarray) -> np.ndarray:
        return means.mean(axis=0) / means.std(axis=0, ddof=1)

    means = values.reshape(7, 3, 10).mean(axis=1)
    reached = [t(np.array(signs)[:, None] * means).max() for signs in itertools.product((1, -1), repeat=7)]
    expected = [np.mean(np.array(reached) >= one * (1 - 1e-9)) for one in t(means)]
    assert found.p.ravel() == pytest.approx(expected)
    assert (found.n_clusters, found.smallest_p) == (7, 1 / 128)


def test_a_perfect_head_reaches_the_smallest_p_and_six_words_never_reach_one_in_a_hundred() -> None:
    first, second = (one.ravel() for one in np.meshgrid(np.arange(6), np.arange(11)))
    values = np.random.default_rng(3).normal(size=(66, 3))
    values[:, 1] = 0.5
    found = max_t_p(values, (first, second), 0, 2048, seed=0)
    assert found.p[1] == found.smallest_p == 1 / 64
    assert max_t_p(values, (second,), 0, 2048, seed=0).p[1] == 1 / 2048


def test_drawn_signs_give_the_p_of_all_signs() -> None:
    rng = np.random.default_rng(4)
    clusters = np.repeat(np.arange(11), 5)
    values = rng.normal(size=(55, 3)) + 0.25
    every = max_t_p(values, [clusters], 0, 2048, seed=0)
    drawn = max_t_p(values, [clusters], 0, 2000, seed=0)
    assert drawn.smallest_p == 1 / 2001
    assert drawn.p == pytest.approx(every.p, abs=0.04)


def test_the_order_and_the_scale_of_a_head_do_not_change_its_p() -> None:
    rng = np.random.default_rng(5)
    of = design(13, 7, 101, rng)
    values = rng.normal(size=(101, 3, 5)) + 0.3
    p = max_t_p(values, of, 0, 300, seed=0).p
    assert p.shape == (3, 5)
    scaled = max_t_p((values * rng.uniform(0.1, 10, size=(3, 5)))[..., ::-1] + 0.5, of, 0.5, 300, seed=0).p
    assert scaled[..., ::-1] == pytest.approx(p)


def test_one_cluster_proves_nothing() -> None:
    found = max_t_p(np.ones((13, 2)), (np.arange(13), np.zeros(13)), 0, 100, seed=0)
    assert found.p.tolist() == [1, 1] and found.smallest_p == 1
    assert np.isnan(two_way_interval(np.ones(13), np.arange(13), [np.zeros(13)], 100, seed=0)).all()


@pytest.mark.parametrize("n_words", [7, 23])
def test_a_two_way_interval_covers_where_templates_and_words_matter_and_a_one_way_interval_does_not(
    n_words: int,
) -> None:
    rng = np.random.default_rng(6)
    n_trials, covered, one_way = 300, 0, 0
    for trial in range(n_trials):
        of = design(37, n_words, 151, rng)
        per_word, per_template = rng.normal(size=(2, n_words)), rng.normal(size=37)
        effects = per_word[0][of.first] + per_word[1][of.second] + per_template[of.template]
        values = effects + rng.normal(size=151)
        low, high = two_way_interval(values, of.template, (of.pair, of.first, of.second), 300, seed=trial)
        covered += low <= 0 <= high
        low, high = cluster_interval(values, of.template, 300, seed=trial)
        one_way += low <= 0 <= high
    assert covered / n_trials >= 0.93
    assert one_way / n_trials < 0.80


def test_a_two_way_interval_is_wider_when_few_words_are_behind_it() -> None:
    rng = np.random.default_rng(7)
    templates, words = np.arange(240) % 40, np.arange(240) % 48
    values = rng.normal(size=48)[words]
    few = two_way_interval(np.tile(values[:6], 40), templates, [np.arange(240) % 6], 500, seed=0)
    many = two_way_interval(values, templates, [words], 500, seed=0)
    assert np.ptp(few) > 1.5 * np.ptp(many)


def test_two_way_intervals_of_several_scores_are_those_of_each_and_the_widest_way_counts() -> None:
    rng = np.random.default_rng(8)
    of = design(11, 5, 67, rng)
    values = rng.normal(size=(67, 2, 3))
    together = two_way_interval(values, of.template, (of.pair, of.first), 200, seed=0)
    assert together.shape == (2, 2, 3)
    alone = [two_way_interval(values[:, 1, 2], of.template, [way], 200, seed=0) for way in (of.pair, of.first)]
    assert together[:, 1, 2] == pytest.approx(max(alone, key=np.ptp))
    assert two_way_interval(np.ones(67), of.template, (of.pair,), 200, seed=0) == pytest.approx(np.ones(2))


def test_seeds_need_five_and_their_interval_is_students() -> None:
    with pytest.raises(ValueError, match="at least 5"):
        seeds_interval([1, 2, 3, 4])
    low, high = seeds_interval([1, 2, 3, 4, 5])
    assert (low, high) == pytest.approx((3 - 2.7764 * 0.5**0.5, 3 + 2.7764 * 0.5**0.5), abs=1e-4)
    assert seeds_interval([1.0] * 5) == (1, 1)


def test_the_interval_of_a_share_is_exact() -> None:
    """0 of 200 found: the upper end solves (1 - p)^200 = .025."""
    low, high = share_interval(0, 200)
    assert low == 0 and high == pytest.approx(1 - 0.025 ** (1 / 200))


def test_ranks_are_those_of_scipy_ties_shared() -> None:
    values = np.random.default_rng(0).integers(0, 9, 31).astype(float)
    np.testing.assert_array_equal(ranks(values), stats.rankdata(values))
