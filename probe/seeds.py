"""What holds over training seeds: in how many there is a link head, where it is, when it came and after what.

Heads are matched by what they do, the one each run's own dev items chose for a question, never by their index.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.emergence import is_phase_change, timing
from probe.items import curve_name
from probe.statistics import MIN_SEEDS, seeds_interval, share_interval

HEADLINE = "headline"  # the hold-out that claims are made on; the first there is where it is missing
SUPPORTED = "supported"
CURVES = ("payoff loss", "head Sel@1", "head DD", "rho")
Curve = tuple[list[float], list[float], float | None]  # steps, values, and the value of knowing nothing


@dataclass(frozen=True, slots=True)
class SeedRun:
    """What one run left."""

    name: str
    seed: int
    probe: Mapping[str, Any]  # its probe.json
    metrics: Sequence[Mapping[str, Any]]  # its metrics.jsonl


def over_seeds(runs: Sequence[SeedRun]) -> dict[str, Any]:
    """Return what seeds.json holds; every question that all the runs were asked has an entry.

    Args:
        runs: of one setting, of different seeds.

    """
    asked = [[one["question"] for one in run.probe["selected"]] for run in runs]
    common = [question for question in asked[0] if all(question in some for some in asked)]
    return {
        "schema_version": 1,
        "seeds": [run.seed for run in runs],
        "runs": [run.name for run in runs],
        "questions": [_question(question, runs) for question in common],
        "behaviour": _behaviour(runs),
    }


def _behaviour(runs: Sequence[SeedRun]) -> list[dict[str, Any]]:
    """Return what the models themselves do at every payoff that all of them were asked for, over the seeds."""
    by_place: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        for one in run.probe["behaviour"]:
            by_place.setdefault(tuple(one[name] for name in ("family", "level", "site", "holdout")), []).append(one)
    return [
        {
            **dict(zip(("family", "level", "site", "holdout"), place, strict=True)),
            "n_items": [one["n"] for one in some],
            "rho": summary([one["rho"] for one in some]),
            "accuracy": summary([one["accuracy"] for one in some], share=True),
        }
        for place, some in by_place.items()
        if len(some) == len(runs)
    ]


def _question(question: str, runs: Sequence[SeedRun]) -> dict[str, Any]:
    heads = [_head(question, run) for run in runs]
    verdicts = [one["verdict"] for one in heads if one["verdict"] is not None]
    judged = len(verdicts) == len(heads)
    n_supported = sum(one["verdict"] == SUPPORTED if judged else one["above_luck"] for one in heads)
    times = [_times(question, one, run) for one, run in zip(heads, runs, strict=True)]
    curves = [name for name in CURVES if all(name in some for some in times)]
    return {
        "question": question,
        "n": len(heads),
        "n_supported": n_supported,
        "share_interval": share_interval(n_supported, len(heads)),
        "by": "verdict" if judged else "Sel@1 above luck",
        "verdicts": dict(Counter(verdicts)) if judged else {},
        "same_index": len({(one["layer"], one["head"]) for one in heads}) == 1,
        "heads": heads,
        "scores": {
            name: summary([one[name] for one in heads], share=name != "pronoun_contrast")
            for name in ("accuracy", "block_accuracy", "pronoun_contrast")
        },
        "timing": {name: _over_curves(name, [some[name] for some in times]) for name in curves},
        "order": _order([{name: some[name]["t50"] for name in curves} for some in times]),
    }


def _head(question: str, run: SeedRun) -> dict[str, Any]:
    """Return where a run's own head for a question is and what it scores on the hold-out that counts."""
    one = next(one for one in run.probe["selected"] if one["question"] == question)
    holdout = HEADLINE if HEADLINE in one["test"] else next(iter(one["test"]))
    found = one["test"][holdout]
    interval, luck = found.get("accuracy_interval"), found.get("chance_level")
    return {
        "seed": run.seed,
        "layer": one["layer"],
        "head": one["head"],
        "holdout": holdout,
        **{name: found[name] for name in ("accuracy", "block_accuracy", "pronoun_contrast")},
        "above_luck": interval is not None and None not in (luck, interval[0]) and interval[0] > luck,
        "verdict": one.get("verdict"),
        "evidence_level": one.get("evidence_level"),
    }


def head_curves(metrics: Sequence[Mapping[str, Any]], name: str, layer: int, head: int) -> dict[str, Curve]:
    """Return the curves of one head and of the model for a family and site, as in "number", from a run's records.

    A head that ends within luck has no curves of its own, and a rho that ends at or below 0 none: there is nothing of
    which to say when it came.
    """
    found = [one for one in metrics if one["split"] == "probe" and name in one]
    if not found:
        return {}
    steps = [float(one["step"]) for one in found]
    accuracy, pronoun_contrast = (
        [one[name][f"{score}_heads"][layer][head] for one in found] for score in ("accuracy", "pronoun_contrast")
    )
    curves: dict[str, Curve] = {}
    if accuracy[-1] > found[-1][name]["luck"]:
        curves |= {"head Sel@1": (steps, accuracy, 0.5), "head DD": (steps, pronoun_contrast, 0.0)}
    if all("rho" in one[name] for one in found) and found[-1][name]["rho"] > 0:
        curves["rho"] = (steps, [one[name]["rho"] for one in found], 0.0)
    if all(f"{name}_payoff" in one for one in found):
        curves["payoff loss"] = (steps, [one[f"{name}_payoff"]["model"] for one in found], None)
    return curves


