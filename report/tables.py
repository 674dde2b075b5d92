"""The results of a probe as tables, which eval.py prints and the page shows, and as CSV and JSON lines."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from textwrap import wrap
from typing import Any

import numpy as np

from data.text_tables import markdown_table
from probe.baselines import REFERENCE_RULES
from probe.items import QUESTIONS, UNDECIDED, questions_with_items
from probe.scores import Scores
from probe.sentences import TokenizedText
from probe.study import HEADLINE, Reading
from probe.verdict import LEVELS

DESCRIPTIONS = {question.name: question.description for question in QUESTIONS}
EXAMPLE_TITLES = {
    "number": "One block: 2 orders of the nouns × 2 pronouns; a link head is right in all four sentences",
    "later_cue": "Tired or soft: up to “it” both sentences are identical; the adjective decides",
}
LEGEND = (
    "accuracy: the antecedent gets more attention than the distractor (chance: 0.5), new nouns in new sentence frames.",
    "block: right in all four sentences of a block. p: corrected for all heads. swap: attention swap, the share of",
    "the answer that flips if the head's weights on both nouns are exchanged. E0 to E4: see docs/probe.md, verdict.",
)


@dataclass(frozen=True)
class Table:
    """A table of the evidence."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def number(value: float | None) -> str:
    """Returns a number with three decimals (four below .001), "–" for None."""
    if value is None:
        return "–"
    return f"{value:.4f}" if 0 < abs(value) < 0.001 else f"{round(value, 3) + 0.0:.3f}"


def estimate(value: float | None, interval: Sequence[float | None] | None = None) -> str:
    """Returns a number and its interval, if it has one: "0.996 [0.980, 1.000]"."""
    return number(value) if interval is None else f"{number(value)} [{', '.join(map(number, interval))}]"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


# Summary


def summary_lines(results: Mapping[str, Any]) -> list[str]:
    """Returns the table of all questions, then the worked examples."""
    rows = [question_row(entry) for entry in results["selected"]]
    header = ("question", "head", "accuracy [95 %]", "block", "p", "swap", "verdict")
    lines = [*aligned([header, *rows]), *_block_set_lines(results["selected"]), "", *LEGEND] if rows else []
    for question, examples in results["showcase"].items():
        lines += ["", EXAMPLE_TITLES[question], *aligned([example_row(example) for example in examples])]
    return lines


def _block_set_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns which heads decide the blocks in English: the head chosen by attention there often does nothing."""
    lines = []
    for entry in entries:
        if entry["family"] == "english" and entry["head_set"]:
            found = entry["head_set"]
            heads = " + ".join(f"L{layer}H{head}" for layer, head in found["heads"])
            swap = estimate(found["attention_swap"], found["attention_swap_interval"])
            lines.append(f"  chosen by effect instead of attention: {heads}, swap {swap}")
    return lines


def question_row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns one question's row: description, head, scores on the headline hold-out, verdict."""
    tested, swap = entry["test"][HEADLINE], (entry["causal"] or {}).get("attention_swap")
    return (
        f"{entry['question']}: {DESCRIPTIONS[entry['question']]}",
        f"L{entry['layer']}H{entry['head']}",
        estimate(tested["accuracy"], tested["accuracy_interval"]),
        number(tested["block_accuracy"]),
        f"{tested['p_corrected']:.4f}",
        "–" if swap is None else f"{swap:.2f}",
        f"{entry['verdict']} ({entry['evidence_level']})",
    )


