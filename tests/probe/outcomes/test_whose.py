"""Whose gender a head copies: the regression, its permutations and the share of the choice."""

import numpy as np
import pytest
from scipy import optimize, special

from probe.edits import Sites
from probe.outcomes.whose import (
    area_under_curve,
    choice_gap,
    edge_coefficients,
    permuted_within,
    share_of_choice,
    strata_of,
)
from probe.questions import TESTED
from probe.results import Head
from tests.probe import factories as made

RNG = np.random.default_rng(0)


PLACE = RNG.normal(0, 2, 600)


IS_NEAREST = RNG.random(600) < special.expit(PLACE)


def test_coefficients_are_those_of_a_logistic_regression() -> None:
    edges = 0.8 * IS_NEAREST + RNG.normal(0, 1, 600)
    inputs = np.stack([np.ones(600), PLACE, (edges - edges.mean()) / edges.std()], axis=1)

    def loss(weights: np.ndarray) -> float:
        return float(np.logaddexp(0, np.where(IS_NEAREST, -1, 1) * (inputs @ weights)).sum())

    expected = optimize.minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-8}).x[2]
    labels = np.stack([IS_NEAREST, ~IS_NEAREST])
    assert edge_coefficients(labels, PLACE[:, None], edges) == pytest.approx([expected, -expected], abs=1e-3)


def p_of(edges: np.ndarray, is_nearest: np.ndarray, seed: int) -> float:
    labels = permuted_within(is_nearest, strata_of(PLACE), 400, np.random.default_rng(seed))
    coefficients = edge_coefficients(np.vstack([is_nearest, labels]), PLACE[:, None], edges)
    return float((coefficients >= coefficients[0]).mean())


def test_edges_that_follow_a_rule_of_place_do_not_pass_and_edges_that_know_the_author_do() -> None:
    strata = strata_of(PLACE)
    authors = permuted_within(IS_NEAREST, strata, 40, np.random.default_rng(1))
    by_place = [p_of(PLACE + RNG.normal(0, 1, 600), author, i) for i, author in enumerate(authors)]
    assert np.mean(np.array(by_place) < 0.05) <= 0.15  # 2 of 40 are expected; more than 6 happen once in 300 times
    assert p_of(0.7 * IS_NEAREST + RNG.normal(0, 1, 600), IS_NEAREST, 0) < 0.01
    assert p_of(-0.7 * IS_NEAREST + RNG.normal(0, 1, 600), IS_NEAREST, 0) > 0.9


def test_permutations_keep_the_labels_of_each_stratum() -> None:
    strata = strata_of(PLACE)
    assert (np.bincount(strata) == 30).all() and len(np.unique(strata_of(PLACE[:400]))) == 10
    permuted = permuted_within(IS_NEAREST, strata, 5, np.random.default_rng(0))
    for row in permuted:
        np.testing.assert_array_equal(np.bincount(strata, row), np.bincount(strata, IS_NEAREST))
    assert (permuted != IS_NEAREST).any(axis=1).all()


def test_the_gap_is_a_mean_over_strata_and_an_area_counts_ties_as_half() -> None:
    decision = np.array([3.0, 1.0, 5.0, 0.0, 4.0, 4.0])
    is_nearest = np.array([True, False, True, True, False, False])
    strata = np.array([0, 0, 1, 1, 1, 1])
    counts = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 2, 0, 1, 1]])
    assert choice_gap(decision, is_nearest, strata, counts) == pytest.approx([(2 - 1.5 * 2) / 3, (2 + 1 * 2) / 3])
    # The first row chooses the other person, so no share of a choice of the author's person can be lost.
    half = np.stack([decision, decision / 2])
    assert share_of_choice(half, is_nearest, strata, counts).value == 0
    assert share_of_choice(half, ~is_nearest, strata, counts).value == pytest.approx(0.5)
    assert area_under_curve(np.array([1.0, 2.0, 2.0, 3.0]), np.array([False, False, True, True])) == 0.875


def test_a_head_whose_weights_are_split_evenly_chooses_nobody() -> None:
    """In a model with one head, all that is left of the decision is the stratum's mean."""
    two_people = made.passage_items().of("next_pronoun_gender", TESTED).where(lambda pair: pair.has_two)
    sites = Sites(made.copying_model([3.0]), two_people, 1024)
    head = Head(0, 0)
    own = sites.log_odds(head)
    same = sites.split_margins([head], [own])
    even = sites.split_margins([head], [np.zeros_like(own)])
    assert np.abs(same.mean(axis=1) - sites.clean.mean(axis=1)).max() < 0.1
    assert np.ptp(even.mean(axis=1)) < 0.05 * np.ptp(sites.clean.mean(axis=1))