def _times(question: str, head: Mapping[str, Any], run: SeedRun) -> dict[str, dict[str, float | None]]:
    """Return the timing of every curve, None in a curve that did not rise; none for a part of a family."""
    curves = head_curves(run.metrics, curve_name(question), head["layer"], head["head"])
    if not curves:
        return {}
    found = {name: {**timing(*curve), "end": curve[1][-1]} for name, curve in curves.items()}
    never: dict[str, float | None] = dict.fromkeys(("t10", "t50", "t90", "width", "end"))
    measured = any("rho" in one.get(curve_name(question), ()) for one in run.metrics)
    return {name: never for name in ("head Sel@1", "head DD", *(["rho"] if measured else []))} | found


def _over_curves(name: str, times: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    summaries = {name: summary([one[name] for one in times]) for name in ("t50", "width")}
    summaries["end"] = summary([one["end"] for one in times], share=name == "head Sel@1")
    return {"by_seed": list(times), **summaries, "phase_change": is_phase_change([one["width"] for one in times])}


def _order(t50: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    """Return in which order the curves pass their half, seed by seed, and in how many seeds the commonest holds."""
    orders = [
        [name for name, step in sorted(one.items(), key=lambda pair: pair[1] or 0.0) if step is not None] for one in t50
    ]
    commonest, n = Counter(map(tuple, orders)).most_common(1)[0]
    return {"by_seed": orders, "commonest": list(commonest), "n_commonest": n}


def summary(values: Sequence[float | None], *, share: bool = False) -> dict[str, Any]:
    """Return how many values are known, their mean, the least, and the mean's 95 % interval where seeds are enough.

    The interval of a share is cut off at 0 and 1, which Student's t knows nothing of.
    """
    known = [value for value in values if value is not None]
    interval = seeds_interval(known) if len(known) >= MIN_SEEDS else None
    if interval and share:
        interval = (max(0.0, interval[0]), min(1.0, interval[1]))
    return {
        "n": len(known),
        "mean": float(np.mean(known)) if known else None,
        "least": min(known) if known else None,
        "interval": interval,
    }


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables a person reads."""
    lines = [
        f"# The same settings over training seeds: {', '.join(map(str, results['seeds']))}",
        "",
        "A head is the one that a run's own dev items chose; which index it has says nothing. t50: the step at which",
        "a curve has gone half its way from knowing nothing to its end. Phase change: t10 to t90 under 10 % of the",
        f"training in every seed, two or more. Means have their 95 % interval from {MIN_SEEDS} seeds on.",
        "",
    ]
    header, rows = overview(results)
    lines += [f"| {' | '.join(header)} |", "|---" * len(header) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
    timed = [one for one in results["questions"] if one["timing"]]
    lines += (
        ["", "| question | curve | ends at | t50 (step) | t10→t90, share of training | phase change |"] if timed else []
    )
    lines += ["|---|---|---|---|---|---|"] if timed else []
    for one in timed:
        for name, found in one["timing"].items():
            seen = [_shown(found["end"], ".2f"), _shown(found["t50"], ".0f"), _shown(found["width"], ".2f")]
            change = "yes" if found["phase_change"] else "no"
            lines.append(f"| {one['question']} | {name} | {' | '.join(seen)} | {change} |")
    for one in timed:
        order = one["order"]
        seeds = f"{order['n_commonest']} of {one['n']} seeds"
        lines += ["", f"{one['question']}, order of t50 in {seeds}: {', '.join(order['commonest'])}."]
    answered = [one for one in results["behaviour"] if one["rho"]["n"]]
    lines += [
        "",
        "What the models do at the payoff. rho: 0 the pronoun is ignored, 1 as good as can be, below 0 misled;",
        "prefers: how often the antecedent's words are likelier than the other's.",
        "",
        "| payoff | hold-out | n | rho | worst seed | prefers | worst seed |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in answered:
        name = one["family"] if one["family"] == one["level"] else f"{one['family']} {one['level']}"
        figures = [f"{_shown(one[key], '.3f')} | {one[key]['least']:.3f}" for key in ("rho", "accuracy")]
        n_items = min(one["n_items"])
        lines.append(f"| {name} at {one['site']} | {one['holdout']} | {n_items} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def overview(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of the first table: what every question's own heads do."""
    rows = []
    for one in results["questions"]:
        low, high = one["share_interval"]
        share = f"{one['n_supported']} of {one['n']} [{low:.2f}, {high:.2f}]"
        by = ", ".join(f"{word} {count}" for word, count in one["verdicts"].items()) or one["by"]
        where = " ".join(f"L{head['layer']}H{head['head']}" for head in one["heads"])
        scores = [_shown(one["scores"][name], ".3f") for name in ("accuracy", "block_accuracy", "pronoun_contrast")]
        rows.append([one["question"], share, by, *scores, where])
    return ["question", "link head in", "by", "Sel@1", "F4", "DD", "head of each seed"], rows


def _shown(found: Mapping[str, Any], form: str) -> str:
    if found["mean"] is None:
        return "never"
    interval = ", ".join(format(value, form) for value in found["interval"] or ())
    return format(found["mean"], form) + (f" [{interval}]" if interval else "")
