"""Results over training seeds: how many runs have a link head, its scores, and when it emerges.

Heads are matched by function: each run's head is the one that its own dev items selected, whatever its index. The
dataclasses are the content of seeds.json: fields are keys, in their order.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from math import isnan
from typing import Any, TypeVar

import numpy as np
from scipy import special

from probe.emergence import half_rise
from probe.results import (
    Estimate,
    Head,
    Interval,
    NextPronounResult,
    ProbeResults,
    QuestionResult,
    SetResult,
)
from probe.statistics import CONFIDENCE, MIN_SEEDS, share_interval
from probe.verdict import SUPPORTED, evidence_of, is_replicated, judge
from training.metrics import Metrics

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")
_Tested = TypeVar("_Tested", QuestionResult, NextPronounResult)


@dataclass(frozen=True, slots=True)
class SeedRun:
    """One finished run of a sweep over seeds."""

    name: str
    seed: int
    probe: ProbeResults
    metrics: Metrics


@dataclass(frozen=True, slots=True)
class Summary:
    """One value over the runs that have it."""

    n: int
    mean: float | None
    minimum: float | None
    interval: Interval | None  # Student's t, 95 %; None below MIN_SEEDS values


@dataclass(frozen=True, slots=True)
class SeedHead:
    """The head of one run for one question, with the headline scores of the heads that its verdict is about."""

    seed: int
    accuracy: float
    block_accuracy: float
    pronoun_contrast: float
    layer: int
    head: int
    heads: list[Head]  # that the verdict is about
    verdict: str
    evidence_level: str  # judged with all seeds, so it can be E4


@dataclass(frozen=True, slots=True)
class CurveTimes:
    """The timing of one curve of one run; both None if it did not rise."""

    t50: float | None = None  # step at which it has risen half way
    end: float | None = None  # its last value


@dataclass(frozen=True, slots=True)
class CurveOverSeeds:
    """The timing of one curve in all runs."""

    by_seed: list[CurveTimes]
    t50: Summary
    end: Summary


@dataclass(frozen=True, slots=True)
class Support:
    """In how many runs the head of a question is supported."""

    question: str
    n: int
    n_supported: int
    share_interval: Interval  # exact binomial
    verdicts: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionOverSeeds(Support):
    """One question of the stories."""

    heads: list[SeedHead]
    scores: dict[str, Summary]  # accuracy, block_accuracy, pronoun_contrast
    timing: dict[str, CurveOverSeeds]  # by curve; empty if the question was not probed during training


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingHead:
    """The head of one run that decides the next pronoun; fields as in `NextPronounResult`, estimates by their value."""

    layer: int
    head: int
    verdict: str
    evidence_level: str
    unit: str
    head_set: SetResult | None
    p_corrected: float
    n: int
    share: float
    share_interval: Interval
    flips: float
    follows_twin: float
    author_accuracy: float
    nearest_accuracy: float
    seed: int
    author_where_nearest_is_wrong: Estimate
    n_two: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NextPronounOverSeeds(Support):
    """One question about the next pronoun."""

    share: Summary
    flips: Summary
    author_accuracy: Summary
    nearest_accuracy: Summary
    heads: list[DecidingHead]


@dataclass(frozen=True, slots=True)
class AnswersOverSeeds:
    """The models' answers in one group of items."""

    family: str
    level: str
    site: str
    holdout: str
    n_items: list[int]  # by run
    resolved_share: Summary
    accuracy: Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsResult:
    """The content of seeds.json: what all runs have tested."""

    schema_version: int = 3
    seeds: list[int]
    runs: list[str]
    questions: list[QuestionOverSeeds]
    next_pronoun: list[NextPronounOverSeeds]
    behaviour: list[AnswersOverSeeds]
    warnings: list[str]


def over_seeds(runs: Sequence[SeedRun], warnings: Sequence[str] = ()) -> SeedsResult:
    """Return what holds over runs with the same settings and different seeds."""
    return SeedsResult(
        seeds=[run.seed for run in runs],
        runs=[run.name for run in runs],
        questions=_questions(runs),
        next_pronoun=_next_pronoun(runs),
        behaviour=_behaviour(runs),
        warnings=list(warnings),
    )


