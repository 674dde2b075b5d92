"""The results of a probe as tables, which eval.py prints and the page shows, and as CSV and JSON lines."""

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TypeVar

import numpy as np

from data.text_tables import markdown_table
from probe.baselines import REFERENCE_RULES
from probe.claim import ClaimCard
from probe.items import QUESTIONS, UNDECIDED, Question, questions_with_items
from probe.links import HeadScores
from probe.results import (
    Criterion,
    Head,
    HeadSet,
    Interval,
    ProbeResults,
    QuestionResult,
    RuleScores,
    ShowcaseExample,
    SimilarHead,
)
from probe.scores import Scores
from probe.sentences import TokenizedText
from probe.verdict import LEVELS, MAX_P

DESCRIPTIONS = {question.name: question.description for question in QUESTIONS}


def description(result: QuestionResult) -> str:
    """Return what a question asks, in one phrase."""
    return result.own.description if result.own else DESCRIPTIONS[result.question]


def _questions(results: ProbeResults) -> list[Question]:
    """Return all questions, and those of the user's own."""
    own = [result for result in results.selected if result.own is not None]
    return [*QUESTIONS, *(Question(each.question, each.family, each.site, (each.family,), "") for each in own)]


_EXAMPLE_TITLES = {
    "number": "One block: 2 orders of the nouns × 2 pronouns; a link head is right in all four sentences",
    "later_cue": "Tired or soft: up to “it” both sentences are identical; the adjective decides",
}
_LEGEND = (
    "accuracy: the antecedent gets more attention than the distractor (chance: 0.5), new words in new sentence frames.",
    "block: right in all four sentences of a block. p: corrected for all heads. swap: attention swap, the share of",
    "the answer that flips if the head's weights on both words are exchanged. E0 to E4: see docs/probe.md, verdict.",
)


@dataclass(frozen=True)
class Table:
    """A table of the evidence."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def lines(self) -> list[str]:
        """Return header and rows as lines with aligned columns."""
        return aligned([self.header, *self.rows])


Item = TypeVar("Item")


def table_of(title: str, items: Iterable[Item], columns: Mapping[str, Callable[[Item], str]], note: str = "") -> Table:
    """Return a table with a row for each item; `columns` are its cells by their header."""
    rows = []
    for item in items:
        rows.append([cell(item) for cell in columns.values()])
    return Table(title, list(columns), rows, note)


def number(value: float | None) -> str:
    """Return a number with three decimals (four below .001), "–" for None and nan."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.4f}" if 0 < abs(value) < 0.001 else f"{round(value, 3) + 0.0:.3f}"


def estimate(value: float | None, interval: Interval | None = None) -> str:
    """Return a number and its interval, if it has one: "0.996 [0.980, 1.000]"."""
    if interval is None:
        return number(value)
    return f"{number(value)} [{', '.join(map(number, interval))}]"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def head_names(heads: Iterable[Head]) -> str:
    """Return several heads as text: "L1H0 + L2H3"."""
    return " + ".join(map(str, heads))


# Summary


def summary_lines(results: ProbeResults) -> list[str]:
    """Return the table of all questions, then the worked examples."""
    lines = []
    if results.selected:
        table = table_of("", results.selected, {
            "question": lambda result: f"{result.question}: {description(result)}",
            "head": lambda result: head_names(result.judged_heads),
            "accuracy [95 %]": lambda result: estimate(
                result.judged_scores.accuracy, result.judged_scores.accuracy_interval
            ),
            "block": lambda result: number(result.judged_scores.block_accuracy),
            "p": lambda result: f"{result.judged_scores.p_corrected:.4f}",
            "swap": _attention_swap,
            "verdict": lambda result: f"{result.verdict} ({result.evidence_level})",
        })  # fmt: skip
        lines += [*table.lines(), *_missing_lines(results.selected)]
        lines += ["", *_LEGEND]
    # Worked examples, four sentences each
    for question, examples in results.showcase.items():
        lines += ["", _EXAMPLE_TITLES[question], *aligned(list(map(_example_row, examples)))]
    return lines


