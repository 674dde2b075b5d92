"""Results over the runs of a sweep: what holds over seeds, and what settings change, tested within seeds.

A variant is a set of changed settings; the standard is the variant closest to the defaults, and often the only one.
Runs with the same seed read the same batches in the same order, so the runs of a variant and of the standard are paired
by seed. Heads are matched by function: each run's head is the one that its own dev items selected, whatever its index.
All values of a question are a table [runs, measures]. The dataclasses from `Summary` on are the content of sweep.json:
fields are keys, in their order.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, NamedTuple

import numpy as np

from probe.outcomes import OUTCOMES
from probe.results import MEASURES, NOT_KNOWN, RULES, SUPPORTED, Estimate, Finding, Head, Measure, ProbeResults
from probe.statistics import MIN_SEEDS, share_interval, t_interval
from training.metrics import Metrics

STANDARD = "standard"
FIRST_STEPS = 20  # whose gradient norms are averaged: all variants are close to their start
OF_TRAINING = {
    "gap": Measure("gap to the entropy lower bound", "loss minus the bound, nats/token", ".4f"),
    "loss": Measure("validation loss", "nats/token", ".4f"),
    "gradient_norm": Measure("first gradient norms", f"before clipping, recorded up to step {FIRST_STEPS}"),
}


class SweepRun(NamedTuple):
    """One finished run of a sweep, or a model of another program, without metrics."""

    name: str
    seed: int  # a model of another program has its number here
    metrics: Metrics
    variant: str = STANDARD  # its changed settings


@dataclass(frozen=True)
class Summary:
    """One value over the runs that have it."""

    by_run: list[float]  # nan: not known
    n: int  # runs that have it
    mean: float
    interval: tuple[float, float] | None  # Student's t, 95 %; None below MIN_SEEDS values


@dataclass(frozen=True)
class Difference:
    """Paired differences, variant minus standard, one for each seed; fewer than three are not tested."""

    n: int
    mean: float | None
    interval: tuple[float, float] | None = None  # Student's t, 95 %
    p: float | None = None  # two-sided permutation test
    smallest_p: float | None = None  # that is possible with so few seeds
    is_significant: bool | None = None


@dataclass(frozen=True, kw_only=True)
class QuestionOverSeeds:
    """One question in all runs of a variant; lists are by run."""

    question: str
    outcome: str
    n: int  # runs
    n_supported: int
    share: Estimate  # supported runs, with the exact binomial interval
    heads: list[list[Head]]  # that the verdict of a run is about
    verdicts: list[str]
    levels: list[str]
    values: dict[str, Summary]  # by the names in `Outcome.over_seeds`, without those that no run has
    differences: dict[str, Difference]  # from the standard, for which there are none


@dataclass(frozen=True, kw_only=True)
class Variant:
    """The runs of one variant; lists are by run."""

    name: str  # its changed settings
    seeds: list[int]
    runs: list[str]
    values: dict[str, Summary]  # by the names in OF_TRAINING, without those that no run has
    differences: dict[str, Difference]  # from the standard, for which there are none
    questions: list[QuestionOverSeeds]  # that all runs of the sweep have tested


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The content of sweep.json."""

    schema_version: int = 7
    units: str  # the kind of the numbers in `Variant.seeds`: "seeds" or "models"
    standard: dict[str, Any]  # the standard's value of every setting that a run changes
    variants: list[Variant]  # the standard first
    warnings: list[str]


def variant_name(changes: Mapping[str, Any]) -> str:
    """Return the changed settings as written on the command line; "standard" if there are none."""
    written = []
    for name, value in changes.items():
        text = json.dumps(value).strip('"')  # true, null; a text without quotation marks
        written.append(f"{name.removeprefix('model.')}={text}")
    return ", ".join(written) or STANDARD


def measure_of(name: str) -> Measure:
    """Return the label, meaning and form of a measure or a rule; `name` as in `Outcome.over_seeds`."""
    if name in RULES:
        return Measure(f"rule: {name}", "accuracy of a rule", is_share=True)
    part, _, measured = name.rpartition(" ")
    measure = MEASURES[measured]
    return measure._replace(label=f"{measure.label}, {part}") if part else measure


def value_of(finding: Finding, name: str) -> float:
    """Return a measure of the judged heads or of a part of the tested items, or the accuracy of a rule."""
    if name in RULES:
        return finding.rules.get(name, nan)
    part, _, measured = name.rpartition(" ")
    values = finding.judged.values
    if part:
        values = finding.parts[part].values if part in finding.parts else {}
    return values.get(measured, NOT_KNOWN).value


def of_training(metrics: Metrics) -> list[float | None]:
    """Return the values of a run in the order of OF_TRAINING; the loss only of a text, which has no lower bound."""
    if not metrics.validation:
        return [None, None, None]
    last = metrics.validation[-1]
    norms = [record.gradient_norm for record in metrics.train if record.step <= FIRST_STEPS]
    loss = last.loss if last.gap is None else None
    return [last.gap, loss, float(np.mean(norms)) if norms else None]