def example_row(example: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns a worked example: the text, the weights on both nouns, the most probable next words."""
    weights = ", ".join(f"{noun} {weight:.2f}" for noun, weight in example["weights"].items())
    following = [f"{word} {chance:.2f}" for word, chance in example["next"] if word.isalpha() and chance >= 0.1]
    next_words = f"next: {', '.join(following[:2])}" if following else ""
    return f"  {example['text']}", f"{example['query']} → {weights}", next_words


# Evidence

MEASURES = {
    "p_pair_accuracy": "corrected p of the pair accuracy",
    "p_pronoun_contrast": "corrected p of the pronoun contrast",
    "lead_low": "accuracy minus the best baseline, lower end",
    "selectivity": "selectivity",
    "attention_swap": "attention swap",
    "edge_specificity_low": "edge specificity, lower end",
    "unlinked_mass": "attention on nouns without an antecedent, relative to with one",
}
UPPER_LIMITS = {"p_pair_accuracy", "p_pronoun_contrast", "unlinked_mass"}
# Name in probe.json, label, how to read the number.
EFFECTS = (
    ("attention_swap", "attention swap", "share of the answer that flips when the head's weights on antecedent and "
     "distractor are exchanged; 1: this head alone decides"),
    ("edge_ablation", "edge to the antecedent cut", "share of the answer lost"),
    ("distractor_edge_ablation", "edge to the distractor cut", "share of the answer lost; near 0 for a link head"),
    ("edge_specificity", "edge specificity", "loss from cutting the edge to the antecedent minus the other edge"),
    ("head_effect", "output of the partner sentence", "share of the answer lost when the head's output comes from the "
     "same sentence with the other pronoun"),
    ("zero_ablation", "no output", "share of the answer lost without the head; later layers may compensate"),
    ("ov_auc", "OV AUC", "probability that a noun, through the head's value and output matrices, raises its own "
     "continuations more than others; chance is 0.5"),
    ("denoising_patch", "denoising patch", "share of the answer restored when only this head is restored; 1: the head "
     "suffices"),
)  # fmt: skip
HOLDOUT_NOTE = (
    "iid: same distribution as training; pairs: new pairs of nouns; nouns: nouns no pronoun referred to in training; "
    "frames: new sentence frames; headline: such nouns in new frames; distance: sentences in between; "
    "bystanders: more nouns. Block: all four sentences right. Strict: more attention on the antecedent than on any "
    "other word. Agreement sieve: a rule that reads number and gender."
)


def detail_lines(results: Mapping[str, Any]) -> list[str]:
    """Returns what verbose=true adds: all tables of the evidence."""
    lines = []
    for entry in results["selected"]:
        head = f"L{entry['layer']}H{entry['head']}"
        lines += ["", "", f"{entry['question']}, head {head}: {entry['verdict']} ({entry['evidence_level']})"]
        lines += [f"  {reason}" for reason in entry["reasons"]]
        lines += table_lines(question_tables(entry))
    return lines + table_lines(model_tables(results))


def table_lines(tables: Sequence[Table]) -> list[str]:
    """Returns tables as aligned lines, each with its title above and its note below."""
    lines = []
    for table in tables:
        lines += ["", f"  {table.title}", *(f"    {line}" for line in aligned([table.header, *table.rows]))]
        lines += [f"    {line}" for line in wrap(table.note, 116)]
    return lines


def claim_markdown(entry: Mapping[str, Any], card: Mapping[str, Any]) -> str:
    """Returns the claim about a head with its evidence and its limits."""
    lines = [f"## {entry['question']}", "", f"**{card['claim']}**"]
    for table in question_tables(entry):
        lines += ["", f"{table.title}. {table.note}", "", *markdown_table(table.header, table.rows)]
    for title, texts in (("Why no more is claimed", card["reasons"]), ("This does not show", card["does_not_show"])):
        lines += ["", f"{title}:", "", *(f"- {text}" for text in texts)] if texts else []
    return "\n".join([*lines, ""])


def question_tables(entry: Mapping[str, Any]) -> list[Table]:
    """Returns criteria, hold-outs and causal effects of one entry of probe.json's `selected`."""
    levels = "Levels of evidence: " + "; ".join(f"{level}: {meaning}" for level, meaning in LEVELS.items()) + "."
    criteria = ("criterion", "measured", "required", "result")
    tables = [
        Table("Five criteria, fixed in advance", criteria, list(map(criterion_row, entry["criteria"])), levels),
        holdout_table(entry),
    ]
    if effects := effect_rows({**(entry["weights"] or {}), **(entry["causal"] or {})}):
        note = "Share of the change of the model's answer between a sentence and the same with the other pronoun."
        tables.append(Table("Causal tests", ("intervention", "effect [95 %]", "how to read it"), effects, note))
    if entry["head_set"]:
        steps = enumerate(entry["head_set"]["curve"], 1)
        rows = [(str(n), f"L{at['layer']}H{at['head']}", number(at["dev"]), number(at["test"])) for n, at in steps]
        swap = estimate(entry["head_set"]["attention_swap"], entry["head_set"]["attention_swap_interval"])
        reached = "The smallest set" if entry["head_set"]["reached"] else "No set of these"
        note = f"Attention swap of heads together, added one by one on dev. {reached} moves 0.8 there; tested: {swap}."
        tables.append(Table("Heads together", ("heads", "added", "dev", "headline"), rows, note))
    if entry["similar"]:
        note = "The largest correlations of other heads' pronoun contrasts with this head's, over blocks."
        tables.append(Table("Heads whose contrasts correlate", ("head", "r"), similar_rows(entry), note))
    return tables


def similar_rows(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns name and correlation of each similar head."""
    return [(f"L{other['layer']}H{other['head']}", f"{other['r']:.2f}") for other in entry["similar"]]


def criterion_row(criterion: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns name, measured values, bars and result of a criterion."""
    bars = criterion["bars"].items()
    values = "; ".join(f"{MEASURES.get(name, name)} {number(value)}" for name, value in criterion["measured"].items())
    required = "; ".join(f"{'below' if name in UPPER_LIMITS else 'above'} {bar:g}" for name, bar in bars)
    mark = {"met": "✓", "not met": "✗"}.get(criterion["outcome"], "–")
    return criterion["name"].replace("_", " "), values, required, f"{mark} {criterion['outcome']}"


def holdout_table(entry: Mapping[str, Any]) -> Table:
    """Returns the scores of a question's head on every hold-out, with the baselines that apply to the question."""
    rows, n_models = [], 0
    for name, tested in entry["test"].items():
        untrained = tested.get("untrained")
        n_models = untrained["n_models"] if untrained else n_models
        rows.append((
            name,
            f"{tested['n_items']:,}",
            *(estimate(tested[score], tested[f"{score}_interval"]) for score in ("accuracy", "block_accuracy")),
            *(number(tested[score]) for score in ("pronoun_contrast", "strict_accuracy", "chance_level")),
            estimate(untrained["accuracy"], untrained["accuracy_range"]) if untrained else "",
            baselines(tested["baselines"], is_agreement=entry["family"] == "agreement"),
        ))  # fmt: skip
    header = ("hold-out", "items", "accuracy [95 %]", "block accuracy [95 %]", "pronoun contrast", "strict accuracy",
              "chance level", f"mean [range] over {n_models} untrained models", "baselines")  # fmt: skip
    rules = dict.fromkeys(rule for tested in entry["test"].values() for rule in tested["baselines"])
    note = f"{HOLDOUT_NOTE} Rules: {', '.join(rule for rule in rules if rule not in REFERENCE_RULES)}."
    return Table("Hold-outs", header, rows, note)


def baselines(scores: Mapping[str, Any], *, is_agreement: bool) -> str:
    """Returns the accuracies of the rules, those of equal accuracy together; a rule that reads agreement only there."""
    rules = {rule: number(score["accuracy"]) for rule, score in scores.items() if rule not in REFERENCE_RULES}
    groups = {accuracy: [rule for rule in rules if rules[rule] == accuracy] for accuracy in rules.values()}
    texts = [f"{'all rules' if len(groups) == 1 else ', '.join(names)} {score}" for score, names in groups.items()]
    if is_agreement:
        texts += [f"{rule} {number(score['accuracy'])}" for rule, score in scores.items() if rule in REFERENCE_RULES]
    return "; ".join(texts)


def effect_rows(measured: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Returns the effects of a head, and the largest attention swap of the control heads."""
    rows: list[tuple[str, ...]] = [
        (label, estimate(measured[name], measured.get(f"{name}_interval")), meaning)
        for name, label, meaning in EFFECTS
        if measured.get(name) is not None
    ]
    swaps = [value for value in (measured.get("controls") or {}).get("attention_swap", ()) if value is not None]
    if swaps:
        meaning = "the largest of them: what any head of this layer would show"
        rows.insert(1, (f"attention swap of {len(swaps)} other heads", estimate(max(swaps, key=abs)), meaning))
    return rows


def model_tables(results: Mapping[str, Any]) -> list[Table]:
    """Returns the importance of links by three measures, and the model's answers, for all questions."""
    pairs = list(combinations(("weight", "value_norm", "effect"), 2))
    links = [
        (measured["question"], f"{measured['all_heads']['n_links']:,}", title,
         *(estimate(measured[heads][name], measured[heads][f"{name}_interval"]) for name in map("_".join, pairs)))
        for measured in results["importance"]
        for heads, title in (("all_heads", "all"), ("chosen_head", f"L{measured['layer']}H{measured['head']}"))
    ]  # fmt: skip
    names = [f"{first} and {second} [95 %]".replace("value_", "") for first, second in pairs]
    link_note = "Rank correlations between attention weight, norm of the value-weighted sum and causal effect of links."
    answers = [
        (*(entry[name] for name in ("family", "level", "site", "holdout")), f"{entry['n']:,}",
         number(entry["resolved_share"]), estimate(entry["accuracy"], entry["interval"]))
        for entry in results["behaviour"]
    ]  # fmt: skip
    header = ("family", "level", "site", "hold-out", "items", "resolved share", "accuracy [95 %]")
    note = "Resolved share: 0 if the pronoun is ignored, 1 at the entropy lower bound, below 0 if the model is misled."
    tables = [
        Table("Attention weight, norm and effect", ("question", "links", "heads", *names), links, link_note),
        Table("The model's answers", header, answers, note),
    ]
    return [table for table in tables if table.rows]


# A sentence of the user's


def sentence_lines(
    text: TokenizedText,
    weights: np.ndarray,
    rows: Mapping[int, Sequence[str]],
    chosen: Mapping[tuple[int, int], Sequence[str]],
) -> list[str]:
    """Returns the attention of every head from each of `rows`: to the candidates, and the three largest weights.

    `weights` are those between the words of `text`, [L, H, W, W]; `rows` the nouns that may be meant, by the index of
    the word to read at; `chosen` the questions for which the probe chose a head, by (layer, head).
    """
    lines = []
    for row, nouns in rows.items():
        title = f"at “{text.words[row]}”: the three largest weights of each head"
        lines += ["", title + (f"; before them the weights on {', '.join(nouns)}" if nouns else "")]
        cells = []
        for layer, head in np.ndindex(*weights.shape[:2]):
            values = weights[layer, head, row]
            sums = [sum(values[i] for i, word in enumerate(text.words[:row]) if word == noun) for noun in nouns]
            top = [i for i in np.argsort(-values, kind="stable")[:3] if values[i] > 0]
            note = f"← chosen for {', '.join(chosen[layer, head])}" if (layer, head) in chosen else ""
            on_nouns = [f"{noun} {weight:.2f}" for noun, weight in zip(nouns, sums, strict=True)]
            largest = "  ".join(f"{text.words[i]} {values[i]:.2f}" for i in top)
            cells.append([f"  L{layer}H{head}", *on_nouns, *(["|"] if nouns else []), largest, note])
        lines += aligned(cells)
    return lines


# Files


def heads_csv(readings: Mapping[str, Reading]) -> str:
    """Returns the mean scores of every head: a row for each question, hold-out, split and head."""
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


ITEM_FIELDS = "family level site holdout frame pair block order meant text query antecedents distractors".split()
ROW_FIELDS = ("log_ratio", "value_log_ratio", "attention_margin", "strict", "mass", "first_mass")


def items_jsonl(results: Mapping[str, Any], reading: Reading) -> str:
    """Returns one object for each test item of each question, with what the chosen head does at it."""
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