def _attention_swap(result: QuestionResult) -> str:
    swap = result.judged_swap
    return "–" if swap is None else f"{round(swap, 2) + 0.0:.2f}"  # -0.00 is 0.00


def _missing_lines(selected: Sequence[QuestionResult]) -> list[str]:
    """Return why the user's own question can have no small p, and why it has no swap."""
    lines = []
    for result in selected:
        if result.own is None:
            continue
        if result.headline.smallest_p >= MAX_P:
            lines.append(f"  too few different test frames or words: no p can be below {MAX_P:g}")
        if result.judged_swap is None:
            reason = "the model's answer does not follow the antecedent"
            if result.causal is None:
                reason = "the texts have no answers that can be compared"
            lines.append(f"  no swap: {reason}")
    return lines


def _example_row(example: ShowcaseExample) -> tuple[str, str, str]:
    """Return the text, the weights on both nouns, and the most probable next words."""
    weights = ", ".join(f"{noun} {weight:.2f}" for noun, weight in example.weights.items())
    following = [f"{word} {chance:.2f}" for word, chance in example.next if word.isalpha() and chance >= 0.1]
    next_words = f"next: {', '.join(following[:2])}" if following else ""
    return f"  {example.text}", f"{example.query} → {weights}", next_words


# Evidence

_MEASURES = {
    "p_pair_accuracy": "corrected p of the pair accuracy",
    "p_pronoun_contrast": "corrected p of the pronoun contrast",
    "lead_low": "accuracy minus the best baseline, lower end",
    "selectivity": "selectivity",
    "attention_swap": "attention swap",
    "edge_specificity_low": "edge specificity, lower end",
    "unlinked_mass": "attention on nouns without an antecedent, relative to with one",
}
_UPPER_LIMITS = {"p_pair_accuracy", "p_pronoun_contrast", "unlinked_mass"}
# Field of CausalResult or WeightsResult, label, how to read the number.
_EFFECTS = (
    ("attention_swap", "attention swap", "share of the answer that flips when the head's weights on "
     "antecedent and distractor are exchanged; 1: this head alone decides"),
    ("edge_ablation", "edge to the antecedent cut", "share of the answer lost"),
    ("distractor_edge_ablation", "edge to the distractor cut", "share of the answer lost; near 0 for a link head"),
    ("edge_specificity", "edge specificity", "loss from cutting the edge to the antecedent minus the other edge"),
    ("head_effect", "output of the partner sentence", "share of the answer lost when the head's output "
     "comes from the other sentence of the pair"),
    ("zero_ablation", "no output", "share of the answer lost without the head; later layers may compensate"),
    ("ov_auc", "OV AUC", "probability that a noun, through the head's value and output matrices, raises "
     "its own continuations more than others; chance is 0.5"),
    ("denoising_patch", "denoising patch", "share of the answer restored when only this head is restored; "
     "1: the head suffices"),
)  # fmt: skip
_HOLDOUT_NOTE = (
    "iid: same distribution as training; pairs: new pairs of nouns; nouns: nouns no pronoun referred to in training; "
    "frames: new sentence frames; headline: such nouns in new frames; distance: sentences in between. "
    "Block: all four sentences right. Strict: more attention on the antecedent than on any other token but the first. "
    "Agreement sieve: a rule that reads number and gender."
)
_OWN_HOLDOUT_NOTE = (
    "headline: the texts of the part test. Block: all four texts right. Strict: more attention on the antecedent than "
    "on any other token but the first."
)


def detail_lines(results: ProbeResults) -> list[str]:
    """Return what verbose=true adds: all tables of the evidence."""
    lines = []
    for result in results.selected:
        verdict = f"{result.verdict} ({result.evidence_level})"
        lines += ["", "", f"{result.question}, head {head_names(result.judged_heads)}: {verdict}"]
        lines += [f"  {reason}" for reason in result.reasons]
        lines += table_lines(question_tables(result))
    return lines + table_lines(model_tables(results))


def table_lines(tables: Sequence[Table]) -> list[str]:
    """Return tables as aligned lines, each with its title above and its note below."""
    lines = []
    for table in tables:
        lines += ["", f"  {table.title}"]
        lines += [f"    {line}" for line in [*table.lines(), *wrap(table.note, 116)]]
    return lines