def compare_runs(
    runs: Sequence[SweepRun],
    results: Sequence[ProbeResults],
    standard: Mapping[str, Any],
    warnings: Sequence[str] = (),
    units: str = "seeds",
) -> Sweep:
    """Return the results of each variant; `standard` has the standard's value of every setting that a run changes."""
    tested: dict[str, list[Finding]] = {}  # the findings of all runs, by question
    for first in results[0].findings:
        findings = [finding for each in results if (finding := each.finding(first.question))]
        if len(findings) == len(runs):
            tested[first.question] = findings
    rows_of: dict[str, dict[int, int]] = {STANDARD: {}}  # by variant and seed
    for row in sorted(range(len(runs)), key=lambda row: runs[row].seed):
        rows_of.setdefault(runs[row].variant, {})[runs[row].seed] = row

    variants = []
    training = np.array([of_training(run.metrics) for run in runs], dtype=float)  # None is nan
    for variant, row_of in rows_of.items():
        rows = list(row_of.values())
        of_standard = rows_of[STANDARD].items() if variant != STANDARD else ()
        pairs = [(row_of[seed], row) for seed, row in of_standard if seed in row_of]
        values, differences = summarised(OF_TRAINING, training, rows, pairs)
        variants.append(Variant(
            name=variant, seeds=list(row_of), runs=[runs[row].name for row in rows],
            values=values, differences=differences,
            questions=[_over_seeds(findings, rows, pairs) for findings in tested.values()],
        ))  # fmt: skip
    return Sweep(units=units, standard=dict(standard), variants=variants, warnings=list(warnings))


def _over_seeds(
    findings: Sequence[Finding], rows: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> QuestionOverSeeds:
    """Return the answers of the runs `rows` to a question; `findings` has all runs, `pairs` are as in `summarised`."""
    outcome = findings[0].outcome
    names = OUTCOMES[outcome].over_seeds
    table = np.array([value_of(finding, name) for finding in findings for name in names]).reshape(len(findings), -1)
    values, differences = summarised({name: measure_of(name) for name in names}, table, rows, pairs)
    answers = [findings[row] for row in rows]
    verdicts = [finding.verdict for finding in answers]
    n_supported = verdicts.count(SUPPORTED)
    return QuestionOverSeeds(
        question=answers[0].question,
        outcome=outcome,
        n=len(rows),
        n_supported=n_supported,
        share=Estimate(n_supported / len(rows), *share_interval(n_supported, len(rows))),
        heads=[finding.judged.heads for finding in answers],
        verdicts=verdicts,
        levels=[finding.level for finding in answers],
        values=values,
        differences=differences,
    )


def summarised(
    measures: Mapping[str, Measure], table: np.ndarray, rows: Sequence[int], pairs: Sequence[tuple[int, int]]
) -> tuple[dict[str, Summary], dict[str, Difference]]:
    """Return each measure over some `rows` of a table [runs, measures], and its differences over `pairs` of rows.

    A pair are the runs of one seed of a variant and of the standard; the standard itself has none.
    """
    summaries = {}
    differences = {}
    for (name, measure), column in zip(measures.items(), table.T, strict=True):
        if not np.isfinite(column[rows]).any():
            continue
        summaries[name] = mean_over_runs(column[rows], is_share=measure.is_share)
        if pairs:
            ours, theirs = np.transpose(pairs)
            differences[name] = paired(column[ours] - column[theirs])
    return summaries, differences


def mean_over_runs(values: np.ndarray, *, is_share: bool = False) -> Summary:
    """Return count, mean and 95 % Student t interval of the values that are finite.

    The interval is None below MIN_SEEDS values; that of a share is clipped to 0 and 1. (A sign or rank interval of
    five seeds would cover at most 1 - 2 / 2^5 = 93.75 %.)
    """
    known = values[np.isfinite(values)]
    interval = None
    if len(known) >= MIN_SEEDS:
        low, high = t_interval(known)
        interval = (max(0.0, low), min(1.0, high)) if is_share else (low, high)
    return Summary(values.tolist(), len(known), float(known.mean()), interval)


def paired(differences: np.ndarray) -> Difference:
    """Return the mean of the paired differences that are finite, with its interval and test.

    The test exchanges the two runs of a seed in all 2^n ways (99,999 random ways beyond 16 seeds). A difference is
    significant if its interval excludes 0 and p <= .05 or, if n is too small for that, p is the smallest possible one.
    """
    from scipy import stats  # half a second to import, and only comparisons of variants need it

    # Rounding removes the errors of the subtraction, so that equal runs differ by exactly 0.
    known = differences[np.isfinite(differences)].round(12)
    n = len(known)
    if n == 0:
        return Difference(0, None)
    mean = float(known.mean())
    if n < 3:
        return Difference(n, mean)
    test = stats.permutation_test(
        (known,), np.mean, permutation_type="samples", n_resamples=99_999, batch=4096, rng=np.random.default_rng(0)
    )
    low, high = t_interval(known)
    p = float(test.pvalue)
    smallest_p = 2.0 ** (1 - n)
    is_significant = (low > 0 or high < 0) and p <= max(0.05, smallest_p)
    return Difference(n, mean, (low, high), p, smallest_p, is_significant)