def mean_over_runs(values: Sequence[float | None], *, is_share: bool = False) -> Summary:
    """Return count, mean, minimum and 95 % Student t interval of the values that are neither None nor nan.

    The interval is None below MIN_SEEDS values; that of a share is clipped to 0 and 1. (A sign or rank interval of
    five seeds would cover at most 1 - 2 / 2^5 = 93.75 %.)
    """
    numbers = [value for value in values if value is not None and not isnan(value)]
    if not numbers:
        return Summary(0, None, None, None)
    mean = float(np.mean(numbers))

    # Student's t for the mean of few runs.
    interval = None
    if len(numbers) >= MIN_SEEDS:
        t = special.stdtrit(len(numbers) - 1, (1 + CONFIDENCE) / 2)
        half = float(t * (np.std(numbers, ddof=1) / np.sqrt(len(numbers))))
        interval = (mean - half, mean + half)
    if interval and is_share:
        interval = (max(0.0, interval[0]), min(1.0, interval[1]))
    return Summary(len(numbers), mean, min(numbers), interval)


def curve_times(metrics: Metrics, question: str, place: Head) -> dict[str, CurveTimes]:
    """Return the timing of the training curves of one head and of the model for a question, by curve.

    A head that ends below the chance level has no times, nor has a resolved share that ends at or below 0: nothing has
    emerged. If the question was not probed during training, the result is empty.
    """
    points = [point for point in metrics.probe if question in point.questions]
    if not points:
        return {}
    steps = [float(point.step) for point in points]
    scores = [point.questions[question] for point in points]

    def times(values: Sequence[float], start: float | None, has_emerged: bool) -> CurveTimes:
        return CurveTimes(half_rise(steps, values, start), values[-1]) if has_emerged else CurveTimes()

    # The model's loss at the payoffs falls from its first value; some questions have no payoff.
    curves = {}
    answers = [point.answers[question].model for point in points if question in point.answers]
    if len(answers) == len(points):
        curves["answer loss"] = times(answers, start=None, has_emerged=True)

    # The scores of the head rise from chance.
    layer, head = place
    accuracy = [score.accuracy_heads[layer][head] for score in scores]
    contrast = [score.pronoun_contrast_heads[layer][head] for score in scores]
    is_above_chance = accuracy[-1] > scores[-1].chance_level
    curves["accuracy"] = times(accuracy, 0.5, is_above_chance)
    curves["pronoun contrast"] = times(contrast, 0.0, is_above_chance)

    # The resolved share of the loss is 0 while the model ignores the pronoun.
    shares = [score.resolved_share for score in scores if score.resolved_share is not None]
    if len(shares) == len(scores):
        curves["resolved share"] = times(shares, 0.0, has_emerged=shares[-1] > 0)
    return curves


def _in_all_runs(by_run: Sequence[Mapping[_Key, _Result]]) -> Iterator[tuple[_Key, list[_Result]]]:
    """Yield each key that all runs have, with the result of each run."""
    for key in by_run[0]:
        if all(key in results for results in by_run):
            yield key, [results[key] for results in by_run]


def _by_question(results: Sequence[_Tested]) -> dict[str, _Tested]:
    return {result.question: result for result in results}


def _copied(kind: Any, source: Any, **others: Any) -> Any:
    """Return a dataclass with the values of `others`, and with those of `source` in the other fields."""
    values = {part.name: getattr(source, part.name) for part in fields(kind) if part.name not in others}
    return kind(**values, **others)


def _support(question: str, results: Sequence[_Tested]) -> Support:
    verdicts = Counter(result.verdict for result in results)
    interval = share_interval(verdicts[SUPPORTED], len(results))
    return Support(question, len(results), verdicts[SUPPORTED], interval, dict(verdicts))


