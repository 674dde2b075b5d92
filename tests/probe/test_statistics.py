"""Intervals have their nominal coverage, and tests keep their error rate under clustering."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from data.pairs import Items
from probe.config import ProbeConfig
from probe.results import Estimate
from probe.statistics import Sample, estimate_ratios, mean_and_range, ratio_interval, share_interval
from tests.probe.factories import noun_pairs, passage_items

CONFIG = ProbeConfig(n_bootstrap=400)


def mean_interval(values, designs, n_bootstrap, seed):
    return ratio_interval(values[:, None], np.ones(len(values)), designs, n_bootstrap, seed)[:, 0]


def null_scores(n_heads, rng):
    """Return the frame, first and second word of 211 blocks, and scores of mean 0 with random effects of each."""
    blocks = [rng.integers(n, size=211) for n in (37, 11, 11)]
    scores = rng.normal(size=(211, n_heads)) / 2
    for size, labels in zip((0.5, 1, 1), blocks, strict=True):
        scores += size * rng.normal(size=(37, n_heads))[labels]
    return blocks, scores


@pytest.mark.parametrize("n_words", [6, 11])
def test_the_crossed_bootstrap_covers_where_one_clustering_is_too_narrow(n_words):
    rng = np.random.default_rng(6)
    n_trials = 250
    crossed = 0
    frames_only = 0
    for trial in range(n_trials):
        frame, first, second = (rng.integers(n, size=151) for n in (37, n_words, n_words))
        per_word = rng.normal(size=(2, n_words))
        per_frame = rng.normal(size=37)
        values = per_word[0][first] + per_word[1][second] + per_frame[frame] + rng.normal(size=151)
        designs = [(frame, labels) for labels in (first, second, first * 1000 + second)]
        low, high = mean_interval(values, designs, 300, seed=trial)
        crossed += low <= 0 <= high
        low, high = mean_interval(values, [(frame,)], 300, seed=trial)
        frames_only += low <= 0 <= high
    assert crossed / n_trials >= 0.92
    assert frames_only / n_trials < 0.80


def test_the_chance_level_is_conservative_and_that_of_frames_alone_is_not():
    rng = np.random.default_rng(5)
    passed = {"all": 0, "frames": 0}
    for trial in range(200):
        blocks, scores = null_scores(8, rng)
        best = scores.mean(axis=0).max() + 0.5
        passed["all"] += best > Sample(scores + 0.5, blocks, []).chance_level(200, trial)
        passed["frames"] += best > Sample(scores + 0.5, blocks[:1], []).chance_level(200, trial)
    assert passed["all"] <= 0.05 * 200
    assert passed["frames"] > 0.2 * 200


def test_word_effects_pass_max_t_at_its_level_and_flips_of_frames_alone_fail():
    rng = np.random.default_rng(0)
    n_trials = 600
    passed = {0.01: 0, 0.05: 0}
    frames_only = 0
    for trial in range(n_trials):
        blocks, values = null_scores(7, rng)
        config = ProbeConfig(n_bootstrap=299, seed=trial)
        smallest = Sample(values, blocks, []).test(config).p.min()
        for level in passed:
            passed[level] += smallest <= level
        frames_only += Sample(values, blocks[:1], []).test(config).p.min() <= 0.05
    for level, count in passed.items():
        assert stats.binomtest(count, n_trials, level, alternative="greater").pvalue > 0.05, (level, count)
    assert share_interval(frames_only, n_trials)[0] > 0.4


def test_words_that_stand_in_both_places_are_one_clustering():
    """An effect of each word, whichever place it has: two clusterings would take it for two independent ones."""
    rng = np.random.default_rng(3)
    n_trials = 200
    wrong = {"shared": 0, "apart": 0}
    covered = {"shared": 0, "apart": 0}
    for trial in range(n_trials):
        words = np.array([rng.choice(12, size=2, replace=False) for _ in range(400)])
        values = rng.normal(size=12)[words].sum(axis=1)[:, None] + rng.normal(size=(400, 1))
        frames = rng.integers(17, size=400)
        clusterings = {"shared": [frames, words], "apart": [frames, *words.T]}
        for name, [_, *of_words] in clusterings.items():
            pairs = words[:, 0] * 12 + words[:, 1]
            sample = Sample(values, clusterings[name], [(frames, labels) for labels in (pairs, *of_words)])
            config = ProbeConfig(n_bootstrap=299, seed=trial)
            wrong[name] += sample.test(config).p[0] <= 0.05
            estimate = sample.means(config)[0]
            covered[name] += estimate.low <= 0 <= estimate.high
    assert stats.binomtest(wrong["shared"], n_trials, 0.05, alternative="greater").pvalue > 0.05
    assert covered["shared"] / n_trials >= 0.88 and covered["apart"] / n_trials < 0.80


def test_few_clusters_enumerate_every_sign_pattern():
    """Against the definition: one clustering of equal sizes, t = mean / standard error of the cluster means."""
    rng = np.random.default_rng(2)
    values = rng.normal(size=(21, 2, 5)) + 0.3
    means = values.reshape(7, 3, 10).mean(axis=1)

    def t(cluster_means):
        return cluster_means.mean(axis=0) / cluster_means.std(axis=0, ddof=1)

    null = np.array([t(np.array(signs)[:, None] * means).max() for signs in itertools.product((1, -1), repeat=7)])
    test = Sample(values, [np.repeat(np.arange(7), 3)], []).test(ProbeConfig())
    assert test.p.ravel() == pytest.approx([np.mean(null >= value * (1 - 1e-9)) for value in t(means)])
    assert test.smallest_p == 1 / 128


def test_a_column_of_nan_is_no_head_and_changes_no_other():
    blocks, scores = null_scores(3, np.random.default_rng(2))
    with_gap = np.insert(scores, 1, np.nan, axis=1).reshape(-1, 2, 2)
    heads, padded = Sample(scores, blocks, []), Sample(with_gap, blocks, [])
    found, expected = padded.test(CONFIG), heads.test(CONFIG)
    assert np.isnan(found.p[0, 1]) and np.isnan(found.t[0, 1])
    assert found.p[~np.isnan(found.p)].tolist() == expected.p.tolist()
    assert padded.chance_level(100, 0) == heads.chance_level(100, 0)


def test_a_ratio_is_one_of_means_and_unknown_if_nothing_is_divided_or_with_one_cluster():
    values = np.arange(1.0, 9.0)
    ratio = estimate_ratios({"swap": 2 * values}, values, noun_pairs(), CONFIG)["swap"]
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((2.0, 2.0, 2.0))
    assert np.isnan(estimate_ratios({"swap": values}, 0 * values, noun_pairs(), CONFIG)["swap"].value)
    assert np.isnan(estimate_ratios({"swap": values[:0]}, values[:0], Items([]), CONFIG)["swap"].value)
    assert np.isnan(mean_interval(values, [(np.arange(8), np.zeros(8))], 200, seed=0)).all()
    assert mean_and_range([3.0, 1.0, 5.0]) == Estimate(3.0, 1.0, 5.0)


def test_clusters_are_frames_and_words_by_pair_or_block():
    items = noun_pairs()
    assert items.n_clusters() == {"frames": 4, "first_words": 2, "second_words": 2, "pairs": 4}
    by_block = [["t0", "t1", "t2", "t3"], ["6", "8", "6", "8"], ["7", "9", "9", "7"]]
    assert np.array(items.clusterings(4)).tolist() == by_block
    assert np.array(items.clusterings(8)).tolist() == np.repeat(by_block, 2, axis=1).tolist()
    frames, *words = by_block
    both = ["6 7", "8 9", "6 9", "8 7"]
    assert np.array(items.designs(4)).tolist() == [[frames, labels] for labels in (both, *words)]

    # Nouns that stand in both places
    turned = [replace(pair, clusters=(pair.clusters[0], *pair.clusters[:0:-1])) for pair in items.pairs]
    _, places = Items([*items.pairs, *turned]).clusterings(8)
    assert places[[0, 4]].tolist() == [["6", "7"], ["7", "6"]]


def test_clusters_of_passages_are_documents_and_entities_and_one_without_is_alone():
    items = passage_items()
    labels = zip(*(pair.clusters for pair in items.pairs), strict=True)
    for name, found, side in zip(items.n_clusters().items(), items.clusterings(), labels, strict=True):
        n_alone = side.count("")
        assert name[1] == len({*side} - {""}) == len({*found}) - n_alone
        assert (n_alone > 0) == (name[0] != "documents")
    assert len(items.designs()) == 2