def claim_markdown(result: QuestionResult, card: ClaimCard) -> str:
    """Return the claim about a head with its evidence and its limits."""
    lines = [f"## {result.question}", "", f"**{card.claim}**"]
    for table in question_tables(result):
        lines += ["", f"{table.title}. {table.note}", "", *markdown_table(table.header, table.rows)]
    for title, texts in (("Why no more is claimed", card.reasons), ("This does not show", card.does_not_show)):
        if texts:
            lines += ["", f"{title}:", "", *(f"- {text}" for text in texts)]
    return "\n".join([*lines, ""])


def question_tables(result: QuestionResult) -> list[Table]:
    """Return criteria, hold-outs and causal effects of the head that was chosen for a question."""
    tables = [_criteria_table(result), _holdout_table(result)]

    # What not every question has
    if effects := _effect_rows(result):
        note = "Share of the change of the model's answer between a sentence and the same with the other pronoun."
        if result.own is not None:
            note = "Share of the change of the model's answer between the two texts of a block that have one order."
        tables.append(Table("Causal tests", ("intervention", "effect [95 %]", "how to read it"), effects, note))
    if result.head_set is not None:
        tables.append(_set_table(result.head_set))
    if result.similar:
        note = "The largest correlations of other heads' pronoun contrasts with this head's, over blocks."
        tables.append(Table("Heads whose contrasts correlate", ("head", "r"), similar_rows(result.similar), note))
    return tables


def similar_rows(similar: Sequence[SimilarHead]) -> list[tuple[str, str]]:
    """Return name and correlation of each similar head."""
    return [(str(other.place), f"{other.r:.2f}") for other in similar]


def _criteria_table(result: QuestionResult) -> Table:
    levels = "; ".join(f"{level}: {meaning}" for level, meaning in LEVELS.items())
    marks = {"met": "✓", "not met": "✗"}
    return table_of("Criteria, fixed in advance", result.criteria, {
        "criterion": lambda criterion: criterion.name.replace("_", " "),
        "measured": _measured,
        "required": _required,
        "result": lambda criterion: f"{marks.get(criterion.outcome, '–')} {criterion.outcome}",
    }, f"Levels of evidence: {levels}.")  # fmt: skip


def _measured(criterion: Criterion) -> str:
    values = criterion.measured.items()
    return "; ".join(f"{_MEASURES.get(name, name)} {number(value)}" for name, value in values)


def _required(criterion: Criterion) -> str:
    bars = criterion.bars.items()
    return "; ".join(f"{'below' if name in _UPPER_LIMITS else 'above'} {bar:g}" for name, bar in bars)


def _holdout_table(result: QuestionResult) -> Table:
    """Return the scores of a question's head on every hold-out, with the baselines that apply to the question."""
    rows = []
    n_models = 0
    rules: dict[str, None] = {}  # an ordered set
    for name, tested in result.test.items():
        # Untrained models are only tested on the headline.
        untrained = ""
        if tested.untrained is not None:
            n_models = tested.untrained.n_models
            untrained = estimate(tested.untrained.accuracy, tested.untrained.accuracy_range)
        rules |= dict.fromkeys(tested.baselines)
        rows.append((
            name,
            f"{tested.n_items:,}",
            estimate(tested.accuracy, tested.accuracy_interval),
            estimate(tested.block_accuracy, tested.block_accuracy_interval),
            *map(number, (tested.pronoun_contrast, tested.strict_accuracy, tested.chance_level)),
            untrained,
            _baselines(tested.baselines, is_agreement=result.family == "agreement"),
        ))  # fmt: skip

    # Reference rules are measured too, but are no baselines to beat.
    header = ("hold-out", "items", "accuracy [95 %]", "block accuracy [95 %]", "pronoun contrast", "strict accuracy",
              "bar", f"mean [range] over {n_models} untrained models", "baselines")  # fmt: skip
    names = [rule for rule in rules if rule not in REFERENCE_RULES]
    note = _OWN_HOLDOUT_NOTE if result.own is not None else _HOLDOUT_NOTE
    return Table("Hold-outs", header, rows, f"{note} Rules: {', '.join(names)}.")


