"""Runs of a sweep: what holds over training seeds, and exact tests of differences paired by seed."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from data.errors import UserError
from data.typed_json import from_json, to_json
from probe.results import Head
from probe.seeds import QuestionOverSeeds, SeedsResult, SweepRun, mean_over_runs, over_seeds
from probe.variants import Variant, by_variant, compare_runs, compared_question, mean_difference, measured
from tests.probe.sweep_runs import BASE, TIED, UNMASKED, WORSE, finding, five_runs, seed_run, sweep_run, variant_runs


def number(runs: list[SweepRun]) -> QuestionOverSeeds:
    return over_seeds(runs).questions[0]


@pytest.mark.parametrize(("outcome", "question"), [("attention", "number"), ("edge", "next_pronoun_gender")])
@pytest.mark.parametrize(("n_seeds", "n_sets"), [(4, 0), (5, 0), (5, 1), (5, 2)])
def test_level_e4_needs_four_of_five_seeds_and_for_attention_heads_alone(
    outcome: str, question: str, n_seeds: int, n_sets: int
) -> None:
    sets = [[Head(0, 1), Head(1, 1)]] * n_sets + [[Head(0, 0)]] * (n_seeds - n_sets)
    runs = [sweep_run(seed, [finding(*heads, question=question, outcome=outcome)]) for seed, heads in enumerate(sets)]
    levels = number(runs).levels
    is_edge = outcome == "edge"
    of_head = "E4" if n_seeds == 5 and (is_edge or n_sets < 2) else "E3"
    assert levels == [of_head if is_edge else "E3"] * n_sets + [of_head] * (n_seeds - n_sets)


def test_only_questions_of_all_runs_are_summarised() -> None:
    runs = five_runs()
    assert runs[0].probe
    runs[0].probe.findings.append(finding(question="later_cue"))
    for run in runs:
        assert run.probe
        run.probe.findings.append(finding(question="gender"))
    results = over_seeds(runs)
    assert [question.question for question in results.questions] == ["number", "gender"]
    assert results.questions[0].heads == [[Head(1, 1)], [Head(0, 2)], [Head(1, 0)], [Head(0, 1)], [Head(1, 2)]]
    assert from_json(SeedsResult, json.loads(json.dumps(to_json(results))), "seeds.json").questions[1].n == 5


def test_scores_have_a_t_interval_and_the_supported_share_an_exact_one() -> None:
    values = [0.8, 0.85, 0.9, 0.95, 0.97]
    question = number([seed_run(seed, value) for seed, value in enumerate(values)])
    result = question.values["accuracy"]
    expected = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert result.mean == pytest.approx(0.894)
    assert result.interval == pytest.approx(expected)
    assert (question.share.value, question.share.low, question.share.high) == (1, pytest.approx(0.025**0.2), 1)


def test_the_interval_of_a_share_is_clipped_at_one_and_missing_values_do_not_count() -> None:
    values = [0.8, 1.0, None, 1.0, math.nan, 1.0, 1.0]
    whole, clipped, short = mean_over_runs(values), mean_over_runs(values, is_share=True), mean_over_runs(values[:4])
    assert whole.interval and whole.interval[1] > 1
    assert clipped.interval and clipped.interval[1] == 1
    assert (short.n, short.mean, short.interval) == (3, pytest.approx(2.8 / 3), None)
    assert mean_over_runs([None]).mean is None


# Variants


def compared(runs: list[SweepRun], base: list[float] = BASE) -> Variant:
    """Return the last variant of a comparison of standard runs with `runs`."""
    return compare_runs([*variant_runs(base), *runs], {"model.tie_query_key": False}).variants[-1]


def test_each_measure_is_read_from_its_field() -> None:
    expected = {
        "gap": 0.03, "resolved_share": 0.9, "resolved_share_headline": 0.7, "accuracy": 0.95, "block_accuracy": 0.85,
        "gradient_norm": 12.5,
    }  # fmt: skip
    assert measured(variant_runs([0.03])[0], "number") == pytest.approx(expected)


def test_runs_on_a_text_are_compared_by_their_loss_and_the_edges_of_their_head() -> None:
    edge = finding(question="next_pronoun_gender", outcome="edge", follows=0.8)
    run = sweep_run(1, [edge], metrics=variant_runs([None])[0].metrics)
    values = measured(run, compared_question([run, run]))
    assert values == {"loss": 1.0, "swap": 0.9, "follows": 0.8, "gradient_norm": 12.5}


def test_the_question_is_the_first_by_attention_that_all_runs_have() -> None:
    edge, one, other = finding(outcome="edge", question="e"), finding(question="number"), finding(question="gender")
    assert compared_question([sweep_run(1, [edge, one, other]), sweep_run(2, [other, edge])]) == "gender"
    assert compared_question([sweep_run(1, [edge, one]), sweep_run(2, [edge])]) == "e"
    assert compared_question([sweep_run(1, [one]), sweep_run(2, [other])]) == ""


def test_differences_are_paired_by_seed_and_not_by_the_order_of_the_runs() -> None:
    worse = [gap + noise for gap, noise in zip(WORSE, (0.001, -0.001, 0.002, 0.0, -0.002), strict=True)]
    tied = compared(variant_runs(worse, TIED, first=5)[::-1])
    test = tied.differences["gap"]
    expected = stats.ttest_rel(worse, BASE).confidence_interval(0.95)
    assert test.mean == pytest.approx(0.010) and test.interval == pytest.approx((expected.low, expected.high))
    assert test.p == test.smallest_p == 0.0625 and test.is_significant
    assert not tied.differences["resolved_share"].is_significant


def test_seeds_without_a_pair_are_left_out() -> None:
    extra = replace(variant_runs([9.0], TIED, first=9)[0], seed=17)
    tied = compared([*variant_runs(WORSE, TIED, first=5)[:4], extra])
    assert tied.differences["gap"].mean == pytest.approx(0.010)


def test_the_exact_p_counts_all_sign_changes() -> None:
    differences = [0.3, -0.1, 0.4, 0.2, 0.25, 0.6]
    signs = 1 - 2 * ((np.arange(64)[:, None] >> np.arange(6)) & 1)
    means = np.abs((signs * differences).mean(1))
    assert mean_difference(differences).p == pytest.approx((means >= abs(np.mean(differences)) - 1e-12).mean())


def test_an_interval_without_zero_is_not_significant_without_a_small_p() -> None:
    result = mean_difference([1.0, 1.1, 0.9, 1.0, 1.05, -0.1])  # one of six differs in sign
    assert result.interval and result.p and result.smallest_p
    assert result.interval[0] > 0 and result.p == 0.0625 > 0.05 > result.smallest_p
    assert not result.is_significant


def test_rounding_errors_are_no_difference_two_seeds_no_test_and_many_are_permuted_at_random() -> None:
    assert mean_difference([0.02, 0.03]).is_significant is mean_difference([0.02, 0.03]).interval is None
    assert mean_difference([1e-17] * 5).is_significant is False
    result = mean_difference(np.random.default_rng(0).standard_normal(25) + 3)
    assert result.is_significant and result.p == pytest.approx(2e-5, abs=1e-6)


def test_a_model_without_a_mask_is_not_causal_and_has_no_head_scores() -> None:
    unmasked = compared(variant_runs([-0.9] * 5, UNMASKED, first=5))
    assert unmasked.verdicts == [] and unmasked.values.keys() == {"gap", "gradient_norm"}


def test_a_variant_without_a_seed_of_the_standard_is_refused() -> None:
    with pytest.raises(UserError, match="tie_query_key=true"):
        by_variant({"0": (1, {}), "1": (7, TIED)})
