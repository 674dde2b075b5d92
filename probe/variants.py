"""Comparison of model variants over training seeds: every difference is taken within seeds and tested.

A variant is a set of changed settings; the standard is the variant closest to the defaults. Runs with the same seed
read the same batches in the same order, so the runs of a variant and of the standard are paired by seed. The
dataclasses are the content of compare.json: fields are keys, in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data.errors import UserError
from probe.questions import HEADLINE, SAME_WORDS
from probe.results import MEASURES, NOT_KNOWN, Measure
from probe.seeds import Summary, SweepRun, mean_over_runs, value_of
from probe.statistics import t_interval
from probe.verdict import SUPPORTED

STANDARD = "standard"
FIRST_STEPS = 20  # whose gradient norms are averaged: all variants are close to their start
_OF_HEAD = {"attention": ("accuracy", "block_accuracy"), "edge": ("swap", "follows"), "whose": ("beyond_place",)}
COLUMNS = {
    "gap": Measure("gap to the entropy lower bound", "loss minus the bound, nats/token", ".4f"),
    "loss": Measure("validation loss", "nats/token", ".4f"),
    "resolved_share": MEASURES["resolved_share"],
    "resolved_share_headline": Measure("resolved share of the headline", "the same, new words in new frames"),
    **{name: MEASURES[name] for name in (*_OF_HEAD["attention"], *_OF_HEAD["edge"], *_OF_HEAD["whose"])},
    "gradient_norm": Measure("first gradient norms", f"before clipping, recorded up to step {FIRST_STEPS}"),
}


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
class Variant:
    """The runs of one variant; lists are by run."""

    name: str  # its changed settings
    seeds: list[int]
    runs: list[str]
    verdicts: list[str]  # on the question of the comparison, of the runs that were tested
    n_supported: int
    values: dict[str, Summary]  # by name in COLUMNS, without those that no run has
    differences: dict[str, Difference]  # from the standard, for which there are none


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The content of compare.json."""

    schema_version: int = 4
    question: str  # whose head is compared; "" if the runs have none in common
    standard: dict[str, Any]  # the standard's value of every setting that a run changes
    variants: list[Variant]  # the standard first
    warnings: list[str]


def compared_question(runs: Sequence[SweepRun]) -> str:
    """Return the first question by attention that all tested runs have, else the first by edges, "" without one."""
    probes = [run.probe for run in runs if run.probe]
    for outcome in _OF_HEAD if probes else ():
        for finding in probes[0].findings:
            if finding.outcome == outcome and all(probe.finding(finding.question) for probe in probes):
                return finding.question
    return ""


def measured(run: SweepRun, question: str) -> dict[str, float]:
    """Return the values that a run has, by name in COLUMNS."""
    # From training; a text has no lower bound.
    last = run.metrics.validation[-1]
    norms = [record.gradient_norm for record in run.metrics.train if record.step <= FIRST_STEPS]
    values = {"gap": last.gap, "gradient_norm": float(np.mean(norms)) if norms else None}
    if last.gap is None:
        values["loss"] = last.loss

    # From its head, and the model's answers.
    if finding := run.finding(question):
        values |= {name: value_of(finding, name) for name in _OF_HEAD[finding.outcome]}
        for name, part in (("resolved_share", SAME_WORDS), ("resolved_share_headline", HEADLINE)):
            if part in finding.parts:
                values[name] = finding.parts[part].values.get("resolved_share", NOT_KNOWN).value
    known = {name: value for name, value in values.items() if value is not None and np.isfinite(value)}
    return {name: known[name] for name in COLUMNS if name in known}


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


def compare_runs(runs: Sequence[SweepRun], standard: Mapping[str, Any], warnings: Sequence[str] = ()) -> Comparison:
    """Return how the variants differ; `standard` has the standard's value of every setting that a run changes."""
    question = compared_question(runs)
    by_name = {run.name: run for run in runs}
    values = {run.name: measured(run, question) for run in runs}
    names = by_variant({run.name: (run.seed, run.changes) for run in runs})
    reference = {seed: values[run] for seed, run in names[STANDARD].items()}
    variants = []
    for name, by_seed in names.items():
        seeds = sorted(by_seed)
        of_variant = [by_name[by_seed[seed]] for seed in seeds]
        verdicts = [finding.verdict for run in of_variant if (finding := run.finding(question))]

        # Every measure, with the differences from the standard's runs of the same seeds
        summaries = {}
        differences = {}
        for column, measure in COLUMNS.items():
            by_run = [values[run.name].get(column) for run in of_variant]
            if by_run.count(None) == len(by_run):
                continue
            summaries[column] = mean_over_runs(by_run, is_share=measure.is_share)
            if name != STANDARD:
                of_standard = [reference.get(seed, {}).get(column) for seed in seeds]
                paired = np.array(by_run, dtype=float) - np.array(of_standard, dtype=float)  # None is nan
                differences[column] = mean_difference(paired[np.isfinite(paired)])
        variants.append(
            Variant(
                name=name,
                seeds=seeds,
                runs=[run.name for run in of_variant],
                verdicts=verdicts,
                n_supported=verdicts.count(SUPPORTED),
                values=summaries,
                differences=differences,
            )
        )
    return Comparison(question=question, standard=dict(standard), variants=variants, warnings=list(warnings))


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

    # The permutation test for p, Student's t for the interval.
    test = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=99_999, batch=4096, rng=np.random.default_rng(0)
    )
    low, high = t_interval(values)
    p = float(test.pvalue)
    smallest_p = 2.0 ** (1 - n)
    is_significant = (low > 0 or high < 0) and p <= max(0.05, smallest_p)
    return Difference(n, mean, (low, high), p, smallest_p, is_significant)
