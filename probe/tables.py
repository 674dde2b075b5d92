"""The results of a probe as tables, for the terminal and the page."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from probe.claim import chosen_again, claim_of, limits_of
from probe.outcome import Column
from probe.outcomes import OUTCOMES
from probe.questions import HEADLINE, SAME_WORDS
from probe.results import (
    MEASURES,
    NO_BAR,
    NOT_KNOWN,
    RULES,
    Elsewhere,
    Estimate,
    Finding,
    Head,
    ProbeResults,
    Shown,
    Values,
    best_of,
)
from probe.sentences import TokenizedText
from probe.text_tables import Table, markdown_table
from settings.errors import printable

_BLOCK_TITLE = "Blocks of four sentences that differ in what decides; a link head is right in all four"
_PARTS_NOTE = (
    "Each column is a part of the tested texts: iid has the words of training; headline, which the verdict is about: "
    "nouns no pronoun referred to in training, in new sentence frames. verbose=true also prints rows as in Measures."
)
_BEST_RULE = "best simple rule"
_LONGEST_PASSAGE = 75  # characters of a passage on the terminal
MUCH_CHOSEN_AGAIN = 0.9  # share of resampled dev sets; below it the summary says how often another head is chosen
MOST_HEADS = 10  # that are printed for a sentence; verbose=true prints all


def number(value: float | Estimate | None, form: str = ".3f") -> str:
    """Return a number with its interval, if it has one: "0.996 [0.980, 1.000]"; "–" for None and nan.

    It has three decimals (four below .001), or what `form` says.
    """
    if isinstance(value, Estimate):
        text = number(value.value, form)
        if value.low is None or text == "–":
            return text
        return f"{text} [{number(value.low, form)}, {number(value.high, form)}]"
    if value is None or math.isnan(value):
        return "–"
    if form == ".3f" and 0 < abs(round(value, 4)) < 0.001:
        form = ".4f"
    text = f"{value:{form}}"
    return text if text.strip("-0.") else text.removeprefix("-")  # -0.00 is 0.00


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def head_names(heads: Iterable[Head]) -> str:
    """Return several heads as text: "L1H0 + L2H3"."""
    return " + ".join(map(str, heads))


# Summary


def summary_lines(results: ProbeResults, verbose: bool) -> list[str]:
    """Return a table of the findings of each outcome, then examples; with `verbose`, a passage of each finding."""
    lines: list[str] = []
    for name, outcome in OUTCOMES.items():
        findings = [finding for finding in results.findings if finding.outcome == name]
        if not findings:
            continue
        lines += [""] if lines else []
        lines += _summary_table(findings, outcome.columns)
        for finding in findings:
            remarks = [outcome.what_it_needs(finding), outcome.what_carries(finding)]
            remarks.append(chosen_again(finding, MUCH_CHOSEN_AGAIN))
            lines += [f"  {finding.question}: {remark}" for remark in remarks if remark]
            if finding.file is not None:  # a question of the user's own: why no more is claimed
                lines += [f"  {reason}" for reason in finding.judged.reasons]
        for finding in findings if verbose else findings[:1]:
            lines += _passage_lines(finding)
        lines += ["", *outcome.legend.splitlines()]
    worked: list[Sequence[str]] = []
    for finding in results.findings:
        worked += map(_example_row, finding.examples_of("worked"))
    if worked:
        lines += ["", _BLOCK_TITLE, *aligned(worked)]
    return lines


def _summary_table(findings: Sequence[Finding], columns: Mapping[str, Column]) -> list[str]:
    rows = [["question", "head", *columns, "verdict"]]
    for finding in findings:
        cells = [_summary_cell(finding, column) for column in columns.values()]
        verdict = f"{finding.verdict} ({finding.level})"
        question = f"{finding.question}: {finding.description}"
        rows.append([question, head_names(finding.judged.heads), *cells, verdict])
    return aligned(rows)


def _summary_cell(finding: Finding, column: Column) -> str:
    """Return a measure of the judged heads, with its interval or with the accuracy of a rule."""
    values = finding.parts[column.part].values if column.part else finding.judged.values
    estimate = values.get(column.measure, NOT_KNOWN)
    if column.has_interval:
        return number(estimate, column.form)
    text = number(estimate.value, column.form)
    if column.has_rule:
        rule = best_of(finding.rules)
        text += f" ({rule} {number(finding.rules[rule], column.form)})"
    return text


def _example_row(shown: Shown) -> tuple[str, str, str]:
    following = [(word, chance) for word, chance in shown.next if word.isalpha() and chance >= 0.1]
    next_words = f"next: {_chances(following[:2])}" if following else ""
    return f"  {shown.text}", f"{shown.word} → {_chances(shown.weights.items())}", next_words


def _passage_lines(finding: Finding) -> list[str]:
    """Return the most typical passage, and the unmet criteria of the lowest level that has one; stories have none."""
    lines: list[str] = []
    typical = finding.examples_of("typical")
    for shown in typical[:1]:
        text = " ".join(shown.text.split())
        text = text if len(text) <= _LONGEST_PASSAGE else f"… {text[-_LONGEST_PASSAGE:]}"
        attends = _chances(sorted(shown.weights.items(), key=lambda weight: -weight[1]))
        facts = f"{finding.place} → {attends}    next: {_chances(shown.next)}"
        lines += [f"  {text} ___", f"    {facts}    weights exchanged: {_chances(shown.exchanged)}"]
    unmet = [criterion for criterion in finding.judged.criteria if not criterion.passed]
    for criterion in unmet if typical else ():
        if criterion.level == unmet[0].level:
            lines.append(f"  not met: {criterion.label} ({criterion.reason})")
    return lines


def _chances(chances: Iterable[tuple[str, float]]) -> str:
    return ", ".join(f"{word} {chance:.2f}" for word, chance in chances)


# Evidence


def finding_tables(finding: Finding, verbose: bool = False) -> list[Table]:
    """Return criteria, measures, parts and heads together; only what there is. `verbose`: with all rows of parts."""
    header = ["heads", "added", "swap on dev", "swap tested [95 %]"]
    rows = []
    for n_heads, (added, on_dev, tested) in enumerate(finding.curve, 1):
        rows.append([str(n_heads), str(added), number(on_dev), number(tested)])
    note = "Swap of heads together, added one by one on dev: sentences to choose heads on, none of which is tested."
    together = Table("Heads together", header, rows, note)
    tables = [_criteria_table(finding), _measure_table(finding), _part_table(finding, verbose), together]
    if finding.elsewhere is not None:
        tables.append(_elsewhere_table(finding.elsewhere))
    return [table for table in tables if table.rows]


def _criteria_table(finding: Finding) -> Table:
    marks = {"met": "✓", "not met": "✗"}
    terms = dict(OUTCOMES[finding.outcome].levels)
    rows = []
    for criterion in finding.judged.criteria:
        bars = "; ".join(criterion.bars.values())
        result = f"{marks.get(criterion.outcome, '–')} {criterion.outcome}"
        measured = []
        for key, value in criterion.measured.items():
            name = key.removesuffix("_low").removesuffix("_high")
            end = key.removeprefix(name).replace("_low", ", lower end").replace("_high", ", upper end")
            measure = MEASURES[name]
            terms[measure.label] = measure.meaning
            measured.append(f"{measure.label}{end} {number(value, measure.form)}")
        rows.append([criterion.label, criterion.level, "; ".join(measured), bars, result])
    note = "; ".join(f"{term}: {meaning}" for term, meaning in terms.items())
    header = ["criterion", "level", "measured", "required", "result"]
    return Table("Criteria, fixed in advance", header, rows, f"Levels of evidence and measures: {note}.")


def _measure_table(finding: Finding) -> Table:
    """Return every measure of the head, the set and untrained models, and the rules."""
    unit = "head" if len(finding.head.heads) == 1 else "set"
    columns = {f"{unit} {head_names(finding.head.heads)} [95 %]": (finding.head.values, finding.rules)}
    if finding.set is not None and finding.set.heads != finding.head.heads:
        columns[f"set {head_names(finding.set.heads)} [95 %]"] = (finding.set.values, {})
    if finding.carrier is not None:
        columns[f"what carries: {head_names(finding.carrier.heads)} [95 %]"] = (finding.carrier.values, {})
    if finding.untrained:
        columns["untrained models [range]"] = (finding.untrained, {})
    counts = [f"{n:,} {name.replace('_', ' ')}" for name, n in finding.clusters.items()]
    counts += [f"{n:,} left out: {reason.replace('_', ' ')}" for reason, n in finding.left_out.items()]
    note = f"{finding.n:,} tested texts: {', '.join(counts)}."
    rows = _measure_rows(list(columns.values()))
    return Table("Measures", ["measure", *columns, "meaning"], rows, note)


def _part_table(finding: Finding, verbose: bool) -> Table:
    """Return the scores of the head and of rules on each part; rows that are as in Measures only if `verbose`."""
    parts = finding.parts.values()
    in_measures = {row[0]: row[1] for row in _measure_rows([(finding.head.values, finding.rules)])}
    rows = []
    for label, *cells, _ in _measure_rows([(part.values, part.rules) for part in parts]):
        if verbose or label in ("accuracy", _BEST_RULE) or {*cells} != {in_measures.get(label)}:
            rows.append([label, *cells])
    if rows:
        rows.insert(0, ["texts", *(f"{part.n:,}" for part in parts)])
    note = _PARTS_NOTE if {SAME_WORDS, HEADLINE} <= finding.parts.keys() else ""
    return Table("Parts of the tested texts", ["measure", *finding.parts], rows, note)


def _elsewhere_table(seen: Elsewhere) -> Table:
    rows = []
    for place in seen.places:
        rows.append([str(place.head), number(place.weight), place.text, place.link])
    note = (
        f"{seen.n_link:,} of the {seen.n_strong:,} weights of .3 or more in {seen.texts} are the link of this "
        f"question, which {seen.n_queries:,} of {seen.n_texts:,} ({seen.n_tokens:,} tokens) have; not counted: on the "
        "start token, on itself. Each pair of words once; the later attends to the earlier."
    )
    return Table("Elsewhere: the strongest places", ["head", "weight", "text", "link of"], rows, note)


def _measure_rows(columns: Sequence[tuple[Values, Mapping[str, float]]]) -> list[list[str]]:
    """Return a row for each measure, the best rule and each rule: label, a cell for each of `columns`, and meaning."""
    rows = []
    for name, measure in MEASURES.items():
        cells = [_cell(name, values) for values, _ in columns]
        if any(cells):
            rows.append([measure.label, *cells, measure.meaning])
    names = dict.fromkeys(chain.from_iterable(rules for _, rules in columns))
    meaning = "accuracy of a rule that does not know the model"
    if names:
        rows.append([_BEST_RULE, *(_best_rule(rules) for _, rules in columns), meaning])
    for name in names:
        cells = [number(rules[name]) if name in rules else "" for _, rules in columns]
        rows.append([f"rule: {name}", *cells, RULES.get(name, meaning)])
    return rows


def _cell(name: str, values: Values) -> str:
    """Return a measure with its interval, "" if it was not measured; a bar that nothing passes says so."""
    if name not in values:
        return ""
    if name == "bar" and values[name].value >= 1:
        return NO_BAR
    return number(values[name], MEASURES[name].form)


def _best_rule(rules: Mapping[str, float]) -> str:
    """Return the highest accuracy, its rule, and the number of rules; "" without rules."""
    return f"{number(max(rules.values()))} ({best_of(rules)}, of {len(rules)})" if rules else ""


def origin_line(environment: Mapping[str, Any]) -> str:
    """Return what results were made with as one line of names and values, as probe.json has them."""
    facts = {**environment, **environment["packages"]}
    del facts["packages"]
    return " ".join(printable(f"Made with {', '.join(f'{name} {value}' for name, value in facts.items())}.").split())


def claims_markdown(results: ProbeResults, verbose: bool = False) -> str:
    """Return the claim of every finding with its evidence and its limits; `verbose` as in `finding_tables`."""
    lines = []
    for finding in results.findings:
        lines += [f"## {finding.question}", "", f"**{claim_of(finding, results.model)}**"]
        for table in finding_tables(finding, verbose):
            lines += ["", f"{table.title}. {table.note}".rstrip(), ""]
            lines += markdown_table(table.header, table.rows)
        reasons = [*finding.judged.reasons, *finding.notes]
        limits = limits_of(finding, results.model)
        for title, texts in (("Why no more is claimed", reasons), ("This does not show", limits)):
            if texts:
                lines += ["", f"{title}:", "", *map("- {}".format, texts)]
        lines.append("")
    return "\n".join(lines)


# A sentence of the user's


def sentence_lines(
    text: TokenizedText,
    weights: np.ndarray,
    rows: Mapping[int, Sequence[str]],
    chosen: Mapping[Head, Sequence[str]],
    effects: Mapping[int, np.ndarray] | None,
) -> list[str]:
    """Return the attention of every head from each of `rows`: to nouns, and the three largest weights.

    `weights` are those between the words of `text`, [L, H, W, W]; `rows` the nouns that may be meant,
    by the index of the word to read at; `chosen` the questions for which the probe chose a head. With
    `effects` [L, H] of removing each head, by row, only the MOST_HEADS largest are shown, and chosen heads.
    """
    lines = []
    for row, nouns in rows.items():
        title = f"at “{text.words[row]}”: the three largest weights of each head"
        if nouns:
            title += f"; before them the weights on {', '.join(nouns)}"
        lines += ["", title]
        heads = [Head(*place) for place in np.argwhere(~np.isnan(weights[:, :, row, 0])).tolist()]
        if effects is not None:
            heads = _that_matter(heads, effects[row], chosen)
            meaning = "first: how much the next word changes without the head, 0 to 1"
            lines.append(f"  the {MOST_HEADS} that matter most; {meaning}")
            lines.append("  (all heads: verbose=true)")

        # A line for each head: the weight on all earlier mentions of each noun, and the largest weights
        cells = []
        for head in heads:
            of_words = weights[head.layer, head.head, row]  # [W]
            line = [f"  {head}"]
            if effects is not None:
                line.append(f"{effects[row][head]:.2f}")
            for noun in nouns:
                mentions = [i for i, word in enumerate(text.words[:row]) if word == noun]
                line.append(f"{noun} {of_words[mentions].sum():.2f}")
            if nouns:
                line.append("|")
            largest = np.argsort(-of_words, kind="stable")[:3]
            line.append("  ".join(f"{text.words[i]} {of_words[i]:.2f}" for i in largest if of_words[i] > 0))
            questions = ", ".join(chosen.get(head, ()))
            line.append(f"← chosen for {questions}" if questions else "")
            cells.append(line)
        lines += aligned(cells)
    return lines


def _that_matter(heads: Sequence[Head], effects: np.ndarray, chosen: Mapping[Head, Sequence[str]]) -> list[Head]:
    """Return the MOST_HEADS of the largest effects, then the others that are chosen for a question."""
    ordered = sorted(heads, key=lambda head: -effects[head])
    return ordered[:MOST_HEADS] + [head for head in ordered[MOST_HEADS:] if head in chosen]
