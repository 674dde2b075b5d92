"""One switch at a time: runs of several variants and seeds side by side, every difference tested pair by pair of seeds.

A variant is a set of settings; the standard is the one that departs least from the defaults, and every other is named
by what it changes. Runs of one seed read the same stories in the same order, so differences are taken within seeds.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.seeds import HEADLINE, SUPPORTED, summary
from probe.statistics import CONFIDENCE, share_interval

QUESTION = "number"  # what the link-head columns are about


STANDARD = "standard"


_FIRST_STEPS = 20  # whose recorded gradients are averaged: the rate has not risen far, runs still resemble each other


_MOST_EXACT = 16  # seeds; 2^16 ways to change them over


@dataclass(frozen=True, slots=True)
class Measure:
    """One column."""

    name: str
    form: str  # of the printed number
    share: bool  # between 0 and 1, where its interval ends too
    words: str  # in a sentence


MEASURES = (
    Measure("gap", ".4f", False, "the gap to the floor (nats/token)"),
    Measure("rho", ".3f", False, "rho on the pronoun's verb, known nouns"),
    Measure("rho_headline", ".3f", False, "rho on new nouns in new frames"),
    Measure("accuracy", ".3f", True, "the best head's Sel@1"),
    Measure("block_accuracy", ".3f", True, "its F4"),
    Measure("entropy", ".3f", True, "how evenly heads look (1: everywhere alike)"),
    Measure("gradient_norm", ".3f", False, "the gradient's norm in the first steps"),
    Measure("asymmetry", ".3f", True, "the asymmetry of the scores"),
)


@dataclass(frozen=True, slots=True)
class LabRun:
    """What one run left."""

    name: str
    seed: int
    changed: Mapping[str, Any]  # settings in which it is not as the standard
    metrics: Sequence[Mapping[str, Any]]  # its metrics.jsonl
    probe: Mapping[str, Any] | None  # its probe.json; None for a model that cheats, whose heads are not probed


def by_variant(runs: Mapping[str, tuple[int, Mapping[str, Any]]]) -> dict[str, dict[int, str]]:
    """Return the name of the run of each seed, by variant, the standard first.

    Args:
        runs: of each its seed and the settings in which it is not as the standard.

    Raises:
        ValueError: only one variant; a variant twice with one seed; or a variant without a seed of the standard's.

    """
    found: dict[str, dict[int, str]] = {STANDARD: {}}
    for name, (seed, changed) in runs.items():
        seeds = found.setdefault(variant_name(changed), {})
        if seed in seeds:
            raise ValueError(f"{seeds[seed]} and {name} are the same variant with the same seed")
        seeds[seed] = name
    if len(found) < 2:
        raise ValueError("these runs differ in nothing but their seed: runs=DIR says what holds over seeds")
    for variant, seeds in found.items():
        if not seeds.keys() & found[STANDARD].keys():
            raise ValueError(f"{variant} has no seed that the standard has: differences are taken within seeds")
    return found


def compare(runs: Sequence[LabRun], standard: Mapping[str, Any]) -> dict[str, Any]:
    """Return what compare.json holds.

    Args:
        runs: as `by_variant` takes them.
        standard: the standard's value of every setting that some run changes.

    Raises:
        ValueError: as `by_variant`.

    """
    by_name = {run.name: run for run in runs}
    grouped = by_variant({run.name: (run.seed, run.changed) for run in runs})
    variants = {name: {seed: by_name[run] for seed, run in some.items()} for name, some in grouped.items()}
    return {
        "schema_version": 1,
        "question": QUESTION,
        "standard": dict(standard),
        "variants": [_variant(name, some, variants[STANDARD], standard) for name, some in variants.items()],
    }


def variant_name(changed: Mapping[str, Any]) -> str:
    """Return what a variant changes, as the command line would; "standard" where that is nothing."""
    return ", ".join(f"{name.removeprefix('model.')}={_written(value)}" for name, value in changed.items()) or STANDARD


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def measured(run: LabRun) -> dict[str, float | None]:
    """Return the value of each of MEASURES; None where there is none, as for the heads of a model that cheats."""
    last = [one for one in run.metrics if one["split"] == "validation"][-1]
    first = [
        one["gradient_norm"] for one in run.metrics if one["split"] == "train" and one["step"] <= _FIRST_STEPS
    ]  # none where less often is recorded
    found: dict[str, float | None] = dict.fromkeys(one.name for one in MEASURES)
    found |= {"gap": last.get("gap"), "gradient_norm": float(np.mean(first)) if first else None}
    if run.probe is None:
        return found
    for name, holdout in (("rho", "iid"), ("rho_headline", HEADLINE)):
        found[name] = _rho(run.probe, holdout)
    head = _question(run.probe)
    tested = head["test"].get(HEADLINE) if head else None
    if tested:
        found |= {name: tested[name] for name in ("accuracy", "block_accuracy")}
    attention = run.probe["attention"]
    found["entropy"] = float(np.mean(attention["entropy"]))
    found["asymmetry"] = float(np.mean(attention["score_asymmetry"]))
    return found


def _question(probe: Mapping[str, Any]) -> Mapping[str, Any] | None:
    return next((one for one in probe["selected"] if one["question"] == QUESTION), None)


def _rho(probe: Mapping[str, Any], holdout: str) -> float | None:
    """Return rho over the items of all levels of the question."""
    family, _, site = QUESTION.split()
    some = [
        one
        for one in probe["behaviour"]
        if (one["family"], one["site"], one["holdout"]) == (family, site, holdout) and one["bayes_loss"] is not None
    ]
    if not some:
        return None
    blind, nll, bayes = (sum(one["n"] * one[name] for one in some) for name in ("blind_loss", "loss", "bayes_loss"))
    return (blind - nll) / (blind - bayes)


def _variant(
    name: str, some: Mapping[int, LabRun], against: Mapping[int, LabRun], standard: Mapping[str, Any]
) -> dict[str, Any]:
    seeds = sorted(some)
    shared = [seed for seed in seeds if seed in against]
    values = {seed: measured(some[seed]) for seed in seeds}
    theirs = {seed: measured(against[seed]) for seed in shared}
    found: dict[str, Any] = {}
    for one in MEASURES:
        by_seed = [values[seed][one.name] for seed in seeds]
        found[one.name] = {"by_seed": by_seed, **summary(by_seed, is_share=one.share)}
        if name != STANDARD:
            pairs = [(values[seed][one.name], theirs[seed][one.name]) for seed in shared]
            found[one.name]["difference"] = difference([a - b for a, b in pairs if a is not None and b is not None])
    verdicts = [_verdict(some[seed]) for seed in seeds]
    judged = [one for one in verdicts if one is not None]
    n_supported = sum(one == SUPPORTED for one in judged)
    entry = {
        "name": name,
        "changed": dict(next(iter(some.values())).changed),
        "seeds": seeds,
        "n_pairs": len(shared),
        "alone": sorted({*seeds, *against} - {*shared}),  # seeds that only one of the two has
        "runs": [some[seed].name for seed in seeds],
        "cheats": all(run.probe is None for run in some.values()),
        "verdicts": verdicts,
        "n_judged": len(judged),
        "n_supported": n_supported,
        "supported_interval": share_interval(n_supported, len(judged)) if judged else None,
        "measures": found,
    }
    return entry | {"sentence": sentence(entry, standard)}


def _verdict(run: LabRun) -> str | None:
    head = _question(run.probe) if run.probe else None
    return head["verdict"] if head else None


def difference(differences: Sequence[float]) -> dict[str, Any]:
    """Return what pairs of runs of one seed say of a difference.

    Args:
        differences: variant minus standard, one for each seed.

    Returns:
        "mean", "interval" (95 %, Student's t), "p" of the two-sided permutation test, which changes the two runs of a
        seed over in all 2^n ways (of 99,999 drawn ones beyond 16 seeds), and "least_p", the smallest p that n pairs
        allow: .0625 with five. "seen": the interval excludes 0 and p is .05 or less or, where so few pairs do not allow
        that, the least. Both must hold, so where nothing differs this is seen in 5 % of cases or fewer. One or two
        pairs are not tested: "seen" is None.

    """
    from scipy import stats

    n, exact = len(differences), np.round(np.asarray(differences, dtype=float), 12)  # what rounding leaves is none
    found = {"n": n, "mean": float(np.mean(exact)) if n else None, "interval": None, "p": None, "least_p": None}
    if n < 3:
        return found | {"seen": None}
    few = n <= _MOST_EXACT
    tested = stats.permutation_test(
        (exact,),
        np.mean,
        permutation_type="samples",
        n_resamples=np.inf if few else 99_999,
        batch=4096,
        rng=np.random.default_rng(0),
    )
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * stats.sem(exact))
    low, high = float(np.mean(exact)) - half, float(np.mean(exact)) + half
    p, least = float(tested.pvalue), 2.0 ** (1 - n)
    seen = bool((low > 0 or high < 0) and p <= max(0.05, least))
    return found | {"interval": (low, high), "p": p, "least_p": least, "seen": seen}


def sentence(one: Mapping[str, Any], standard: Mapping[str, Any]) -> str:
    """Return in one plain sentence what a variant changed; "no difference seen" is one of the things it can say."""
    name, found = one["name"], one["measures"]
    supported = f"supported in {one['n_supported']} of {one['n_judged']}"
    if name == STANDARD:
        return f"{name} is {variant_name(standard)}: what the others are compared with; {supported}."
    seen, not_seen, untested = [], [], []
    for measure in MEASURES:
        apart = found[measure.name]["difference"]
        if apart["mean"] is None:
            continue
        if apart["seen"] is None:
            untested.append(f"{measure.words} {_signed(apart['mean'], measure.form)}")
        elif apart["seen"]:
            low, high = (_signed(value, measure.form) for value in apart["interval"])
            seen.append(f"{measure.words} {_signed(apart['mean'], measure.form)} [{low}, {high}]")
        else:
            not_seen.append(measure.words)
    parts = [f"changes {'; '.join(seen)}"] if seen else []
    parts += [f"no difference seen in {', '.join(not_seen)}" if seen else "no difference seen"] if not_seen else []
    parts += [f"too few seeds to test: {'; '.join(untested)}"] if untested else []
    if one["cheats"]:
        gap = found["gap"]["mean"]
        where = f"{abs(gap):.2f} nats/token {'BELOW what is possible' if gap < 0 else 'above the floor so far'}"
        cheats = f"cheats: each word sees the one it must predict, so its loss, {where}, means nothing"
        parts = [f"{cheats}, it cannot write, and its heads are not probed", *parts]
    else:
        parts.append(supported)
    if one["alone"]:
        parts.append(f"seeds {', '.join(map(str, one['alone']))} have no partner and are not in the differences")
    return f"{name}: {'; '.join(parts)}."


def _signed(value: float, form: str) -> str:
    return format(value, f"+{form}")


def markdown(results: Mapping[str, Any]) -> str:
    """Return the table and the sentences that a person reads."""
    header, rows = overview(results)
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    lines += ["", *(f"- {one['sentence']}" for one in results["variants"])]
    return "\n".join(lines) + "\n"


def overview(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the table: every variant, with every measure and its verdicts."""
    rows = []
    for one in results["variants"]:
        cells = [_cell(one["measures"][measure.name], measure) for measure in MEASURES]
        supported = f"{one['n_supported']} of {one['n_judged']}" if one["n_judged"] else "not probed"
        rows.append([one["name"], str(len(one["seeds"])), *cells, supported])
    return ["variant", "seeds", *(one.name.replace("_", " ") for one in MEASURES), "supported"], rows


def _cell(found: Mapping[str, Any], measure: Measure) -> str:
    if found["mean"] is None:
        return "-"
    interval = ", ".join(format(value, measure.form) for value in found["interval"] or ())
    mark = " *" if found.get("difference", {}).get("seen") else ""
    return format(found["mean"], measure.form) + (f" [{interval}]" if interval else "") + mark


LEGEND = (
    "gap  loss above the floor, nats/token; rho  0 the pronoun is ignored, 1 as good as can be, below 0 misled",
    f"accuracy, block_accuracy  of the head chosen for {QUESTION}, on new nouns in new frames; supported  its verdicts",
    "entropy  1 the heads look everywhere alike, 0 at one word; asymmetry  0 scores are alike both ways, .71 random",
    f"gradient norm  before clipping, mean of the steps recorded among the first {_FIRST_STEPS}",
    "*  differs from the standard: the 95 % interval of the difference within seeds excludes 0, and the permutation",
    "   p is .05 or less or, with fewer than six seeds, the least there is (.0625 for five, .25 for three);",
    "   not corrected for the columns",
)


def table_csv(results: Mapping[str, Any]) -> str:
    """Return one row for each variant, seed and measure."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["variant", "seed", "run", "measure", "value"])
    for one in results["variants"]:
        for measure in MEASURES:
            values = one["measures"][measure.name]["by_seed"]
            for seed, run, value in zip(one["seeds"], one["runs"], values, strict=True):
                writer.writerow([one["name"], seed, run, measure.name, "" if value is None else f"{value:.6f}"])
    return stream.getvalue()


def draw(results: Mapping[str, Any]) -> bytes:
    """Draw every measure of every variant, a dot for each seed and the mean with its interval; return a PNG.

    Raises:
        ImportError: matplotlib, an extra, is not installed.

    """
    from matplotlib.figure import Figure

    variants, shown = results["variants"], [one for one in MEASURES if _known(results, one.name)]
    n_columns = 4
    n_rows = -(-len(shown) // n_columns)
    figure = Figure(figsize=(3.2 * n_columns, (0.9 + 0.42 * len(variants)) * n_rows), layout="constrained", dpi=120)
    axes = figure.subplots(n_rows, n_columns, squeeze=False, sharey=True).ravel()
    for axis, measure in zip(axes, shown, strict=False):
        for place, one in enumerate(variants):
            found = one["measures"][measure.name]
            known = [value for value in found["by_seed"] if value is not None]
            axis.plot(known, [place] * len(known), "o", color="#0072b2", alpha=0.35, markersize=5)
            if found["mean"] is not None:
                low, high = found["interval"] or (found["mean"], found["mean"])
                axis.plot([low, high], [place, place], color="black", linewidth=1.5)
                axis.plot(found["mean"], place, "|", color="#d55e00", markersize=14, markeredgewidth=2.5)
        standard = variants[0]["measures"][measure.name]["mean"]
        if standard is not None:
            axis.axvline(standard, color="grey", linewidth=0.8, linestyle=":")
        axis.set_title(measure.name.replace("_", " "), fontsize=10)
        axis.tick_params(labelsize=8)
        axis.set_yticks(range(len(variants)), [one["name"] for one in variants], fontsize=8)
        axis.set_ylim(len(variants) - 0.5, -0.5)
    for axis in axes[len(shown) :]:
        axis.set_axis_off()
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


def _known(results: Mapping[str, Any], name: str) -> bool:
    return any(one["measures"][name]["mean"] is not None for one in results["variants"])
