"""The results of a probe as printed lines, CSV and JSON lines."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from probe.baselines import REFERENCE_RULES
from probe.items import QUESTIONS, UNDECIDED, questions_with_items
from probe.scores import Scores
from probe.sentences import TokenizedText
from probe.study import HEADLINE, Reading

DESCRIPTIONS = {question.name: question.description for question in QUESTIONS}
EXAMPLE_TITLES = {
    "number": "Four cells: order of the nouns × pronoun; a link head is right in all four",
    "later_cue": "Tired or soft: up to “it” both sentences are identical; the adjective decides",
}
LEGEND = (
    "accuracy: the antecedent gets more attention than the distractor (chance: 0.5), for new nouns in new templates.",
    "block: right in all four cells. p: corrected for all heads. swap: share of the model's answer that flips when the",
    "head's weights on the two nouns are exchanged. E0 to E4: levels of evidence (docs/probe.md).",
)


def summary_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the table of all questions, then the worked examples."""
    rows = [question_row(entry) for entry in results["selected"]]
    header = ("question", "head", "accuracy [95 %]", "block", "p", "swap", "verdict")
    lines = [*aligned([header, *rows]), "", *LEGEND]
    for question, examples in results["showcase"].items():
        lines += ["", EXAMPLE_TITLES[question], *aligned([example_row(example) for example in examples])]
    return lines


def question_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one question's row: description, head, scores on the headline hold-out, verdict."""
    tested = entry["test"].get(HEADLINE) or next(iter(entry["test"].values()))
    return (
        described(entry),
        f"L{entry['layer']}H{entry['head']}",
        f"{tested['accuracy']:.3f} {interval(tested['accuracy_interval'])}",
        f"{tested['block_accuracy']:.3f}",
        f"{tested['p_corrected']:.4f}",
        decimals((entry["causal"] or {}).get("attention_swap")),
        f"{entry['verdict']} ({entry['evidence_level']})",
    )


def described(entry: Mapping[str, Any]) -> str:
    """Return the name and the words of a question."""
    return f"{entry['question']}: {DESCRIPTIONS[entry['question']]}"


