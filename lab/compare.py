"""Comparison of model variants over training seeds: every difference is taken within seeds and tested.

A variant is a set of changed settings; the standard is the variant closest to the defaults. Runs with the same seed
read the same stories in the same order, so the runs of a variant and of the standard are paired by seed. The
dataclasses are the content of compare.json: fields are keys, in their order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from data.errors import UserError
from data.typed_json import may_be_absent
from lab.seeds import mean_over_runs
from probe.items import HEADLINE
from probe.results import Interval, ProbeResults
from probe.statistics import CONFIDENCE, share_interval
from probe.verdict import SUPPORTED
from training.metrics import Metrics

QUESTION = "number"  # the link head that is compared
STANDARD = "standard"
FIRST_STEPS = 20  # gradient norms are averaged over these steps, where all variants are still close to their start


@dataclass(frozen=True, slots=True)
class VariantRun:
    """One finished run of a sweep over variants and seeds."""

    name: str
    seed: int
    changes: Mapping[str, Any]  # the settings in which the run differs from the standard
    metrics: Metrics
    probe: ProbeResults | None  # None for a non-causal model, whose heads are not tested


_BySeed = Mapping[int, VariantRun]


@dataclass(frozen=True, slots=True)
class Difference:
    """Paired differences, variant minus standard, one for each seed; fewer than three are not tested."""

    n: int
    mean: float | None
    interval: Interval | None = None  # Student's t, 95 %
    p: float | None = None  # two-sided permutation test
    smallest_p: float | None = None  # that is possible with so few seeds
    is_significant: bool | None = None


@dataclass(frozen=True, slots=True)
class MeasureResult:
    """One measure of a variant: the value of each run, their `Summary`, and the difference from the standard."""

    by_seed: list[float | None]
    n: int
    mean: float | None
    minimum: float | None
    interval: Interval | None
    difference: Difference | None = may_be_absent()  # None for the standard


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantResult:
    """The runs of one variant."""

    name: str
    changes: dict[str, Any]
    seeds: list[int]
    unpaired_seeds: list[int]  # that only the variant or only the standard has
    runs: list[str]
    is_causal: bool
    verdicts: list[str | None]  # on the head of QUESTION, by run
    n_tested: int
    n_supported: int
    supported_interval: Interval | None  # exact binomial
    measures: dict[str, MeasureResult]  # by name in MEASURES
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The content of compare.json."""

    schema_version: int = 2
    question: str = QUESTION
    standard: dict[str, Any]  # the standard's value of every setting that a run changes
    variants: list[VariantResult]  # the standard first
    warnings: list[str]


@dataclass(frozen=True, slots=True)
class Measure:
    """One column of the comparison."""

    name: str
    form: str  # format of the number
    is_share: bool  # between 0 and 1
    label: str


GAP = Measure("gap", ".4f", False, "gap to the entropy lower bound (nats/token)")
MEASURES = (
    GAP,
    Measure("resolved_share", ".3f", False, "resolved share, known words"),
    Measure("resolved_share_headline", ".3f", False, "resolved share, new words in new frames"),
    Measure("accuracy", ".3f", True, "accuracy of the best head"),
    Measure("block_accuracy", ".3f", True, "block accuracy of the best head"),
    Measure("entropy", ".3f", True, "attention entropy"),
    Measure("gradient_norm", ".3f", False, "gradient norm in the first steps"),
    Measure("asymmetry", ".3f", True, "asymmetry of the scores"),
)


def measured(run: VariantRun) -> dict[str, float | None]:
    """Return the value of each of MEASURES by name; None where a run has no value."""
    values: dict[str, float | None] = dict.fromkeys(measure.name for measure in MEASURES)

    # From training.
    norms = [record.gradient_norm for record in run.metrics.train if record.step <= FIRST_STEPS]
    values |= {"gap": run.metrics.validation[-1].gap, "gradient_norm": float(np.mean(norms)) if norms else None}
    if run.probe is None:
        return values

    # From the model's answers.
    resolved = {}
    for group in run.probe.behaviour:
        if (group.family, group.level, group.site) == ("agreement", QUESTION, "pronoun"):
            resolved[group.holdout] = group.resolved_share
    values |= {"resolved_share": resolved.get("iid"), "resolved_share_headline": resolved.get(HEADLINE)}

    # From the selected head and from all heads.
    head = run.probe.question(QUESTION)
    if head and HEADLINE in head.test:
        values |= {"accuracy": head.headline.accuracy, "block_accuracy": head.headline.block_accuracy}
    attention = run.probe.attention
    if attention and attention.score_asymmetry:
        entropy = float(np.mean(attention.entropy))
        values |= {"entropy": entropy, "asymmetry": float(np.mean(attention.score_asymmetry))}
    return values


def _variant_name(changes: Mapping[str, Any]) -> str:
    """Return the changed settings as written on the command line; "standard" if there are none."""
    texts = []
    for name, value in changes.items():
        shown = str(value).lower() if isinstance(value, bool) else value
        texts.append(f"{name.removeprefix('model.')}={shown}")
    return ", ".join(texts) or STANDARD


