"""Intervals that cover what they say, and luck that reaches where it says."""

import numpy as np
import pytest

from probe.significance import cluster_interval, luck_line


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
