"""lab.seeds: what holds over training seeds."""

import json
import math
from dataclasses import replace

import pytest
from scipy import stats

from data.errors import UserError
from data.typed_json import from_json, to_json
from lab import compare, seeds
from lab.seeds import (
    CurveTimes,
    QuestionOverSeeds,
    SeedRun,
    Summary,
    curve_times,
    mean_over_runs,
    over_seeds,
)
from probe.results import Estimate, Head, NaturalQuestion, NaturalResult, NextPronounResult, SetResult, ShiftResult
from tests.blank import blank
from tests.lab.made_up_runs import answers, five_runs, probe_results, seed_run, strong_head
from tests.report.sample import filled
from training.metrics import DecisionPoint, Metrics

NO_PROBE = Metrics([], [], [])


def number(runs: list[SeedRun]) -> QuestionOverSeeds:
    return over_seeds(runs).questions[0]


def test_each_run_is_represented_by_its_own_head() -> None:
    heads = [(head.layer, head.head) for head in number(five_runs()).heads]
    assert heads == [(1, 1), (0, 2), (1, 0), (0, 1), (1, 2)]


@pytest.mark.parametrize(("n_seeds", "level"), [(4, "E3"), (5, "E4")])
def test_sufficient_heads_that_five_seeds_share_reach_level_e4(n_seeds: int, level: str) -> None:
    runs = five_runs()[:n_seeds]
    assert {head.evidence_level for head in number(runs).heads} == {level}


def test_t50_is_half_way_between_the_probes_around_the_rise() -> None:
    timing = number(five_runs()).timing["pronoun contrast"]
    assert [times.t50 for times in timing.by_seed] == [150, 250, 150, 350, 250]
    assert timing.t50.mean == pytest.approx(230)


def test_only_questions_and_answers_of_all_runs_are_summarised() -> None:
    runs = five_runs()
    runs[0].probe.selected.append(replace(strong_head(), question="later_cue"))
    runs[0].probe.behaviour.append(answers("number", 0.5, holdout="pairs"))
    for run in runs:
        run.probe.selected.append(replace(strong_head(), question="later_cue_repeat"))
    results = over_seeds(runs)
    assert [question.question for question in results.questions] == ["number", "later_cue_repeat"]
    assert results.questions[1].timing == {}  # not probed during training
    of_number, of_gender = results.behaviour
    assert (of_number.level, of_number.holdout, of_number.n_items) == ("number", "iid", [80] * 5)
    assert of_number.resolved_share.mean == pytest.approx(0.3)
    assert of_gender.resolved_share.n == 0


def test_scores_are_those_of_the_headline_with_a_t_interval() -> None:
    values = [0.8, 0.85, 0.9, 0.95, 0.97]
    result = number([seed_run(seed, accuracy=value) for seed, value in enumerate(values)]).scores["accuracy"]
    expected = stats.t.interval(0.95, 4, loc=sum(values) / 5, scale=stats.sem(values))
    assert result.mean == pytest.approx(0.894)
    assert result.interval == pytest.approx(expected)


def test_the_interval_of_a_share_is_clipped_at_one_and_missing_values_do_not_count() -> None:
    values = [0.8, 1.0, None, 1.0, math.nan, 1.0, 1.0]
    assert mean_over_runs(values).interval[1] > 1
    assert mean_over_runs(values, is_share=True).interval[1] == 1
    assert mean_over_runs(values[:4]) == Summary(3, pytest.approx(2.8 / 3), 0.8, None)
    assert mean_over_runs([None]) == Summary(0, None, None, None)


def test_a_head_below_the_chance_level_never_emerges() -> None:
    below = seed_run(1, accuracy=0.58)
    curves = curve_times(below.metrics, "number", Head(1, 1))
    assert {curve for curve, times in curves.items() if times == CurveTimes()} == {"accuracy", "pronoun contrast"}
    timing = number([below, seed_run(2)]).timing["pronoun contrast"]
    assert [times.t50 for times in timing.by_seed] == [None, 150]


def test_a_resolved_share_that_ends_below_zero_never_emerges() -> None:
    metrics = seed_run(1).metrics
    for point in metrics.probe:
        point.questions["number"] = replace(point.questions["number"], resolved_share=-6.0 + point.step / 200)
    assert curve_times(metrics, "number", Head(1, 1))["resolved share"] == CurveTimes()


@pytest.mark.parametrize(
    "kind",
    [
        seeds.SeedsResult, seeds.SeedHead, seeds.CurveOverSeeds, seeds.Support, seeds.DecidingHead,
        seeds.NextPronounOverSeeds, seeds.ShiftingHead, seeds.ShiftOverSeeds, seeds.AnswersOverSeeds,
        compare.Difference, compare.MeasureResult, DecisionPoint,
    ],
)  # fmt: skip
def test_a_part_of_the_results_is_read_back_and_an_empty_one_refused(kind: type) -> None:
    part = filled(kind)
    assert from_json(kind, json.loads(json.dumps(to_json(part))), "part") == part
    with pytest.raises(UserError, match="^part: no field "):
        from_json(kind, {}, "part")


def test_heads_in_natural_text_are_counted_by_verdict() -> None:
    runs = []
    for seed, (contrast, verdict) in enumerate([(0.2, "supported"), (0.4, "suggestive"), (0.6, "supported")]):
        head = blank(ShiftResult, layer=1, head=2, contrast=contrast, t=5.0, verdict=verdict)
        natural = NaturalResult({"gender": blank(NaturalQuestion, chosen={"matching entity": head})}, [])
        runs.append(SeedRun(str(seed), seed, probe_results(natural=natural), NO_PROBE))
    (question,) = over_seeds(runs).natural
    assert question.verdicts == {"supported": 2, "suggestive": 1}
    assert question.contrast.mean == pytest.approx(0.4)
    untested = SeedRun("3", 3, probe_results(natural=NaturalResult({}, [])), NO_PROBE)
    assert over_seeds([*runs, untested]).natural == []


@pytest.mark.parametrize(
    ("n_seeds", "low", "level"), [(5, 0.6, "E4"), (4, 0.6, "E3"), (5, 0.4, "E3"), (5, math.nan, "E3")]
)
def test_a_replicated_decision_that_is_more_than_recency_reaches_level_e4(n_seeds: int, low: float, level: str) -> None:
    decision = blank(
        NextPronounResult, verdict="supported", evidence_level="E3",
        chosen=blank(SetResult, share=Estimate(0.7, 0.6, 0.8)), author_where_nearest_is_wrong=Estimate(0.6, low, 0.7),
    )  # fmt: skip
    runs = [SeedRun(str(seed), seed, probe_results(next_pronoun=[decision]), NO_PROBE) for seed in range(n_seeds)]
    (question,) = over_seeds(runs).next_pronoun
    assert question.share.mean == pytest.approx(0.7)
    assert {head.evidence_level for head in question.heads} == {level}
