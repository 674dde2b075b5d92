"""Results over training seeds: how many runs have a link head, its scores, and when it emerges.

Heads are matched by function: each run's head is the one its own dev items selected, whatever its index.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from data.text_tables import markdown_table
from probe.emergence import half_rise
from probe.items import HEADLINE
from probe.statistics import CONFIDENCE, MIN_SEEDS, share_interval
from probe.verdict import MIN_SHARE_OF_SEEDS, SUPPORTED, evidence_of, judge

_GROUP = ("family", "level", "site", "holdout")
_NATURAL_FIELDS = ("site", "layer", "head", "contrast", "t", "untrained_t", "p_corrected", "verdict")
_SCORES = ("accuracy", "block_accuracy", "pronoun_contrast")
_NEVER: dict[str, float | None] = dict.fromkeys(("t50", "end"))  # timing if a curve did not rise


_NEXT_PRONOUN_FIELDS = (
    "layer head verdict evidence_level unit head_set p_corrected n share share_interval flips follows_twin "
    "author_accuracy nearest_accuracy"
).split()


@dataclass(frozen=True, slots=True)
class SeedRun:
    """The files of one run."""

    name: str
    seed: int
    probe: Mapping[str, Any]  # probe.json
    metrics: Sequence[Mapping[str, Any]]  # metrics.jsonl


def over_seeds(runs: Sequence[SeedRun]) -> dict[str, Any]:
    """Return the content of seeds.json for runs with the same settings and different seeds."""
    names = [[entry["question"] for entry in run.probe["selected"]] for run in runs]
    return {
        "schema_version": 2,
        "seeds": [run.seed for run in runs],
        "runs": [run.name for run in runs],
        "questions": [_question(name, runs) for name in names[0] if all(name in run_names for run_names in names)],
        "next_pronoun": _next_pronoun(runs),
        "natural": _natural(runs),
        "behaviour": _behaviour(runs),
    }


def _behaviour(runs: Sequence[SeedRun]) -> list[dict[str, Any]]:
    """Return the models' answers over seeds, for every group of items that all runs have."""
    groups: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for run in runs:
        for entry in run.probe["behaviour"]:
            groups.setdefault(tuple(entry[name] for name in _GROUP), []).append(entry)
    return [
        {
            **dict(zip(_GROUP, group, strict=True)),
            "n_items": [entry["n"] for entry in entries],
            "resolved_share": summary([entry["resolved_share"] for entry in entries]),
            "accuracy": summary([entry["accuracy"] for entry in entries], is_share=True),
        }
        for group, entries in groups.items()
        if len(entries) == len(runs)
    ]


def _next_pronoun(runs: Sequence[SeedRun]) -> list[dict[str, Any]]:
    """Return the questions about the next pronoun over seeds, for every question that all runs have tested.

    A run reaches level E4 if its choice is more than recency and at least 80 % of five or more seeds are supported.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        for entry in run.probe.get("next_pronoun", ()):
            wrong = entry["details"]["author_where_nearest_is_wrong"]
            copied = {name: entry[name] for name in _NEXT_PRONOUN_FIELDS}
            copied |= {"seed": run.seed, "author_where_nearest_is_wrong": wrong, "n_two": entry["details"]["n_two"]}
            found.setdefault(entry["question"], []).append(copied)
    results = []
    for question, heads in found.items():
        if len(heads) < len(runs):
            continue
        n_supported = sum(head["verdict"] == SUPPORTED for head in heads)
        is_replicated = len(heads) >= MIN_SEEDS and n_supported >= MIN_SHARE_OF_SEEDS * len(heads)
        for head in heads:
            low = head["author_where_nearest_is_wrong"]["low"]
            if is_replicated and head["verdict"] == SUPPORTED and low is not None and low > 0.5:
                head["evidence_level"] = "E4"
        results.append({
            "question": question,
            "n": len(heads),
            "n_supported": n_supported,
            "share_interval": share_interval(n_supported, len(heads)),
            "verdicts": dict(Counter(head["verdict"] for head in heads)),
            "share": summary([head["share"] for head in heads], is_share=True),
            "flips": summary([head["flips"] for head in heads], is_share=True),
            "author_accuracy": summary([head["author_accuracy"] for head in heads], is_share=True),
            "nearest_accuracy": summary([head["nearest_accuracy"] for head in heads], is_share=True),
            "heads": heads,
        })  # fmt: skip
    return results


def _natural(runs: Sequence[SeedRun]) -> list[dict[str, Any]]:
    """Return the chosen heads in natural text over seeds, for every question and target that all runs have tested."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for run in runs:
        for question, result in run.probe.get("natural", {}).get("questions", {}).items():
            for target, entry in result["chosen"].items():
                copied = {name: entry[name] for name in _NATURAL_FIELDS}
                groups.setdefault((question, target), []).append({"seed": run.seed, **copied})
    return [
        {
            "question": question,
            "target": target,
            "verdicts": dict(Counter(head["verdict"] for head in heads)),
            "contrast": summary([head["contrast"] for head in heads]),
            "heads": heads,
        }
        for (question, target), heads in groups.items()
        if len(heads) == len(runs)
    ]


