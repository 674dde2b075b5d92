"""Intervals have their nominal coverage, and tests keep their error rate under clustering."""

import itertools
from collections import Counter
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from scipy import stats

from probe.statistics import (
    MIN_CLUSTERS,
    bootstrap_interval,
    cap_clusters,
    chance_level,
    cluster_interval,
    count_clusters,
    largest,
    max_t_test,
    mean_interval,
    random_half,
    ratio_interval,
    share_interval,
    similar_heads,
    story_clusters,
    story_designs,
    wilson_interval,
)
from tests.probe.pair_items import noun_items


class Blocks(NamedTuple):
    """Three clusterings of the same blocks."""

    frame: np.ndarray
    first: np.ndarray
    second: np.ndarray


def draw_blocks(n_frames: int, n_words: int, n_blocks: int, rng: np.random.Generator) -> Blocks:
    return Blocks(*(rng.integers(n, size=n_blocks) for n in (n_frames, n_words, n_words)))


def null_scores(blocks: Blocks, n_heads: int, rng: np.random.Generator) -> np.ndarray:
    """Scores of mean 0 with random effects of each word and each frame."""
    per_word = rng.normal(size=(2, 100, n_heads))
    per_frame = rng.normal(size=(100, n_heads))
    noise = rng.normal(size=(len(blocks.first), n_heads)) / 2
    return per_word[0][blocks.first] - per_word[1][blocks.second] + per_frame[blocks.frame] / 2 + noise


def test_the_cluster_bootstrap_covers_the_mean_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    clusters = np.repeat(np.arange(40), 5)
    covered = 0
    for trial in range(300):
        values = rng.random(200) < np.repeat(rng.beta(8, 2, size=40), 5)
        low, high = mean_interval(values, [(clusters,)], 400, seed=trial)
        covered += low <= 0.8 <= high
    assert 0.91 <= covered / 300 <= 0.99


def test_repeating_blocks_inside_their_cluster_does_not_narrow_the_interval() -> None:
    values = np.random.default_rng(1).random(30)
    once = mean_interval(values, [(np.arange(30),)], 2000, seed=0)
    tenfold = mean_interval(values.repeat(10), [(np.arange(30).repeat(10),)], 2000, seed=0)
    assert tenfold == pytest.approx(once)


