"""Comparison of model variants over training seeds: every difference is taken within seeds and tested.

A variant is a set of changed settings; the standard is the variant closest to the defaults. Runs with the same seed
read the same stories in the same order, so the runs of a variant and of the standard are paired by seed.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from data.text_tables import markdown_table
from probe.seeds import HEADLINE, SUPPORTED, summary
from probe.statistics import CONFIDENCE, share_interval

QUESTION = "number"  # the link head that is compared
STANDARD = "standard"
_FIRST_STEPS = 20  # gradient norms are averaged over these steps, where all variants are still close to their start


@dataclass(frozen=True, slots=True)
class Measure:
    """One column of the comparison."""

    name: str
    form: str  # format of the number
    is_share: bool  # between 0 and 1
    label: str


MEASURES = (
    Measure("gap", ".4f", False, "gap to the entropy lower bound (nats/token)"),
    Measure("resolved_share", ".3f", False, "resolved share, known words"),
    Measure("resolved_share_headline", ".3f", False, "resolved share, new words in new frames"),
    Measure("accuracy", ".3f", True, "accuracy of the best head"),
    Measure("block_accuracy", ".3f", True, "block accuracy of the best head"),
    Measure("entropy", ".3f", True, "attention entropy"),
    Measure("gradient_norm", ".3f", False, "gradient norm in the first steps"),
    Measure("asymmetry", ".3f", True, "asymmetry of the scores"),
)
LEGEND = (
    "gap: loss minus the entropy lower bound, nats/token; resolved share: 0 if the pronoun is ignored, 1 if optimal",
    f"accuracy, block accuracy: of the head selected for {QUESTION}, on new words in new frames (headline)",
    "entropy: 1 for uniform attention, 0 for attention to a single token, mean over heads",
    f"gradient norm: before clipping, mean of the recorded steps among the first {_FIRST_STEPS}",
    "asymmetry: 0 if the score of a for b equals the score of b for a, .71 for random weights",
    "supported: number of runs in which the probe's verdict on that head is supported",
    "*: differs from the standard: the 95 % interval of the paired difference excludes 0, and the permutation p is at",
    "   most .05 or, with fewer than six seeds, the smallest possible p (five seeds: .0625); not corrected for columns",
)


@dataclass(frozen=True, slots=True)
class LabRun:
    """The results of one run."""

    name: str
    seed: int
    changes: Mapping[str, Any]  # the settings in which the run differs from the standard
    metrics: Sequence[Mapping[str, Any]]  # metrics.jsonl
    probe: Mapping[str, Any] | None  # probe.json; None for a non-causal model, whose heads are not tested


def variant_name(changes: Mapping[str, Any]) -> str:
    """Returns the changed settings as written on the command line; "standard" if there are none."""
    values = {name: str(value).lower() if isinstance(value, bool) else value for name, value in changes.items()}
    return ", ".join(f"{name.removeprefix('model.')}={value}" for name, value in values.items()) or STANDARD


def by_variant(runs: Mapping[str, tuple[int, Mapping[str, Any]]]) -> dict[str, dict[int, str]]:
    """Returns {variant: {seed: run name}}, the standard first, of {run name: (seed, changes to the standard)}.

    Raises ValueError if there is only one variant, or a variant has no seed of the standard.
    """
    variants: dict[str, dict[int, str]] = {STANDARD: {}}
    for name, (seed, changes) in runs.items():
        variants.setdefault(variant_name(changes), {})[seed] = name
    if len(variants) < 2:
        raise ValueError("all runs have the same settings; compare seeds with runs=DIR")
    for variant, seeds in variants.items():
        if not seeds.keys() & variants[STANDARD].keys():
            raise ValueError(f"{variant} shares no seed with the standard; train both with the same seeds")
    return variants


def compare(runs: Sequence[LabRun], standard: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of compare.json; `standard` has the standard's value of every setting that a run changes."""
    by_name = {run.name: run for run in runs}
    names = by_variant({run.name: (run.seed, run.changes) for run in runs})
    variants = {name: {seed: by_name[run] for seed, run in seeds.items()} for name, seeds in names.items()}
    return {
        "schema_version": 2,
        "question": QUESTION,
        "standard": dict(standard),
        "variants": [_variant(name, seeds, variants[STANDARD], standard) for name, seeds in variants.items()],
    }


