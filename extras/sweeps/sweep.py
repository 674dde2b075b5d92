"""Results over the runs of a sweep: what holds over seeds, and what settings change, tested within seeds.

A variant is a set of changed settings; the standard is the variant closest to the defaults, and often the only one.
Runs with the same seed read the same batches in the same order, so the runs of a variant and of the standard are paired
by seed. Heads are matched by function: each run's head is the one that its own dev items selected, whatever its index.
The dataclasses are the content of sweep.json: fields are keys, in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from probe.outcomes import OUTCOMES
from probe.results import MEASURES, NOT_KNOWN, SUPPORTED, Estimate, Finding, Head, Measure, ProbeResults
from probe.statistics import MIN_SEEDS, share_interval, t_interval
from settings.errors import UserError
from training.metrics import Metrics

STANDARD = "standard"
FIRST_STEPS = 20  # whose gradient norms are averaged: all variants are close to their start
OF_TRAINING = {
    "gap": Measure("gap to the entropy lower bound", "loss minus the bound, nats/token", ".4f"),
    "loss": Measure("validation loss", "nats/token", ".4f"),
    "gradient_norm": Measure("first gradient norms", f"before clipping, recorded up to step {FIRST_STEPS}"),
}


@dataclass(frozen=True, slots=True)
class SweepRun:
    """One finished run of a sweep, or a model of another program, without metrics."""

    name: str
    seed: int
    metrics: Metrics
    probe: ProbeResults
    changes: Mapping[str, Any] = field(default_factory=dict)  # from the standard settings


@dataclass(frozen=True, slots=True)
class Summary:
    """One value over the runs that have it."""

    by_run: list[float | None]
    n: int  # runs that have it
    mean: float | None
    interval: tuple[float, float] | None  # Student's t, 95 %; None below MIN_SEEDS values


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired differences, variant minus standard, one for each seed; fewer than three are not tested."""

    n: int
    mean: float | None
    interval: tuple[float, float] | None = None  # Student's t, 95 %
    p: float | None = None  # two-sided permutation test
    smallest_p: float | None = None  # that is possible with so few seeds
    is_significant: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """The runs of one variant; lists are by run."""

    name: str  # its changed settings
    seeds: list[int]
    runs: list[str]
    values: dict[str, Summary]  # by the names in OF_TRAINING, without those that no run has
    differences: dict[str, Difference]  # from the standard, for which there are none
    questions: list[QuestionOverSeeds]  # that all runs of the sweep have tested


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """The content of sweep.json."""

    schema_version: int = 7
    units: str  # the kind of the numbers in `Variant.seeds`: "seeds" or "models"
    standard: dict[str, Any]  # the standard's value of every setting that a run changes
    variants: list[Variant]  # the standard first
    warnings: list[str]


def measure_of(name: str) -> Measure:
    """Return the label, meaning and form of a value in `Variant` or `QuestionOverSeeds`."""
    part, _, measure = name.rpartition(" ")
    if measure not in MEASURES:
        return OF_TRAINING.get(name) or Measure(f"rule: {name}", "accuracy of a rule", is_share=True)
    found = MEASURES[measure]
    return found._replace(label=f"{found.label}, {part}") if part else found


def value_of(finding: Finding, name: str) -> float:
    """Return a measure of the judged heads, the accuracy of a rule, or with "PART MEASURE" a measure of a part."""
    part, _, measure = name.rpartition(" ")
    if name in finding.rules:
        return finding.rules[name]
    if part in finding.parts:
        return finding.parts[part].values.get(measure, NOT_KNOWN).value
    return finding.judged.value(name)


def of_training(run: SweepRun | None) -> dict[str, float | None]:
    """Return the values of a run by the names in OF_TRAINING; a text has no lower bound."""
    if run is None or not run.metrics.validation:
        return dict.fromkeys(OF_TRAINING)
    last = run.metrics.validation[-1]
    norms = [record.gradient_norm for record in run.metrics.train if record.step <= FIRST_STEPS]
    loss = last.loss if last.gap is None else None
    return {"gap": last.gap, "loss": loss, "gradient_norm": float(np.mean(norms)) if norms else None}


def variant_name(changes: Mapping[str, Any]) -> str:
    """Return the changed settings as written on the command line; "standard" if there are none."""
    shown = {name: str(value).lower() if isinstance(value, bool) else value for name, value in changes.items()}
    return ", ".join(f"{name.removeprefix('model.')}={value}" for name, value in shown.items()) or STANDARD