def example_row(example: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a worked example: the text, the weights on both nouns, the most probable next words."""
    weights = ", ".join(f"{noun} {weight:.2f}" for noun, weight in example["weights"].items())
    following = [f"{word} {chance:.2f}" for word, chance in example["next"] if word.isalpha() and chance >= 0.1]
    next_words = f"next: {', '.join(following[:2])}" if following else ""
    return f"  {example['text']}", f"{example['query']} → {weights}", next_words


def detail_lines(results: Mapping[str, Any]) -> list[str]:
    """Return what verbose=true adds: every hold-out with its baselines, importance measures, the model's answers."""
    lines = []
    for entry in results["selected"]:
        head = f"L{entry['layer']}H{entry['head']}"
        lines += ["", f"{described(entry)}; head {head}: {entry['verdict']} ({entry['evidence_level']})"]
        lines += [f"  {reason}" for reason in entry["reasons"]]
        header = ("  hold-out", "items", "accuracy [95 %]", "block accuracy [95 %]", "pronoun contrast", "strict",
                  "chance level", "baselines and untrained models")  # fmt: skip
        lines += aligned([header, *(holdout_row(name, tested) for name, tested in entry["test"].items())])
    for measured in results["importance"]:
        lines += ["", *importance_lines(measured)]
    answers = ("family", "level", "site", "hold-out", "items", "resolved share", "accuracy [95 %]")
    return [*lines, "", "The model's answers", *aligned([answers, *map(behaviour_row, results["behaviour"])])]


def holdout_row(name: str, tested: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one row of the hold-out table of `detail_lines`."""
    rules: dict[str, list[str]] = {}
    for rule, scores in tested["baselines"].items():
        kind = f"{rule} (knows number and gender)" if rule in REFERENCE_RULES else rule
        rules.setdefault(f"{scores['accuracy']:.3f}", []).append(kind)
    compared = [f"{', '.join(names)} {score}" for score, names in rules.items()]
    if untrained := tested.get("untrained"):
        compared.append(f"untrained {untrained['accuracy']:.3f} {interval(untrained['accuracy_interval'])}")
    return (
        f"  {name}",
        f"{tested['n_items']:,}",
        *(f"{tested[score]:.3f} {interval(tested[f'{score}_interval'])}" for score in ("accuracy", "block_accuracy")),
        f"{tested['pronoun_contrast']:.2f}",
        f"{tested['strict_accuracy']:.3f}",
        f"{tested['chance_level']:.3f}",
        "; ".join(compared),
    )


def behaviour_row(answers: Mapping[str, Any]) -> tuple[str, ...]:
    """Return how well the model's next word fits the antecedent, in one family and hold-out."""
    return (
        answers["family"], answers["level"], answers["site"], answers["holdout"], f"{answers['n']:,}",
        decimals(answers["resolved_share"], 3), f"{answers['accuracy']:.3f} {interval(answers['interval'])}",
    )  # fmt: skip


IMPORTANCE_MEASURES = {"weight": "weight", "value_norm": "norm", "effect": "effect"}


def importance_lines(measured: Mapping[str, Any]) -> list[str]:
    """Return the rank correlations between attention weight, value-weighted norm and causal effect of links."""
    header = (
        f"Weight, norm and effect of {measured['all_heads']['n_links']:,} links, {measured['question']} "
        f"({measured['holdout']}): rank correlations [95 %]"
    )
    lines = [header]
    for heads, title in (("all_heads", "all heads"), ("chosen_head", f"L{measured['layer']}H{measured['head']} alone")):
        cells = []
        for first, second in combinations(IMPORTANCE_MEASURES, 2):
            value = decimals(measured[heads][f"{first}_{second}"])
            ends = interval(measured[heads][f"{first}_{second}_interval"] or (None, None), 2)
            cells.append(f"{IMPORTANCE_MEASURES[first]}~{IMPORTANCE_MEASURES[second]} {value} {ends}")
        lines.append(f"  {title:<12} {'  '.join(cells)}")
    return lines


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def decimals(value: float | None, digits: int = 2) -> str:
    """Return a number, or "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def interval(ends: Sequence[float | None], digits: int = 3) -> str:
    """Return "[low, high]", or "[-, -]" for an interval that too few clusters leave unknown."""
    low, high = ends
    return "[-, -]" if low is None or high is None or low != low else f"[{low:.{digits}f}, {high:.{digits}f}]"


def sentence_lines(
    text: TokenizedText, weights: np.ndarray, rows: Sequence[int], chosen: Mapping[tuple[int, int], list[str]]
) -> list[str]:
    """Return the three words with the most attention from each of `rows`, for every head.

    Args:
        text: its words are the axes of `weights`.
        weights: [L, H, W, W].
        rows: indices of the words to read at.
        chosen: questions for which the probe chose a head, by (layer, head).

    """
    lines = []
    for row in rows:
        lines += ["", f"at “{text.words[row]}”: the three largest weights of each head"]
        for layer, head in np.ndindex(*weights.shape[:2]):
            values = weights[layer, head, row]
            top = [i for i in np.argsort(-values, kind="stable")[:3] if values[i] > 0]
            note = f"   ← chosen for {', '.join(chosen[layer, head])}" if (layer, head) in chosen else ""
            lines.append(f"  L{layer}H{head}  {'  '.join(f'{text.words[i]} {values[i]:.2f}' for i in top)}{note}")
    return lines


def heads_csv(readings: Mapping[str, Reading]) -> str:
    """Return the mean scores of every head: a row for each question, hold-out, split and head."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names, row_names = list(Scores.__dataclass_fields__), ("value_log_ratio", "mass", "first_mass")
    writer.writerow(["question", "family", "site", "split", "holdout", "layer", "head", "n_blocks", *names, *row_names])
    for split, reading in readings.items():
        for question in questions_with_items((*QUESTIONS, *UNDECIDED), reading.items):
            for holdout in reading.holdouts(question):
                scores = reading.scores(question, holdout)
                _, rows = reading.select(question, holdout)
                means = [getattr(scores, name).mean(axis=0) for name in names]
                means += [getattr(rows, name).mean(axis=0) for name in row_names]
                place = [question.name, question.family, question.site, split, holdout]
                for layer, head in np.ndindex(means[0].shape):
                    values = [f"{mean[layer, head]:.6f}" for mean in means]
                    writer.writerow([*place, layer, head, len(scores.accuracy), *values])
    return stream.getvalue()


ITEM_FIELDS = "family level site holdout template pair block order meant text query antecedents distractors".split()
ROW_FIELDS = ("log_ratio", "value_log_ratio", "margin", "strict", "mass", "first_mass")


def items_jsonl(results: Mapping[str, Any], reading: Reading) -> str:
    """Return one object for each test item of each question, with what the chosen head does at it."""
    heads = {entry["question"]: (entry["layer"], entry["head"]) for entry in results["selected"]}
    lines = []
    for question in (question for question in QUESTIONS if question.name in heads):
        layer, head = heads[question.name]
        for holdout in reading.holdouts(question):
            for i in reading.index(question, holdout):
                record = {"question": question.name, "layer": layer, "head": head}
                record |= {name: getattr(reading.items[i], name) for name in ITEM_FIELDS}
                record |= {name: round(float(getattr(reading.rows, name)[i, layer, head]), 5) for name in ROW_FIELDS}
                lines.append(json.dumps(record))
    return "\n".join(lines) + "\n"