def by_variant(runs: Mapping[str, tuple[int, Mapping[str, Any]]]) -> dict[str, dict[int, str]]:
    """Return {variant: {seed: run name}}, the standard first, of {run name: (seed, changes to the standard)}.

    Raises UserError if there is only one variant, or a variant has no seed of the standard.
    """
    # The standard comes first, whatever the order of the runs.
    variants: dict[str, dict[int, str]] = {STANDARD: {}}
    for name, (seed, changes) in runs.items():
        variants.setdefault(_variant_name(changes), {})[seed] = name

    # Differences need a second variant and pairs of runs.
    if len(variants) < 2:
        raise UserError("all runs have the same settings; compare seeds with runs=DIR")
    for variant, seeds in variants.items():
        if not seeds.keys() & variants[STANDARD].keys():
            raise UserError(f"{variant} shares no seed with the standard; train both with the same seeds")
    return variants


def compare_runs(runs: Sequence[VariantRun], standard: Mapping[str, Any], warnings: Sequence[str] = ()) -> Comparison:
    """Return how the variants differ; `standard` has the standard's value of every setting that a run changes."""
    by_name = {run.name: run for run in runs}
    variants = []
    standard_runs: dict[int, VariantRun] = {}
    for name, names in by_variant({run.name: (run.seed, run.changes) for run in runs}).items():
        variant_runs = {seed: by_name[names[seed]] for seed in sorted(names)}
        standard_runs = standard_runs or variant_runs  # the standard is the first
        result = _variant(name, variant_runs, standard_runs)
        variants.append(replace(result, sentence=_sentence(result, standard)))
    return Comparison(standard=dict(standard), variants=variants, warnings=list(warnings))


def _variant(name: str, runs: _BySeed, standard_runs: _BySeed) -> VariantResult:
    """Return the result of one variant without its sentence."""
    # The verdict on each run's own head.
    verdicts = []
    for run in runs.values():
        head = run.probe.question(QUESTION) if run.probe else None
        verdicts.append(head.verdict if head else None)
    n_tested = len(verdicts) - verdicts.count(None)
    n_supported = verdicts.count(SUPPORTED)

    # Every measure, with the differences from the standard's runs of the same seeds.
    values = {seed: measured(run) for seed, run in runs.items()}
    reference = {seed: measured(run) for seed, run in standard_runs.items()}
    measures = {}
    for measure in MEASURES:
        by_seed = [values[seed][measure.name] for seed in runs]
        differences = []
        for seed, value in zip(runs, by_seed, strict=True):
            paired = reference[seed][measure.name] if seed in reference else None
            if value is not None and paired is not None:
                differences.append(value - paired)
        mean = mean_over_runs(by_seed, is_share=measure.is_share)
        tested = None if name == STANDARD else difference(differences)
        measures[measure.name] = MeasureResult(by_seed, mean.n, mean.mean, mean.minimum, mean.interval, tested)
    return VariantResult(
        name=name,
        changes=dict(next(iter(runs.values())).changes),
        seeds=list(runs),
        unpaired_seeds=sorted(runs.keys() ^ standard_runs.keys()),
        runs=[run.name for run in runs.values()],
        is_causal=any(run.probe is not None for run in runs.values()),
        verdicts=verdicts,
        n_tested=n_tested,
        n_supported=n_supported,
        supported_interval=share_interval(n_supported, n_tested) if n_tested else None,
        measures=measures,
    )


def difference(differences: Sequence[float]) -> Difference:
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
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(values))
    p = float(test.pvalue)
    smallest_p = 2.0 ** (1 - n)
    is_significant = bool(abs(mean) > half and p <= max(0.05, smallest_p))
    return Difference(n, mean, (mean - half, mean + half), p, smallest_p, is_significant)


def _sentence(variant: VariantResult, standard: Mapping[str, Any]) -> str:
    """Return the result of a variant in one sentence."""
    supported = f"link head supported in {variant.n_supported} of {variant.n_tested} runs"
    if variant.name == STANDARD:
        return f"{STANDARD} ({_variant_name(standard)}): the reference of all comparisons; {supported}."

    # Each measure in one of three lists.
    significant = []
    not_significant = []
    too_few = []
    for measure in MEASURES:
        test = variant.measures[measure.name].difference
        if test is None or test.mean is None:
            continue
        change = f"{measure.label} {test.mean:+{measure.form}}"
        if test.interval is None:
            too_few.append(change)
        elif test.is_significant:
            low, high = test.interval
            significant.append(f"{change} [{low:+{measure.form}}, {high:+{measure.form}}]")
        else:
            not_significant.append(measure.label)

    # The clauses of the sentence.
    clauses = [supported]
    if not variant.is_causal:
        gap = variant.measures[GAP.name].mean or 0.0
        clauses = [
            f"not causal: every position sees its target, so the loss, {abs(gap):.2f} nats/token "
            f"{'below' if gap < 0 else 'above'} the entropy lower bound, is meaningless and the heads are not tested"
        ]
    if significant:
        clauses.append(f"significant difference in {'; '.join(significant)}")
    if not_significant:
        clauses.append(f"no significant difference in {'; '.join(not_significant)}")
    if too_few:
        clauses.append(f"too few seeds for {'; '.join(too_few)}")
    if variant.unpaired_seeds:
        seeds = ", ".join(map(str, variant.unpaired_seeds))
        clauses.append(f"seeds without a pair, not in the differences: {seeds}")
    return f"{variant.name}: {'; '.join(clauses)}."