def _question(name: str, runs: Sequence[SeedRun]) -> dict[str, Any]:
    entries = [next(entry for entry in run.probe["selected"] if entry["question"] == name) for run in runs]
    n_supported = sum(entry["verdict"] == SUPPORTED for entry in entries)
    replication = {"n": len(runs), "n_supported": n_supported}
    heads = [_head(entry, run.seed, replication) for entry, run in zip(entries, runs, strict=True)]
    times = [curve_times(run.metrics, name, head["layer"], head["head"]) for head, run in zip(heads, runs, strict=True)]
    curves = [curve for curve in times[0] if all(curve in run_times for run_times in times)]
    return {
        "question": name,
        "n": len(heads),
        "n_supported": n_supported,
        "share_interval": share_interval(n_supported, len(heads)),
        "verdicts": dict(Counter(head["verdict"] for head in heads)),
        "heads": heads,
        "scores": {
            score: summary([head[score] for head in heads], is_share=score != "pronoun_contrast") for score in _SCORES
        },
        "timing": {curve: _curve_over_seeds(curve, [run_times[curve] for run_times in times]) for curve in curves},
    }


def _head(entry: Mapping[str, Any], seed: int, replication: Mapping[str, int]) -> dict[str, Any]:
    """Return the index, headline scores, verdict and evidence level of a run's own head, judged with all seeds."""
    scores = {score: entry["test"][HEADLINE][score] for score in _SCORES}
    level = judge(evidence_of(entry, replication)).level
    index = {name: entry[name] for name in ("layer", "head", "verdict")}
    return {"seed": seed} | scores | index | {"evidence_level": level}


def curve_times(
    metrics: Sequence[Mapping[str, Any]], name: str, layer: int, head: int
) -> dict[str, dict[str, float | None]]:
    """Return the timing of the training curves of one head and of the model for a question, from metrics.jsonl.

    All times are None for a head that ends below the chance level, and for a resolved share that ends at or below 0:
    nothing has emerged. Without readings of the question the result is empty.
    """
    records = [record for record in metrics if record["split"] == "probe" and name in record]
    if not records:
        return {}
    steps = [float(record["step"]) for record in records]
    readings = [record[name] for record in records]

    def times(values: list[float], start: float | None) -> dict[str, float | None]:
        return {"t50": half_rise(steps, values, start), "end": values[-1]}

    result: dict[str, dict[str, float | None]] = {}
    if all(f"{name}_answer" in record for record in records):
        result["answer loss"] = times([record[f"{name}_answer"]["model"] for record in records], None)
    accuracy = [reading["accuracy_heads"][layer][head] for reading in readings]
    contrast = [reading["pronoun_contrast_heads"][layer][head] for reading in readings]
    has_emerged = accuracy[-1] > readings[-1]["chance_level"]
    result["accuracy"] = times(accuracy, 0.5) if has_emerged else _NEVER
    result["pronoun contrast"] = times(contrast, 0.0) if has_emerged else _NEVER
    if all("resolved_share" in reading for reading in readings):
        share = [reading["resolved_share"] for reading in readings]
        result["resolved share"] = times(share, 0.0) if share[-1] > 0 else _NEVER
    return result


def _curve_over_seeds(curve: str, times: Sequence[Mapping[str, float | None]]) -> dict[str, Any]:
    return {
        "by_seed": list(times),
        "t50": summary([seed_times["t50"] for seed_times in times]),
        "end": summary([seed_times["end"] for seed_times in times], is_share=curve == "accuracy"),
    }


