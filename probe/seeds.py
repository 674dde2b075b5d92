"""Results over training seeds: how many runs have a head, and what it does there.

Heads are matched by function: each run's head is the one that its own dev items selected, whatever its index. The
dataclasses are the content of seeds.json: fields are keys, in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from probe.results import MEASURES, Estimate, Finding, Head, ProbeResults
from probe.statistics import MIN_SEEDS, share_interval, t_interval
from probe.verdict import SUPPORTED
from training.metrics import Metrics

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
    levels: list[str]
    values: dict[str, Summary]  # by the names in SHOWN


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
    # Questions that all runs have tested
    questions = []
    for first in runs[0].probe.findings if runs[0].probe else ():
        found = [finding for run in runs if (finding := run.finding(first.question))]
        if len(found) == len(runs):
            questions.append(_question(found))
    return SeedsResult([run.seed for run in runs], [run.name for run in runs], questions, list(warnings))


def mean_over_runs(values: Sequence[float | None], *, is_share: bool = False) -> Summary:
    """Return count, mean and 95 % Student t interval of the values that are finite.

    The interval is None below MIN_SEEDS values; that of a share is clipped to 0 and 1. (A sign or rank interval of
    five seeds would cover at most 1 - 2 / 2^5 = 93.75 %.)
    """
    by_run = [value if value is not None and isfinite(value) else None for value in values]
    numbers = [value for value in by_run if value is not None]
    if not numbers:
        return Summary(by_run, 0, None, None)
    interval = t_interval(numbers) if len(numbers) >= MIN_SEEDS else None
    if interval and is_share:
        interval = (max(0.0, interval[0]), min(1.0, interval[1]))
    return Summary(by_run, len(numbers), float(np.mean(numbers)), interval)


def value_of(finding: Finding, name: str) -> float:
    """Return a measure of the heads that a verdict is about, or the accuracy of a rule; nan if it is not known."""
    return finding.rules[name] if name in finding.rules else finding.judged.value(name)


def _question(findings: Sequence[Finding]) -> QuestionOverSeeds:
    name = findings[0].question
    outcome = findings[0].outcome
    n = len(findings)
    n_supported = sum(finding.verdict == SUPPORTED for finding in findings)

    # Means over the runs
    values = {}
    for measure in SHOWN[outcome]:
        of_runs = [value_of(finding, measure) for finding in findings]
        is_share = measure not in MEASURES or MEASURES[measure].is_share  # the accuracy of a rule is one
        values[measure] = mean_over_runs(of_runs, is_share=is_share)
    return QuestionOverSeeds(
        question=name,
        outcome=outcome,
        n=n,
        n_supported=n_supported,
        share=Estimate(n_supported / n, *share_interval(n_supported, n)),
        heads=[finding.judged.heads for finding in findings],
        verdicts=[finding.verdict for finding in findings],
        levels=[finding.level for finding in findings],
        values=values,
    )