def _baselines(scores: Mapping[str, RuleScores], *, is_agreement: bool) -> str:
    """Return the accuracies of the rules, those of equal accuracy together.

    A rule that reads agreement is named only if the question is one of agreement.
    """
    # Rules by their accuracy as printed; reference rules apart
    by_accuracy: dict[str, list[str]] = {}
    references = []
    for rule, score in scores.items():
        accuracy = number(score.accuracy)
        if rule in REFERENCE_RULES:
            references.append(f"{rule} {accuracy}")
        else:
            by_accuracy.setdefault(accuracy, []).append(rule)

    texts = []
    for accuracy, rules in by_accuracy.items():
        texts.append(f"{'all rules' if len(by_accuracy) == 1 else ', '.join(rules)} {accuracy}")
    return "; ".join(texts + references if is_agreement else texts)


def _effect_rows(result: QuestionResult) -> list[tuple[str, ...]]:
    """Return the measured effects of a head, and the largest attention swap of the control heads."""
    # Effects that were measured
    rows: list[tuple[str, ...]] = []
    for name, label, meaning in _EFFECTS:
        source = result.weights if name == "ov_auc" else result.causal
        value = getattr(source, name, None)  # None also without a causal test
        if value is not None:
            rows.append((label, estimate(value, getattr(source, f"{name}_interval")), meaning))

    # The controls stand below the attention swap of the head itself.
    controls = None if result.causal is None else result.causal.controls
    swaps = [] if controls is None else [value for value in controls.attention_swap if not math.isnan(value)]
    if swaps:
        meaning = "the largest of them: what any head of this layer would show"
        rows.insert(1, (f"attention swap of {len(swaps)} other heads", estimate(max(swaps, key=abs)), meaning))
    return rows


def _set_table(head_set: HeadSet) -> Table:
    rows = []
    for n, step in enumerate(head_set.curve, 1):
        rows.append((str(n), str(Head(step.layer, step.head)), number(step.dev), number(step.test)))
    swap = estimate(head_set.attention_swap, head_set.attention_swap_interval)
    reached = "The smallest set" if head_set.reached else "No set of these"
    note = f"Attention swap of heads together, added one by one on dev. {reached} moves 0.8 there; tested: {swap}."
    return Table("Heads together", ("heads", "added", "dev", "headline"), rows, note)


def model_tables(results: ProbeResults) -> list[Table]:
    """Return the model's answers, for all questions."""
    tables = [_answer_table(results)]
    return [table for table in tables if table.rows]


def _answer_table(results: ProbeResults) -> Table:
    return table_of("The model's answers", results.behaviour, {
        "family": lambda answers: answers.family,
        "level": lambda answers: answers.level,
        "site": lambda answers: answers.site,
        "hold-out": lambda answers: answers.holdout,
        "items": lambda answers: f"{answers.n:,}",
        "resolved share": lambda answers: number(answers.resolved_share),
        "accuracy [95 %]": lambda answers: estimate(answers.accuracy, answers.interval),
    }, "Resolved share: 0 if the deciding word is ignored, 1 at the entropy lower bound, below 0 if misled."
    )  # fmt: skip


# A sentence of the user's

MOST_HEADS = 10  # that are printed for a sentence; verbose=true prints all


