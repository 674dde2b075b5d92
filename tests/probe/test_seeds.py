"""probe.seeds: what holds over training seeds."""

import json
import math

import pytest
from scipy import stats

from data.typed_json import from_json, to_json
from probe.results import Head
from probe.seeds import QuestionOverSeeds, SeedsResult, SweepRun, mean_over_runs, over_seeds
from tests.probe.sweep_runs import finding, five_runs, seed_run, sweep_run


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