def _questions(runs: Sequence[SeedRun]) -> list[QuestionOverSeeds]:
    """Return the questions of the stories."""
    questions = []
    for name, results in _in_all_runs([_by_question(run.probe.selected) for run in runs]):
        support = _support(name, results)

        # Each run's own head: its scores, and when it emerged.
        n_alone = sum(result.verdict == SUPPORTED and result.unit != "set" for result in results)
        heads = []
        times = []
        for run, result in zip(runs, results, strict=True):
            heads.append(_head(run.seed, result, support.n, n_alone))
            times.append(curve_times(run.metrics, name, result.place))

        # Means over the runs.
        scores = {
            "accuracy": mean_over_runs([head.accuracy for head in heads], is_share=True),
            "block_accuracy": mean_over_runs([head.block_accuracy for head in heads], is_share=True),
            "pronoun_contrast": mean_over_runs([head.pronoun_contrast for head in heads]),
        }
        timing = {}
        for curve, by_seed in _in_all_runs(times):
            t50 = mean_over_runs([of_run.t50 for of_run in by_seed])
            end = mean_over_runs([of_run.end for of_run in by_seed], is_share=curve == "accuracy")
            timing[curve] = CurveOverSeeds(by_seed, t50, end)
        questions.append(_copied(QuestionOverSeeds, support, heads=heads, scores=scores, timing=timing))
    return questions


def _head(seed: int, result: QuestionResult, n_seeds: int, n_supported: int) -> SeedHead:
    """Return the head of one run; a head is judged again, because level E4 needs other seeds with such a head.

    `n_supported` is the number of seeds in which one head alone is supported.
    """
    level = result.evidence_level
    if result.unit != "set":
        level = judge(evidence_of(result, n_seeds, n_supported)).level
    test = result.judged_scores
    scores = (test.accuracy, test.block_accuracy, test.pronoun_contrast)
    return SeedHead(seed, *scores, *result.place, result.judged_heads, result.verdict, level)


def _next_pronoun(runs: Sequence[SeedRun]) -> list[NextPronounOverSeeds]:
    """Return the questions about the next pronoun.

    A run reaches level E4 if its choice is more than recency and at least 80 % of five or more seeds are supported.
    """
    questions = []
    for name, results in _in_all_runs([_by_question(run.probe.next_pronoun) for run in runs]):
        # Level E4 is about all runs.
        support = _support(name, results)
        has_enough = is_replicated(support.n_supported, support.n)
        heads = []
        for run, result in zip(runs, results, strict=True):
            is_no_recency = result.author_where_nearest_is_wrong.low > 0.5  # False for nan
            has_e4 = has_enough and result.verdict == SUPPORTED and is_no_recency
            head = _copied(
                DecidingHead,
                result,
                seed=run.seed,
                evidence_level="E4" if has_e4 else result.evidence_level,
                share=result.judged.share.value,
                share_interval=(result.judged.share.low, result.judged.share.high),
                flips=result.judged.flips.value,
                follows_twin=result.follows_twin.value,
                author_accuracy=result.author_accuracy.value,
            )
            heads.append(head)
        question = _copied(
            NextPronounOverSeeds,
            support,
            share=mean_over_runs([head.share for head in heads], is_share=True),
            flips=mean_over_runs([head.flips for head in heads], is_share=True),
            author_accuracy=mean_over_runs([head.author_accuracy for head in heads], is_share=True),
            nearest_accuracy=mean_over_runs([head.nearest_accuracy for head in heads], is_share=True),
            heads=heads,
        )
        questions.append(question)
    return questions


def _behaviour(runs: Sequence[SeedRun]) -> list[AnswersOverSeeds]:
    """Return the models' answers by group of items."""
    by_run = []
    for run in runs:
        by_run.append({(group.family, group.level, group.site, group.holdout): group for group in run.probe.behaviour})
    answers = []
    for key, groups in _in_all_runs(by_run):
        n_items = [group.n for group in groups]
        resolved_share = mean_over_runs([group.resolved_share for group in groups])
        accuracy = mean_over_runs([group.accuracy for group in groups], is_share=True)
        answers.append(AnswersOverSeeds(*key, n_items, resolved_share, accuracy))
    return answers
