"""What a person or a program reads of a probe: the tables, and the rows behind them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from probe.baselines import REFERENCE_RULES
from probe.claim import is_external
from probe.items import QUESTIONS, UNDECIDED, questions_with_items
from probe.scores import Scores
from probe.sentences import WordRow
from probe.study import HEADLINE, Reading

_MANY = 8  # questions; with more, only the overview is printed and the rest is left to the files


_LEGEND = (
    "Sel@1  share of items where the antecedent gets more weight than the other candidate; chance is 1/2",
    "F4     share of blocks with all four cells right, order x which is meant; DD  mean log ratio of the two weights",
    "Str@1  share where no other word gets more; luck  what the best of all heads reaches if none knows anything",
    "T      share of the answer that turns when this head's two weights are exchanged; p  corrected for all heads",
    "rho    0 the pronoun is ignored, 1 as good as can be, below 0 misled",
    "hold-outs: pairs, nouns, templates that training never used with a pronoun; headline: new nouns in new templates;",
    "           distance: three to six sentences between; distractors: two more mentions that cannot be meant",
)


# In place of what is said of training.
_LEGEND_ELSEWHERE = (
    "hold-outs: pairs, nouns, templates that heads were not chosen on; headline: both; of training nothing is known;",
)


def table(results: dict[str, Any], maps: Sequence[str] = ()) -> list[str]:
    """Return the printed lines: every question's verdict, then, of a few questions, each head on every hold-out.

    `maps`: lines that stand below the verdicts.
    """
    some = results["selected"]
    lines = ["", "question             head   Sel@1 [95 % interval]   F4 [95 % interval]       p      T  verdict"]
    lines += [*(_overview_line(one) for one in some), *maps]
    for one in some if len(some) <= _MANY else []:
        lines += ["", f"{one['question']}: {_meaning(one['question'])}"]
        lines += [f"head L{one['layer']}H{one['head']}, chosen on dev: {one['verdict']}, {one['evidence_level']}"]
        lines += [f"  why no more: {reason}" for reason in one["reasons"]]
        lines += ["  hold-out       n  Sel@1 [95 % interval]   F4 [95 % interval]        DD  Str@1   luck"]
        lines += [_holdout_line(name, found) for name, found in one["test"].items()]
        for name, found in one["test"].items():
            lines += _nothing_lines(name, found) if "untrained" in found else []
    for one in results["importance"] if len(some) <= _MANY else []:
        lines += ["", *importance_lines(one)]
    lines += ["", "the model itself: rho, and share of items where it prefers the antecedent's words [95 % interval]"]
    for one in results["behaviour"]:
        if len(some) <= _MANY or one["holdout"] in ("iid", HEADLINE):
            lines.append(_behaviour_line(one))
    if is_external(results.get("model", {})):
        return [*lines, "", *_LEGEND[:-2], *_LEGEND_ELSEWHERE, _LEGEND[-1]]
    return [*lines, "", *_LEGEND]


def _meaning(name: str) -> str:
    return next(question.description for question in QUESTIONS if question.name == name)


def _overview_line(one: dict[str, Any]) -> str:
    holdout = HEADLINE if HEADLINE in one["test"] else next(iter(one["test"]))
    found = one["test"][holdout]
    p = max(found["p_pair_accuracy"], found["p_pronoun_contrast"])
    turned = (one.get("causal") or {}).get("attention_swap")
    accuracy, block_accuracy = (
        f"{found[name]:.3f} {_between(found[f'{name}_interval'])}" for name in ("accuracy", "block_accuracy")
    )
    return (
        f"{one['question']:<20} L{one['layer']}H{one['head']}   {accuracy}   {block_accuracy}  {p:6.4f}  {_effect(turned)}  "
        f"{one['verdict']} {one['evidence_level']}"
    )


def _between(interval: Sequence[float]) -> str:
    low, high = interval
    return "[  -  ,   -  ]" if np.isnan(low) else f"[{low:.3f}, {high:.3f}]"  # of too few blocks there is none


def _effect(value: float | None) -> str:
    return "    -" if value is None else f"{value:5.2f}"


def _behaviour_line(one: dict[str, Any]) -> str:
    where = f"{one['family']} {one['level']}" if one["family"] != one["level"] else one["family"]
    rho = "  -   " if one["resolved_share"] is None else f"{one['resolved_share']:6.3f}"
    share = f"{one['accuracy']:.3f} {_between(one['interval'])}"
    return f"  {where:<11} {one['site']} {one['holdout']:<11} {one['n']:>5}  {rho}  {share}"


def _holdout_line(name: str, found: dict[str, Any]) -> str:
    accuracy, block_accuracy = (
        f"{found[score]:.3f} {_between(found[f'{score}_interval'])}" for score in ("accuracy", "block_accuracy")
    )
    return (
        f"  {name:<11} {found['n_items']:>5}  {accuracy}  {block_accuracy}  {found['pronoun_contrast']:>5.2f}  {found['strict_accuracy']:.3f}  "
        f"{found['chance_level']:.3f}"
    )


def _nothing_lines(name: str, found: dict[str, Any]) -> list[str]:
    by_score: dict[str, list[str]] = {}
    for rule, scores in found["baselines"].items():
        if rule not in REFERENCE_RULES:
            by_score.setdefault(f"{scores['accuracy']:.3f}", []).append(rule)
    rules = "; ".join(f"{', '.join(some)} {score}" for score, some in by_score.items())
    knowing = ", ".join(
        f"{rule} {found['baselines'][rule]['accuracy']:.3f}" for rule in found["baselines"] if rule in REFERENCE_RULES
    )
    blank, own = found["untrained"], found["habit_baseline"]
    (low, high), (least, most) = blank["accuracy_interval"], blank["accuracy_range"]
    return [
        f"  {name:<11} Sel@1 of what knows nothing: {rules};",
        f"              its own taste for words and places, learnt on dev {own['accuracy']:.3f}, "
        f"{max(0.0, own['explained']):.0%} of what it prefers; agreement alone: {knowing};",
        f"              best heads of {blank['n_models']} untrained models {blank['accuracy']:.3f} "
        f"[{low:.3f}, {high:.3f}], one by one {least:.3f} to {most:.3f}, F4 {blank['block_accuracy']:.3f}",
    ]


def importance_lines(one: dict[str, Any]) -> list[str]:
    """Return how far weight, what is moved (norm) and what hangs on it (effect) put links in the same order."""
    links = f"{one['all_heads']['n_links']:,} links of {len(one['heads'])} heads"
    chosen = f"L{one['layer']}H{one['head']} alone"
    largest = []
    for name, short in _MEANINGS.items():
        most = max(one["heads"], key=lambda each: each["antecedent"][name])
        value = most["antecedent"][name]
        unit = " nats" if name == "effect" else ""
        largest.append(f"{short} L{most['layer']}H{most['head']} {value:.2f}{unit}" if value else f"{short} none")
    return [
        f"three meanings of importance, {one['question']}, {links} ({one['holdout']}): rank correlations [95 %]",
        f"  {'all heads':<11} {_correlations(one['all_heads'])}",
        f"  {chosen:<11} {_correlations(one['chosen_head'])}",
        f"  largest mean at the antecedent: {', '.join(largest)}",
    ]


_MEANINGS = {"weight": "weight", "value_norm": "norm", "effect": "effect"}


def _correlations(found: dict[str, Any]) -> str:
    cells = []
    for one, other in combinations(_MEANINGS, 2):
        value, interval = found[f"{one}_{other}"], found[f"{one}_{other}_interval"]
        shown = "-" if value is None else f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"
        cells.append(f"{_MEANINGS[one]}~{_MEANINGS[other]} {shown}")
    return "  ".join(cells)


def cell_lines(cells: list[dict[str, Any]]) -> list[str]:
    """Return two lines for each cell of a showcase: the text, and what the head and the model make of it."""
    lines = []
    for one in cells:
        weights = ", ".join(f"{word} {weight:.2f}" for word, weight in one["weights"].items())
        named = ((word if word.isalpha() else f'"{word}"', chance) for word, chance in one["next"])
        likely = ", ".join(f"{word} {chance:.2f}" for word, chance in named)
        if f"  {one['text']}" not in lines:
            lines.append(f"  {one['text']}")
        lines.append(f'      "{one["word"]}" looks at {weights}' + (f"; next: {likely}" if likely else ""))
    return lines


def sentence_lines(words: list[str], rows: list[WordRow], chosen: dict[tuple[int, int], list[str]]) -> list[str]:
    """Return, for each asked word, what every head looks at most; `chosen` names heads a probe has picked."""
    places = ["(start)", *words]
    lines = []
    for row in rows:
        lines += ["", f'at "{row.word}"  each head\'s three largest weights']
        for layer, head in np.ndindex(row.weights.shape[:2]):
            weights = row.weights[layer, head]
            top = np.argsort(-weights, kind="stable")[:3]
            seen = "  ".join(f"{places[i]} {weights[i]:.2f}" for i in top if weights[i] > 0)
            picked = chosen.get((layer, head))
            lines.append(f"  L{layer}H{head}  {seen}" + (f"   <- chosen for {'; '.join(picked)}" if picked else ""))
    return lines


def heads_csv(readings: dict[str, Reading]) -> str:
    """Return one row for each question, hold-out, split and head."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names, of_rows = list(Scores.__dataclass_fields__), ("value_log_ratio", "mass", "first_mass", "share")
    writer.writerow(["question", "family", "site", "split", "holdout", "layer", "head", "n_blocks", *names, *of_rows])
    for split, reading in readings.items():
        for question in questions_with_items((*QUESTIONS, *UNDECIDED), reading.items):
            for holdout in reading.holdouts(question):
                scores = reading.scores(question, holdout)
                rows = reading.rows.take(reading.index(question, holdout))
                means = [getattr(scores, name).mean(axis=0) for name in names]
                means += [getattr(rows, name).mean(axis=0) for name in of_rows]
                where = [question.name, question.family, question.site, split, holdout]
                for layer, head in np.ndindex(means[0].shape):
                    values = [f"{mean[layer, head]:.6f}" for mean in means]
                    writer.writerow([*where, layer, head, len(scores.accuracy), *values])
    return stream.getvalue()


def items_jsonl(results: dict[str, Any], reading: Reading) -> str:
    """Return one object for each test item of each question, as the chosen head saw it."""
    heads = {one["question"]: (one["layer"], one["head"]) for one in results["selected"]}
    lines: list[str] = []
    for question in QUESTIONS:
        if question.name not in heads:
            continue
        layer, head = heads[question.name]
        for holdout in reading.holdouts(question):
            for i in reading.index(question, holdout):
                item = reading.items[i]
                numbers = {
                    name: round(float(getattr(reading.rows, name)[i, layer, head]), 5)
                    for name in ("log_ratio", "value_log_ratio", "margin", "strict", "mass", "first_mass")
                }
                about = {name: getattr(item, name) for name in _ABOUT}
                lines.append(json.dumps({"question": question.name, "layer": layer, "head": head} | about | numbers))
    return "\n".join(lines) + "\n"


_ABOUT = "family level site holdout template pair block order meant text query antecedents distractors".split()