def by_variant(runs: Mapping[str, tuple[int, Mapping[str, Any]]]) -> dict[str, dict[int, str]]:
    """Return {variant: {seed: run name}}, the standard first, of {run name: (seed, changes to the standard)}.

    Raises UserError if a variant has no seed of the standard, because differences need pairs of runs.
    """
    variants: dict[str, dict[int, str]] = {STANDARD: {}}
    for name, (seed, changes) in runs.items():
        variants.setdefault(variant_name(changes), {})[seed] = name
    for variant, seeds in variants.items():
        if not seeds.keys() & variants[STANDARD].keys():
            raise UserError(f"{variant} shares no seed with the standard; train both with the same seeds")
    return variants


def compare_runs(
    runs: Sequence[SweepRun],
    standard: Mapping[str, Any],
    warnings: Sequence[str] = (),
    units: str = "seeds",
) -> Sweep:
    """Return the results of each variant; `standard` has the standard's value of every setting that a run changes."""
    by_name = {run.name: run for run in runs}
    names = by_variant({run.name: (run.seed, run.changes) for run in runs})
    questions = []
    for finding in runs[0].probe.findings:
        if all(run.probe.finding(finding.question) for run in runs):
            questions.append(finding.question)
    variants = []
    for name, by_seed in names.items():
        seeds = sorted(by_seed)
        of_variant = [by_name[by_seed[seed]] for seed in seeds]
        of_standard: list[SweepRun | None] = []
        if name != STANDARD:
            of_standard = [by_name.get(names[STANDARD].get(seed, "")) for seed in seeds]
        values, differences = _summarised(list(map(of_training, of_variant)), list(map(of_training, of_standard)))
        answers = [_over_seeds(question, of_variant, of_standard) for question in questions]
        run_names = [run.name for run in of_variant]
        variants.append(Variant(
            name=name, seeds=seeds, runs=run_names, values=values, differences=differences, questions=answers,
        ))  # fmt: skip
    return Sweep(units=units, standard=dict(standard), variants=variants, warnings=list(warnings))


def _over_seeds(question: str, runs: Sequence[SweepRun], of_standard: Sequence[SweepRun | None]) -> QuestionOverSeeds:
    """Return the answers of some runs to a question; `of_standard` are the paired runs of the standard, if any."""
    findings = [finding for run in runs if (finding := run.probe.finding(question))]
    outcome = findings[0].outcome

    def measured(run: SweepRun | None) -> dict[str, float | None]:
        finding = run.probe.finding(question) if run else None
        return {name: value_of(finding, name) for name in OUTCOMES[outcome].over_seeds} if finding else {}

    values, differences = _summarised(list(map(measured, runs)), list(map(measured, of_standard)))
    verdicts = [finding.verdict for finding in findings]
    n_supported = verdicts.count(SUPPORTED)
    return QuestionOverSeeds(
        question=question,
        outcome=outcome,
        n=len(runs),
        n_supported=n_supported,
        share=Estimate(n_supported / len(runs), *share_interval(n_supported, len(runs))),
        heads=[finding.judged.heads for finding in findings],
        verdicts=verdicts,
        levels=[finding.level for finding in findings],
        values=values,
        differences=differences,
    )


def _summarised(
    rows: Sequence[Mapping[str, float | None]], of_standard: Sequence[Mapping[str, float | None]]
) -> tuple[dict[str, Summary], dict[str, Difference]]:
    """Return each value over runs, and its differences from the paired runs of the standard, if there are any."""
    summaries = {}
    differences = {}
    for name in rows[0]:
        by_run = [row[name] for row in rows]
        summary = mean_over_runs(by_run, is_share=measure_of(name).is_share)
        if summary.n == 0:
            continue
        summaries[name] = summary
        if of_standard:
            reference = [row.get(name) for row in of_standard]
            paired = np.array(by_run, dtype=float) - np.array(reference, dtype=float)  # None is nan
            differences[name] = mean_difference(paired[np.isfinite(paired)])
    return summaries, differences


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


def mean_difference(differences: Sequence[float] | np.ndarray) -> Difference:
    """Return the mean of paired differences with its interval and test.

    The test exchanges the two runs of a seed in all 2^n ways (99,999 random ways beyond 16 seeds). A difference is
    significant if its interval excludes 0 and p <= .05 or, if n is too small for that, p is the smallest possible one.
    """
    from scipy import stats  # half a second to import, and only comparisons of variants need it

    # Rounding removes the errors of the subtraction, so that equal runs differ by exactly 0.
    values = np.round(np.asarray(differences, dtype=float), 12)
    n = len(values)
    if n == 0:
        return Difference(0, None)
    mean = float(np.mean(values))
    if n < 3:
        return Difference(n, mean)

    test = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=99_999, batch=4096, rng=np.random.default_rng(0)
    )
    low, high = t_interval(values)
    p = float(test.pvalue)
    smallest_p = 2.0 ** (1 - n)
    is_significant = (low > 0 or high < 0) and p <= max(0.05, smallest_p)
    return Difference(n, mean, (low, high), p, smallest_p, is_significant)