def test_the_interval_of_a_constant_is_a_point() -> None:
    assert mean_interval(np.full(12, 0.3), [(np.arange(12) // 2,)], 500, seed=0) == pytest.approx([0.3, 0.3])


def test_one_cluster_gives_no_interval() -> None:
    clusters = np.arange(12)
    assert np.isnan(mean_interval(np.arange(12.0), [(clusters, np.zeros(12))], 200, seed=0)).all()


@pytest.mark.parametrize("n_words", [6, 11])
def test_the_crossed_bootstrap_covers_where_one_clustering_is_too_narrow(n_words: int) -> None:
    rng = np.random.default_rng(6)
    n_trials = 250
    crossed = 0
    frames_only = 0
    for trial in range(n_trials):
        blocks = draw_blocks(37, n_words, 151, rng)
        per_word = rng.normal(size=(2, n_words))
        per_frame = rng.normal(size=37)
        values = per_word[0][blocks.first] + per_word[1][blocks.second] + per_frame[blocks.frame]
        values += rng.normal(size=151)
        clusters = {"frames": blocks.frame, "first_words": blocks.first, "second_words": blocks.second}
        designs = story_designs(clusters | {"pairs": blocks.first * 1000 + blocks.second})
        low, high = mean_interval(values, designs, 300, seed=trial)
        crossed += low <= 0 <= high
        low, high = mean_interval(values, [(blocks.frame,)], 300, seed=trial)
        frames_only += low <= 0 <= high
    assert crossed / n_trials >= 0.92
    assert frames_only / n_trials < 0.80


def test_the_widest_design_counts_for_each_score() -> None:
    rng = np.random.default_rng(8)
    blocks = draw_blocks(11, 5, 67, rng)
    values = rng.normal(size=(67, 2, 3))
    designs = [(blocks.frame, blocks.first), (blocks.frame, blocks.second)]
    together = mean_interval(values, designs, 200, seed=0)
    alone = [mean_interval(values[:, 1, 2], [design], 200, seed=0) for design in designs]
    assert together.shape == (2, 2, 3)
    assert together[:, 1, 2] == pytest.approx(max(alone, key=np.ptp))


def test_any_weighted_statistic_can_be_bootstrapped() -> None:
    """The variance of normal values, weights being counts: its interval is near the chi-square interval."""
    values = np.random.default_rng(10).normal(size=500)

    def variance(weights: np.ndarray) -> np.ndarray:
        shares = weights / weights.sum(axis=1, keepdims=True)
        return shares @ values**2 - (shares @ values) ** 2

    interval = bootstrap_interval(variance, [(np.arange(500),)], 2000, seed=0)
    expected = 499 * values.var(ddof=1) / stats.chi2.ppf([0.975, 0.025], 499)
    assert interval == pytest.approx(expected, rel=0.05)


def test_the_best_of_many_chance_heads_passes_the_chance_level_in_5_of_100_cases() -> None:
    rng = np.random.default_rng(2)
    passed = 0
    for trial in range(300):
        values = rng.integers(0, 5, size=(60, 6, 6)) / 4  # accuracy of a block: 0, 1/4 .. 1
        passed += values.mean(axis=0).max() > chance_level(values, [np.arange(60)], 0.5, 400, seed=trial)
    assert 0.01 <= passed / 300 <= 0.10


def test_with_effects_of_words_and_frames_the_chance_level_is_conservative_and_that_of_frames_alone_is_not() -> None:
    rng = np.random.default_rng(5)
    passed = {"all": 0, "frames": 0}
    for trial in range(200):
        blocks = draw_blocks(37, 11, 211, rng)
        values = null_scores(blocks, 8, rng)
        best = values.mean(axis=0).max()
        clusterings = [blocks.frame, blocks.first, blocks.second]
        passed["all"] += best > chance_level(values, clusterings, 0.0, 200, trial)
        passed["frames"] += best > chance_level(values, clusterings[:1], 0.0, 200, trial)
    assert passed["all"] <= 0.05 * 200
    assert passed["frames"] > 0.2 * 200


def test_the_chance_level_rises_with_heads_and_falls_with_clusters() -> None:
    rng = np.random.default_rng(3)

    def level(n_blocks: int, n_heads: int) -> float:
        values = rng.integers(0, 2, size=(n_blocks, n_heads)).astype(float)
        return chance_level(values, [np.arange(n_blocks)], 0.5, 1000, 0)

    assert level(50, 48) > level(50, 2)
    assert level(50, 48) > level(500, 48)


def test_effects_of_few_words_raise_the_chance_level() -> None:
    frames = np.arange(60)
    pairs = np.arange(60) % 6
    values = (np.random.default_rng(4).integers(0, 3, size=(6, 8)) / 2)[pairs]  # 8 heads, one score per pair
    by_frame = chance_level(values, [frames], 0.5, 1000, 0)
    assert chance_level(values, [frames, pairs], 0.5, 1000, 0) > by_frame + 0.05


def test_word_effects_pass_max_t_no_more_often_than_its_level_and_flips_of_frames_alone_fail() -> None:
    rng = np.random.default_rng(0)
    n_trials = 600
    passed = {0.01: 0, 0.05: 0}
    frames_only = 0
    for trial in range(n_trials):
        blocks = draw_blocks(37, 11, 211, rng)
        values = null_scores(blocks, 7, rng)
        smallest = max_t_test(values, blocks, 0, 299, seed=trial).p.min()
        for level in passed:
            passed[level] += smallest <= level
        frames_only += max_t_test(values, blocks[:1], 0, 299, seed=trial).p.min() <= 0.05
    for level, count in passed.items():
        assert stats.binomtest(count, n_trials, level, alternative="greater").pvalue > 0.05, (level, count)
    assert share_interval(frames_only, n_trials)[0] > 0.4


def test_max_t_finds_the_linking_head_among_heads_with_word_effects() -> None:
    rng = np.random.default_rng(1)
    detected = false_alarms = 0
    for trial in range(40):
        blocks = draw_blocks(37, 19, 211, rng)
        values = null_scores(blocks, 7, rng)
        values[:, 3] += 2
        p = max_t_test(values, blocks, 0, 499, seed=trial).p
        detected += p[3] < 0.01
        false_alarms += np.delete(p, 3).min() < 0.01
    assert detected >= 30
    assert false_alarms <= 3


def test_few_clusters_enumerate_every_sign_pattern() -> None:
    """Against the definition: one clustering of equal sizes, t = mean / standard error of the cluster means."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(21, 2, 5)) + 0.3
    means = values.reshape(7, 3, 10).mean(axis=1)

    def t(cluster_means: np.ndarray) -> np.ndarray:
        return cluster_means.mean(axis=0) / cluster_means.std(axis=0, ddof=1)

    null = np.array([t(np.array(signs)[:, None] * means).max() for signs in itertools.product((1, -1), repeat=7)])
    test = max_t_test(values, [np.repeat(np.arange(7), 3)], 0, 2000, seed=0)
    assert test.p.ravel() == pytest.approx([np.mean(null >= value * (1 - 1e-9)) for value in t(means)])
    assert test.smallest_p == 1 / 128


def test_one_cluster_gives_p_of_one() -> None:
    test = max_t_test(np.ones((8, 2)), [np.zeros(8)], 0, 99, seed=0)
    assert test.p.tolist() == [1, 1]


def test_the_share_interval_is_exact() -> None:
    """None of 200: the upper end solves (1 - p)^200 = .025."""
    assert share_interval(0, 200) == pytest.approx((0, 1 - 0.025 ** (1 / 200)))


def test_the_wilson_interval_is_scipys_for_whole_counts() -> None:
    expected = stats.binomtest(13, 41).proportion_ci(method="wilson")
    assert wilson_interval(13 / 41, 41) == pytest.approx((expected.low, expected.high))


def test_similar_heads_are_ordered_by_their_correlation_without_the_head_itself_and_constant_ones() -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(50, 2, 3))
    values[:, 1, 2] = -2 * values[:, 0, 1] + 0.1 * rng.normal(size=50)
    values[:, 1, 0] = values[:, 0, 1] + rng.normal(size=50)
    values[:, 0, 0] = 7.0
    similar = similar_heads(values, (0, 1), n=9)
    assert [head.place for head in similar[:2]] == [(1, 2), (1, 0)]
    assert {head.place for head in similar} == {(0, 2), (1, 0), (1, 1), (1, 2)}
    for head in similar:
        expected = np.corrcoef(values[:, 0, 1], values[:, *head.place])[0, 1]
        np.testing.assert_allclose(head.r, expected)


def test_the_interval_of_a_ratio_is_that_of_the_mean_if_the_denominator_is_constant() -> None:
    rng = np.random.default_rng(11)
    values = rng.normal(size=40)
    designs = [(rng.integers(9, size=40), rng.integers(7, size=40))]
    expected = mean_interval(values, designs, 300, seed=0) / 2
    assert ratio_interval(values, np.full(40, 2.0), designs, 300, seed=0) == pytest.approx(expected)


def test_one_clustering_has_an_interval_only_with_enough_clusters() -> None:
    values = np.arange(20.0)
    clusters = np.arange(20) % MIN_CLUSTERS
    assert cluster_interval(values, np.minimum(clusters, MIN_CLUSTERS - 2), 200, 0) is None
    expected = mean_interval(values, [(clusters,)], 200, 0)
    assert cluster_interval(values, clusters, 200, 0) == pytest.approx(tuple(expected))


def test_the_clusters_of_items_are_their_frames_words_and_pairs() -> None:
    clusters = story_clusters(noun_items()[::4])
    assert clusters["pairs"].tolist() == ["6 7", "8 9", "6 9", "8 7"]
    assert clusters["second_words"].tolist() == ["7", "9", "9", "7"]
    counts = count_clusters(clusters)
    assert (counts.frames, counts.first_words, counts.second_words, counts.pairs) == (4, 2, 2, 4)


def test_a_random_half_has_whole_clusters() -> None:
    clusters = np.array(list("aabbccddee"))
    is_chosen = random_half(clusters, seed=3)
    assert len(set(clusters[is_chosen])) == 2 and not set(clusters[is_chosen]) & set(clusters[~is_chosen])


def test_the_first_of_the_largest_values_is_found() -> None:
    assert largest(np.array([[1.0, 5.0], [5.0, 2.0]])) == (0, 1)


# Caps of clusters


def labels(text: str) -> np.ndarray:
    return np.array([label.replace("-", "") for label in text.split()], dtype=object)


def test_no_cluster_is_above_the_share_of_what_remains() -> None:
    # Three of "a" would be more than a quarter of 9; two are a quarter of 8.
    assert cap_clusters([labels("a a a a a a b c d e f g")], 0.25, 100) == [0, 1, 6, 7, 8, 9, 10, 11]
    assert cap_clusters([labels("a a a")], 0.25, 100) == [0]  # a cluster may always have one value
    names = Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=400)
    first = np.array(names)
    second = np.array(Random(1).choices("abcdefghijklmnopqrstuvwxy", weights=range(25), k=400))
    kept = cap_clusters([first, second], 0.1, 150)
    assert 100 < len(kept) <= 150
    for clusters in (first, second):
        assert max(Counter(clusters[kept]).values()) <= 0.1 * len(kept)


def test_the_cap_keeps_the_order_and_the_limit() -> None:
    assert cap_clusters([labels("a b c d e f")], 0.5, 4) == [0, 1, 2, 3]
    assert cap_clusters([labels("a a b b"), labels("x y x y")], 0.5, 2) == [0, 3]


def test_values_without_a_label_belong_to_no_cluster() -> None:
    assert cap_clusters([labels("- - - - - -")], 0.1, 5) == [0, 1, 2, 3, 4]
    assert cap_clusters([labels("a a - - - -"), labels("- - x x y z")], 0.2, 100) == [0, 2, 4, 5]
