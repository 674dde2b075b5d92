"""Whose gender a head copies: the regression, its permutations and the share of the choice."""

import numpy as np
import pytest
from scipy import optimize, special

from extras.english.questions import TESTED
from extras.english.whose import (
    Known,
    area_under_curve,
    choice_gap,
    edge_coefficients,
    edges_by_form,
    found_beyond,
    permuted_within,
    share_of_choice,
    strata_of,
    word_values,
)
from probe.edits import EditedPairs
from probe.results import Head
from tests.probe import factories as made

RNG = np.random.default_rng(0)
FORM = RNG.normal(size=(900, 6))
PLACE = 2 * FORM[:, 0]
DOCUMENTS = np.repeat(np.arange(300), 3)
NOISE = RNG.normal(size=900)


def authors_of(log_odds, seed):
    """Return passages whose authors choose at random by `log_odds`; the place rule knows the first feature alone."""
    is_nearest = np.random.default_rng(seed).random(900) < special.expit(log_odds)
    return Known(is_nearest, PLACE, FORM, DOCUMENTS)


KNOWN = authors_of(PLACE, 0)


def p_of(edges, covariates, known=KNOWN):
    return found_beyond(edges, covariates, known.is_nearest, 0, 400)[1]


def test_coefficients_are_those_of_a_logistic_regression():
    edges = 0.8 * KNOWN.is_nearest + NOISE
    inputs = np.stack([np.ones(900), PLACE, (edges - edges.mean()) / edges.std()], axis=1)

    def loss(weights):
        return float(np.logaddexp(0, -KNOWN.to_nearest * (inputs @ weights)).sum())

    expected = optimize.minimize(loss, np.zeros(3), method="BFGS", options={"gtol": 1e-8}).x[2]
    labels = np.stack([KNOWN.is_nearest, ~KNOWN.is_nearest])
    assert edge_coefficients(labels, PLACE[:, None], edges) == pytest.approx([expected, -expected], abs=1e-3)


def test_edges_that_follow_a_rule_of_place_do_not_pass_and_edges_that_know_the_author_do():
    by_place = [p_of(PLACE + NOISE, PLACE[:, None], authors_of(PLACE, seed)) for seed in range(40)]
    assert np.mean(np.array(by_place) < 0.05) <= 0.15  # 2 of 40 are expected; more than 6 happen once in 300 times
    assert p_of(0.7 * KNOWN.is_nearest + NOISE, PLACE[:, None]) < 0.01
    assert p_of(-0.7 * KNOWN.is_nearest + NOISE, PLACE[:, None]) > 0.9


def test_edges_and_authors_that_share_a_rule_of_form_are_refused_by_what_form_predicts_of_the_edges_alone():
    by_rule = FORM[:, 0] + FORM[:, 1] * FORM[:, 2]
    known = authors_of(FORM[:, 0] + by_rule, 1)
    edges = by_rule + NOISE / 2
    assert p_of(edges, PLACE[:, None], known) < 0.01
    assert p_of(edges, known.covariates(edges), known) > 0.05
    knows = edges + 0.6 * known.to_nearest
    assert p_of(knows, known.covariates(knows), known) < 0.01


def test_what_form_predicts_of_edges_is_fitted_on_other_documents():
    edges = np.stack([FORM[:, 0] + FORM[:, 1] * FORM[:, 2], NOISE])
    rule, noise = edges_by_form(edges, FORM, DOCUMENTS)
    assert np.corrcoef(rule, edges[0])[0, 1] > 0.95 and abs(np.corrcoef(noise, NOISE)[0, 1]) < 0.1
    changed = edges_by_form(edges + 9 * (DOCUMENTS == 7), FORM, DOCUMENTS)
    same_fold = DOCUMENTS % 5 == 7 % 5
    np.testing.assert_allclose(changed[0, same_fold], rule[same_fold], atol=0.01)
    assert np.abs(changed[0] - rule)[~same_fold].max() > 0.01


@pytest.mark.parametrize("of_words", [False, True])
def test_a_reader_of_words_is_told_from_a_follower_of_form_that_no_feature_describes(of_words):
    form, *words = RNG.normal(size=(5, 900))  # what words add, in the passage and in three versions
    known = authors_of(FORM[:, 0] + 2 * (words[0] if of_words else form), 2)
    edges, *versions = (form + 0.8 * each for each in words)
    values = word_values(edges, np.stack(versions), known, 0)
    assert (values["p_words"].value < 0.01) == of_words
    assert of_words or values["p_form"].value < 0.01
    # Beyond the versions alone, the edges would know the form better, and seem to know words.
    assert p_of(edges, np.column_stack([PLACE, np.mean(versions, axis=0)]), known) < 0.01


def test_permutations_keep_the_labels_of_each_stratum():
    strata = strata_of(PLACE)
    assert (np.bincount(strata) == 45).all() and len(np.unique(strata_of(PLACE[:400]))) == 10
    permuted = permuted_within(KNOWN.is_nearest, strata, 5, np.random.default_rng(0))
    for row in permuted:
        np.testing.assert_array_equal(np.bincount(strata, row), np.bincount(strata, KNOWN.is_nearest))
    assert (permuted != KNOWN.is_nearest).any(axis=1).all()


def test_the_gap_is_a_mean_over_strata_and_an_area_counts_ties_as_half():
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


def test_a_head_whose_weights_are_split_evenly_chooses_nobody():
    """In a model with one head, all that is left of the decision is the stratum's mean."""
    two_people = made.passage_items().of("next_pronoun_gender", TESTED).where(lambda pair: pair.has_two)
    sites = EditedPairs(made.copying_model([3.0]), two_people, 1024)
    head = Head(0, 0)
    own = sites.log_odds(head)
    same = sites.split_margins([head], [own])
    even = sites.split_margins([head], [np.zeros_like(own)])
    assert np.abs(same.mean(axis=1) - sites.clean.mean(axis=1)).max() < 0.1
    assert np.ptp(even.mean(axis=1)) < 0.05 * np.ptp(sites.clean.mean(axis=1))