def measured(run: LabRun) -> dict[str, float | None]:
    """Returns the value of each of MEASURES; None where a run has no value."""
    values: dict[str, float | None] = dict.fromkeys(measure.name for measure in MEASURES)
    values["gap"] = [record for record in run.metrics if record["split"] == "validation"][-1].get("gap")
    first = [record for record in run.metrics if record["split"] == "train" and record["step"] <= _FIRST_STEPS]
    values["gradient_norm"] = float(np.mean([record["gradient_norm"] for record in first])) if first else None
    if run.probe is None:
        return values
    resolved = {
        row["holdout"]: row["resolved_share"]
        for row in run.probe["behaviour"]
        if (row["family"], row["level"], row["site"]) == ("agreement", QUESTION, "pronoun")
    }
    values |= {"resolved_share": resolved.get("iid"), "resolved_share_headline": resolved.get(HEADLINE)}
    head = _head(run.probe)
    if head and HEADLINE in head["test"]:
        values |= {name: head["test"][HEADLINE][name] for name in ("accuracy", "block_accuracy")}
    attention = run.probe["attention"]
    values["entropy"] = float(np.mean(attention["entropy"]))
    values["asymmetry"] = float(np.mean(attention["score_asymmetry"]))
    return values


def _head(probe: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((head for head in probe["selected"] if head["question"] == QUESTION), None)


def difference(differences: Sequence[float]) -> dict[str, Any]:
    """Returns the mean of paired differences (variant minus standard, one per seed) with interval and test.

    The interval is Student's t at 95 %. The two-sided permutation test exchanges the two runs of a seed in all 2^n ways
    (99,999 random ways beyond 16 seeds). "is_significant" requires an interval without 0 and p <= .05 or, if n is too
    small for that, the smallest possible p. Fewer than three pairs are not tested: "is_significant" is None.
    """
    values = np.round(np.asarray(differences, dtype=float), 12)  # removes rounding errors
    n, mean = len(values), float(np.mean(values)) if len(values) else None
    result = {"n": n, "mean": mean, "interval": None, "p": None, "smallest_p": None, "is_significant": None}
    if mean is None or n < 3:
        return result
    test = stats.permutation_test(
        (values,), np.mean, permutation_type="samples", n_resamples=99_999, batch=4096, rng=np.random.default_rng(0)
    )
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(values))
    p, smallest_p = float(test.pvalue), 2.0 ** (1 - n)
    is_significant = bool(abs(mean) > half and p <= max(0.05, smallest_p))
    return result | {
        "interval": (mean - half, mean + half), "p": p, "smallest_p": smallest_p, "is_significant": is_significant
    }  # fmt: skip


