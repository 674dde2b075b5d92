"""Results over training seeds: how many runs have a head, what it does there, and when it emerges.

Heads are matched by function: each run's head is the one that its own dev items selected, whatever its index. The
dataclasses are the content of seeds.json: fields are keys, in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeVar

import numpy as np

from probe.emergence import half_rise
from probe.questions import QUESTIONS
from probe.results import MEASURES, Estimate, Finding, Head, ProbeResults
from probe.statistics import MIN_SEEDS, share_interval, t_interval
from probe.verdict import SUPPORTED, level_over_seeds
from training.metrics import Metrics

_Value = TypeVar("_Value")
_AT_START = {"accuracy": 0.5}  # value at the start of a curve; the others rise from 0
_OF_MODEL = {"answer_loss": None, "resolved_share": 0.0}  # curves of the model, and their start
SHOWN = {
    "attention": ("accuracy", "block_accuracy", "contrast", "swap"),
    "edge": ("swap", "flips", "author", "nearest"),
    "whose": ("beyond_place", "choice_share", "author", "author_auc", "place rule"),
}  # by outcome: measures, or rules that do not know the model


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One finished run of a sweep."""

    name: str
    seed: int
    metrics: Metrics
    probe: ProbeResults | None  # None for a non-causal model, whose heads are not tested
    changes: Mapping[str, Any] = field(default_factory=dict)  # from the standard settings

    def finding(self, question: str) -> Finding | None:
        return self.probe.finding(question) if self.probe else None


@dataclass(frozen=True, slots=True)
class Summary:
    """One value over the runs that have it."""

    by_run: list[float | None]
    n: int  # runs that have it
    mean: float | None
    minimum: float | None
    interval: tuple[float, float] | None  # Student's t, 95 %; None below MIN_SEEDS values


@dataclass(frozen=True, slots=True)
class QuestionOverSeeds:
    """One question in all runs; lists are by run."""

    question: str
    outcome: str
    n: int  # runs
    n_supported: int
    share: Estimate  # supported runs, with the exact binomial interval
    heads: list[list[Head]]  # that the verdict of a run is about
    verdicts: list[str]
    levels: list[str]  # judged with all seeds, so one can be E4
    values: dict[str, Summary]  # by the names in SHOWN
    timing: dict[str, dict[str, Summary]]  # t50 (step) and end of each curve; empty without a probe


@dataclass(frozen=True, slots=True)
class SeedsResult:
    """The content of seeds.json: what all runs have tested."""

    seeds: list[int]
    runs: list[str]
    questions: list[QuestionOverSeeds]
    warnings: list[str]
    schema_version: int = 5


def over_seeds(runs: Sequence[SweepRun], warnings: Sequence[str] = ()) -> SeedsResult:
    """Return what holds over runs with the same settings and different seeds."""
    findings = []
    for run in runs:
        findings.append({finding.question: finding for finding in run.probe.findings} if run.probe else {})
    questions = [_question(of_runs, runs) for of_runs in _in_all_runs(findings).values()]
    return SeedsResult([run.seed for run in runs], [run.name for run in runs], questions, list(warnings))


def mean_over_runs(values: Sequence[float | None], *, is_share: bool = False) -> Summary:
    """Return count, mean, minimum and 95 % Student t interval of the values that are finite.

    The interval is None below MIN_SEEDS values; that of a share is clipped to 0 and 1. (A sign or rank interval of
    five seeds would cover at most 1 - 2 / 2^5 = 93.75 %.)
    """
    by_run = [value if value is not None and isfinite(value) else None for value in values]
    numbers = [value for value in by_run if value is not None]
    if not numbers:
        return Summary(by_run, 0, None, None, None)
    interval = t_interval(numbers) if len(numbers) >= MIN_SEEDS else None
    if interval and is_share:
        interval = (max(0.0, interval[0]), min(1.0, interval[1]))
    return Summary(by_run, len(numbers), float(np.mean(numbers)), min(numbers), interval)


def value_of(finding: Finding, name: str) -> float:
    """Return a measure of the heads that a verdict is about, or the accuracy of a rule; nan if it is not known."""
    return finding.rules[name] if name in finding.rules else finding.judged.value(name)


def curve_times(metrics: Metrics, question: str, place: Head) -> dict[str, tuple[float | None, float | None]]:
    """Return t50 (step) and last value of the training curves of a head and of the model for a question, by curve.

    Both are None if nothing has emerged: a head that ends below the bar of its question, or a resolved share that ends
    at or below 0. If the question was not probed during training, the result is empty.
    """
    probed = [point for point in metrics.probe if question in point.questions]
    if not probed:
        return {}
    steps = [float(point.step) for point in probed]
    points = [point.questions[question] for point in probed]
    last = points[-1]

    def timed(values: Sequence[float], start: float | None, has_emerged: bool) -> tuple[float | None, float | None]:
        return (half_rise(steps, values, start), values[-1]) if has_emerged else (None, None)

    # What the head does; the first measure of a question is the one that its bar is for.
    times = {}
    layer, head = place
    has_emerged = next(iter(last.grids.values()))[layer][head] > last.values.get("bar", 0.0)
    for name in last.grids:
        values = [point.grids[name][layer][head] for point in points]
        times[name] = timed(values, _AT_START.get(name, 0.0), has_emerged)

    # What the model answers: its loss falls from the first value, and some questions have no answers.
    for name, start in _OF_MODEL.items():
        values = [point.values[name] for point in points if name in point.values]
        if len(values) == len(points):
            times[name] = timed(values, start, start is None or values[-1] > start)
    return times


def _in_all_runs(by_run: Sequence[Mapping[str, _Value]]) -> dict[str, list[_Value]]:
    """Return the value of each run for every key that all runs have."""
    columns = {}
    for key in by_run[0] if by_run else ():
        if all(key in values for values in by_run):
            columns[key] = [values[key] for values in by_run]
    return columns


def _question(findings: Sequence[Finding], runs: Sequence[SweepRun]) -> QuestionOverSeeds:
    # Level E4 needs other seeds with such a head; links need one head alone.
    name = findings[0].question
    outcome = findings[0].outcome
    n = len(findings)
    supported = [finding for finding in findings if finding.verdict == SUPPORTED]
    n_supported = len(supported)
    n_counted = sum(finding.unit == "head" for finding in supported) if outcome == "attention" else n_supported
    levels = [level_over_seeds(finding, QUESTIONS[name], n_counted, n) for finding in findings]

    # Means over the runs, and when each run's own head emerged.
    values = {}
    for measure in SHOWN[outcome]:
        of_runs = [value_of(finding, measure) for finding in findings]
        values[measure] = mean_over_runs(of_runs, is_share=_is_share(measure))
    timing = {}
    times = [curve_times(run.metrics, name, finding.place) for run, finding in zip(runs, findings, strict=True)]
    for curve, by_run in _in_all_runs(times).items():
        t50, end = zip(*by_run, strict=True)
        timing[curve] = {"t50": mean_over_runs(t50), "end": mean_over_runs(end, is_share=_is_share(curve))}
    return QuestionOverSeeds(
        question=name,
        outcome=outcome,
        n=n,
        n_supported=n_supported,
        share=Estimate(n_supported / n, *share_interval(n_supported, n)),
        heads=[finding.judged.heads for finding in findings],
        verdicts=[finding.verdict for finding in findings],
        levels=levels,
        values=values,
        timing=timing,
    )


def _is_share(name: str) -> bool:
    return name == "nearest" or (name in MEASURES and MEASURES[name].is_share)