def summary(values: Sequence[float | None], *, is_share: bool = False) -> dict[str, Any]:
    """Return count, mean, minimum and 95 % Student t interval of the values that are not None.

    The interval is None below MIN_SEEDS values; that of a share is clipped to 0 and 1. (A sign or rank interval of five
    seeds would cover at most 1 - 2 / 2^5 = 93.75 %.)
    """
    numbers = [value for value in values if value is not None]
    interval = None
    if len(numbers) >= MIN_SEEDS:
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(numbers) - 1) * stats.sem(numbers))
        interval = (float(np.mean(numbers)) - half, float(np.mean(numbers)) + half)
    if interval and is_share:
        interval = (max(0.0, interval[0]), min(1.0, interval[1]))
    return {
        "n": len(numbers),
        "mean": float(np.mean(numbers)) if numbers else None,
        "minimum": min(numbers) if numbers else None,
        "interval": interval,
    }


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of seeds.md."""
    timed = [entry for entry in results["questions"] if entry["timing"]]
    answered = [entry for entry in results["behaviour"] if entry["resolved_share"]["n"]]
    lines = [
        f"# Results over training seeds {', '.join(map(str, results['seeds']))}",
        "",
        "Each run's head is the one its own dev items selected. Scores are means over seeds on the headline hold-out,",
        f"with 95 % intervals from {MIN_SEEDS} seeds on.",
    ]
    if results["questions"]:
        lines += ["", *markdown_table(*overview(results))]
    if results["next_pronoun"]:
        header = [
            "next pronoun",
            "supported in",
            "share",
            "flips",
            "author's",
            "nearest",
            "head (share) and level per seed",
        ]
        lines += ["", *markdown_table(header, list(map(_next_pronoun_row, results["next_pronoun"])))]
    if results["natural"]:
        header = ["natural text", "looks at the", "verdicts", "contrast", "head (contrast, t) per seed"]
        lines += ["", *markdown_table(header, list(map(_natural_row, results["natural"])))]
    if timed:
        header = ["question", "curve", "end", "t50 (step)"]
        rows = [_timing_row(entry["question"], *curve) for entry in timed for curve in entry["timing"].items()]
        lines += ["", "t50: the step at which a curve has risen half way from chance to its end.", ""]
        lines += markdown_table(header, rows)
    if answered:
        header = ["answers", "hold-out", "n", "resolved share", "minimum", "accuracy", "minimum"]
        lines += ["", "The models' answers. Resolved share: 0 if the pronoun is ignored, 1 at the entropy lower bound,"]
        lines += ["below 0 if the model is misled.", "", *markdown_table(header, list(map(_answer_row, answered)))]
    return "\n".join(lines) + "\n"


def _next_pronoun_row(entry: Mapping[str, Any]) -> list[str]:
    low, high = entry["share_interval"]
    heads = []
    for head in entry["heads"]:
        unit = f" set of {len(head['head_set']['heads'])}" if head["unit"] == "set" else ""
        heads.append(f"L{head['layer']}H{head['head']}{unit} ({head['share']:.2f}) {head['evidence_level']}")
    names = ("share", "flips", "author_accuracy", "nearest_accuracy")
    supported = f"{entry['n_supported']} of {entry['n']} [{low:.2f}, {high:.2f}]"
    return [entry["question"], supported, *(_show(entry[name], ".2f") for name in names), " ".join(heads)]


def _natural_row(entry: Mapping[str, Any]) -> list[str]:
    verdicts = ", ".join(f"{verdict} {count}" for verdict, count in entry["verdicts"].items())
    heads = [f"L{head['layer']}H{head['head']} ({head['contrast']:.2f}, {head['t']:.1f})" for head in entry["heads"]]
    return [entry["question"], entry["target"], verdicts, _show(entry["contrast"], ".2f"), " ".join(heads)]


def _timing_row(question: str, curve: str, times: Mapping[str, Any]) -> list[str]:
    return [question, curve, _show(times["end"], ".2f"), _show(times["t50"], ".0f")]


def _answer_row(entry: Mapping[str, Any]) -> list[str]:
    name = entry["family"] if entry["family"] == entry["level"] else f"{entry['family']} {entry['level']}"
    resolved, accuracy = entry["resolved_share"], entry["accuracy"]
    numbers = [text for score in (resolved, accuracy) for text in (_show(score, ".3f"), f"{score['minimum']:.3f}")]
    return [f"{name} at {entry['site']}", entry["holdout"], str(min(entry["n_items"])), *numbers]


def overview(results: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the first table: what each question's heads do over seeds."""
    rows = []
    for entry in results["questions"]:
        low, high = entry["share_interval"]
        supported = f"{entry['n_supported']} of {entry['n']} [{low:.2f}, {high:.2f}]"
        verdicts = ", ".join(f"{verdict} {count}" for verdict, count in entry["verdicts"].items())
        scores = [_show(entry["scores"][score], ".3f") for score in _SCORES]
        heads = " ".join(f"L{head['layer']}H{head['head']} {head['evidence_level']}" for head in entry["heads"])
        rows.append([entry["question"], supported, verdicts, *scores, heads])
    scores = [score.replace("_", " ") for score in _SCORES]
    return ["question", "supported in", "verdicts", *scores, "head and level per seed"], rows


def _show(result: Mapping[str, Any], form: str) -> str:
    if result["mean"] is None:
        return "never"
    interval = ", ".join(format(bound, form) for bound in result["interval"] or ())
    return format(result["mean"], form) + (f" [{interval}]" if interval else "")