def _variant(
    name: str, runs: Mapping[int, LabRun], standard_runs: Mapping[int, LabRun], standard: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the entry of one variant in compare.json."""
    seeds = sorted(runs)
    heads = [_head(runs[seed].probe or {"selected": []}) for seed in seeds]
    verdicts = [head["verdict"] if head else None for head in heads]
    n_tested, n_supported = len(verdicts) - verdicts.count(None), verdicts.count(SUPPORTED)
    entry = {
        "name": name,
        "changes": dict(runs[seeds[0]].changes),
        "seeds": seeds,
        "unpaired_seeds": sorted(runs.keys() ^ standard_runs.keys()),
        "runs": [runs[seed].name for seed in seeds],
        "is_causal": any(run.probe is not None for run in runs.values()),
        "verdicts": verdicts,
        "n_tested": n_tested,
        "n_supported": n_supported,
        "supported_interval": share_interval(n_supported, n_tested) if n_tested else None,
        "measures": _measures(seeds, runs, standard_runs),
    }
    return entry | {"sentence": sentence(entry, standard)}


def _measures(seeds: list[int], runs: Mapping[int, LabRun], baseline: Mapping[int, LabRun]) -> dict[str, Any]:
    """Returns each measure of a variant, with the differences from the baseline's runs of the same seeds."""
    values, reference = ({seed: measured(run) for seed, run in by_seed.items()} for by_seed in (runs, baseline))
    measures: dict[str, Any] = {}
    for measure in MEASURES:
        by_seed = [values[seed][measure.name] for seed in seeds]
        measures[measure.name] = {"by_seed": by_seed, **summary(by_seed, is_share=measure.is_share)}
        if runs is not baseline:
            shared = [(values[seed][measure.name], reference[seed][measure.name]) for seed in seeds if seed in baseline]
            differences = [a - b for a, b in shared if a is not None and b is not None]
            measures[measure.name]["difference"] = difference(differences)
    return measures


def sentence(entry: Mapping[str, Any], standard: Mapping[str, Any]) -> str:
    """Returns the result of a variant in one sentence."""
    name, measures = entry["name"], entry["measures"]
    supported = f"link head supported in {entry['n_supported']} of {entry['n_tested']} runs"
    if name == STANDARD:
        return f"{name} ({variant_name(standard)}): the reference of all comparisons; {supported}."
    by_significance: dict[bool | None, list[str]] = {True: [], False: [], None: []}
    for measure in MEASURES:
        test = measures[measure.name]["difference"]
        phrase = measure.label
        if test["is_significant"] is not False and test["mean"] is not None:
            phrase += f" {test['mean']:+{measure.form}}"
        if test["is_significant"]:
            phrase += " [{:+{form}}, {:+{form}}]".format(*test["interval"], form=measure.form)
        if test["mean"] is not None:
            by_significance[test["is_significant"]].append(phrase)
    clauses = [supported]
    if not entry["is_causal"]:
        gap = measures["gap"]["mean"]
        clauses = [
            f"not causal: every position sees its target, so the loss, {abs(gap):.2f} nats/token "
            f"{'below' if gap < 0 else 'above'} the entropy lower bound, is meaningless and the heads are not tested"
        ]
    results = {True: "significant difference in", False: "no significant difference in", None: "too few seeds for"}
    clauses += [f"{text} {'; '.join(by_significance[key])}" for key, text in results.items() if by_significance[key]]
    if entry["unpaired_seeds"]:
        clauses.append(f"seeds without a pair, not in the differences: {', '.join(map(str, entry['unpaired_seeds']))}")
    return f"{name}: {'; '.join(clauses)}."


def overview(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of the table: one row per variant, with mean and interval of every measure."""
    rows = []
    for entry in results["variants"]:
        cells = [_cell(entry["measures"][measure.name], measure) for measure in MEASURES]
        supported = f"{entry['n_supported']} of {entry['n_tested']}" if entry["n_tested"] else "not tested"
        rows.append([entry["name"], str(len(entry["seeds"])), *cells, supported])
    return ["variant", "seeds", *(measure.name.replace("_", " ") for measure in MEASURES), "supported"], rows


def _cell(values: Mapping[str, Any], measure: Measure) -> str:
    if values["mean"] is None:
        return "-"
    interval = ", ".join(format(value, measure.form) for value in values["interval"] or ())
    star = " *" if values.get("difference", {}).get("is_significant") else ""
    return format(values["mean"], measure.form) + (f" [{interval}]" if interval else "") + star


def markdown(results: Mapping[str, Any]) -> str:
    """Returns the table and one sentence per variant."""
    sentences = [f"- {entry['sentence']}" for entry in results["variants"]]
    return "\n".join([*markdown_table(*overview(results)), "", *sentences, ""])


def table_csv(results: Mapping[str, Any]) -> str:
    """Returns one row per variant, seed and measure."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["variant", "seed", "run", "measure", "value"])
    for entry in results["variants"]:
        for measure in MEASURES:
            values = entry["measures"][measure.name]["by_seed"]
            for seed, run, value in zip(entry["seeds"], entry["runs"], values, strict=True):
                writer.writerow([entry["name"], seed, run, measure.name, "" if value is None else f"{value:.6f}"])
    return stream.getvalue()


def draw(results: Mapping[str, Any]) -> bytes:
    """Returns a PNG with one panel per measure: a dot per seed, and the mean with its interval."""
    from matplotlib.figure import Figure

    variants = results["variants"]
    shown = [measure for measure in MEASURES if any(entry["measures"][measure.name]["n"] for entry in variants)]
    n_columns, n_rows = 4, -(-len(shown) // 4)
    figure = Figure(figsize=(3.2 * n_columns, (0.9 + 0.42 * len(variants)) * n_rows), layout="constrained", dpi=120)
    axes = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).ravel()
    for axis, measure in zip(axes, shown, strict=False):
        for height, entry in enumerate(variants):
            values = entry["measures"][measure.name]
            dots = [value for value in values["by_seed"] if value is not None]
            axis.plot(dots, [height] * len(dots), "o", color="#0072b2", alpha=0.35, markersize=5)
            if dots:
                axis.plot(values["interval"] or [values["mean"]] * 2, [height] * 2, color="black", linewidth=1.5)
                axis.plot(values["mean"], height, "|", color="#d55e00", markersize=14, markeredgewidth=2.5)
        axis.set_title(measure.name.replace("_", " "), fontsize=10)
        axis.tick_params(labelsize=8)
        axis.set_yticks(range(len(variants)), [entry["name"] for entry in variants], fontsize=8)
        axis.set_ylim(len(variants) - 0.5, -0.5)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