def sentence_lines(
    text: TokenizedText,
    weights: np.ndarray,
    rows: Mapping[int, Sequence[str]],
    chosen: Mapping[Head, Sequence[str]],
    effects: Mapping[int, np.ndarray] | None = None,
) -> list[str]:
    """Return the attention of every head from each of `rows`: to the candidates, and the three largest weights.

    `weights` are those between the words of `text`, [L, H, W, W]; `rows` the nouns that may be meant, by the index of
    the word to read at; `chosen` the questions for which the probe chose a head. With `effects` [L, H] of removing each
    head, by row, only the MOST_HEADS largest are shown, and the chosen heads.
    """
    lines = []
    for row, nouns in rows.items():
        # A block of lines for each word to read at, a line for each head
        title = f"at “{text.words[row]}”: the three largest weights of each head"
        lines += ["", title + (f"; before them the weights on {', '.join(nouns)}" if nouns else "")]
        heads = [Head(*place) for place in np.ndindex(*weights.shape[:2])]
        if effects is not None:
            of_row = effects[row]
            heads.sort(key=lambda head: -of_row[head])
            heads = [head for i, head in enumerate(heads) if i < MOST_HEADS or head in chosen]
            lines.append(
                f"  the {MOST_HEADS} that matter most; first: how much the next word changes without the head, 0 to 1"
            )
            lines.append("  (all heads: verbose=true)")

        cells = []
        for head in heads:
            of_words = weights[head.layer, head.head, row]  # [W]
            effect = [] if effects is None else [f"{effects[row][head]:.2f}"]
            note = f"← chosen for {', '.join(chosen[head])}" if head in chosen else ""
            cells.append(
                [f"  {head}", *effect, *_weights_on_nouns(text, row, of_words, nouns), _largest(text, of_words), note]
            )
        lines += aligned(cells)
    return lines


def _weights_on_nouns(text: TokenizedText, row: int, weights: np.ndarray, nouns: Sequence[str]) -> list[str]:
    """Return the summed weight on all earlier mentions of each noun, then a divider; nothing without nouns."""
    cells = []
    for noun in nouns:
        mentions = [i for i, word in enumerate(text.words[:row]) if word == noun]
        cells.append(f"{noun} {sum(weights[i] for i in mentions):.2f}")
    return [*cells, "|"] if cells else []


def _largest(text: TokenizedText, weights: np.ndarray) -> str:
    top = [i for i in np.argsort(-weights, kind="stable")[:3] if weights[i] > 0]
    return "  ".join(f"{text.words[i]} {weights[i]:.2f}" for i in top)


# Files

_ITEM_FIELDS = "family level site holdout frame pair block order meant text query antecedents distractors".split()
_ROW_FIELDS = ("log_ratio", "value_log_ratio", "attention_margin", "strict", "mass", "first_mass")
_MEAN_ROW_FIELDS = ("value_log_ratio", "mass", "first_mass")


def heads_csv(results: ProbeResults, readings: Mapping[str, HeadScores]) -> str:
    """Return the mean scores of every head: a row for each question, hold-out, split and head."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    names = list(Scores.__dataclass_fields__)
    places = ("question", "family", "site", "split", "holdout", "layer", "head")
    writer.writerow([*places, "n_blocks", *names, *_MEAN_ROW_FIELDS])
    for split, reading in readings.items():
        for question in questions_with_items((*_questions(results), *UNDECIDED), reading.items):
            for holdout in reading.holdouts(question):
                scores = reading.scores(question, holdout)
                _, rows = reading.select(question, holdout)
                # Means over blocks or items, [L, H] each
                means = [getattr(scores, name).mean(axis=0) for name in names]
                means += [getattr(rows, name).mean(axis=0) for name in _MEAN_ROW_FIELDS]
                for layer, head in np.ndindex(means[0].shape):
                    values = [f"{mean[layer, head]:.6f}" for mean in means]
                    place = (question.name, question.family, question.site, split, holdout, layer, head)
                    writer.writerow([*place, len(scores.accuracy), *values])
    return stream.getvalue()


def items_jsonl(results: ProbeResults, reading: HeadScores) -> str:
    """Return one object for each test item of each question, with what the chosen head does at it."""
    lines = []
    for question in _questions(results):
        result = results.question(question.name)
        if result is None:
            continue
        # Items of one hold-out after the other
        for holdout in reading.holdouts(question):
            for i in reading.index(question, holdout):
                record = {"question": question.name, "layer": result.layer, "head": result.head}
                for name in _ITEM_FIELDS:
                    record[name] = getattr(reading.items[i], name)
                for name in _ROW_FIELDS:
                    record[name] = round(float(getattr(reading.rows, name)[i, *result.place]), 5)
                lines.append(json.dumps(record))
    return "\n".join(lines) + "\n"
