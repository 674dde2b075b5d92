"""The tables of a sweep: seeds.md for its training seeds, compare.md and compare.csv for its variants."""

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from data.text_tables import markdown_table
from probe.results import MEASURES
from probe.seeds import SHOWN, QuestionOverSeeds, SeedsResult, Summary
from probe.statistics import MIN_SEEDS
from probe.variants import COLUMNS, STANDARD, Comparison, Variant, variant_name

_Row = TypeVar("_Row")
_STAR = (
    "*: differs from the standard: the 95 % interval of the paired difference excludes 0, and the permutation p is at",
    "   most .05 or, with fewer than six seeds, the smallest possible p (five seeds: .0625); not corrected for columns",
)


def seeds_markdown(results: SeedsResult) -> str:
    """Return the tables of seeds.md."""
    lines = [
        f"# Results over training seeds {', '.join(map(str, results.seeds))}",
        "",
        "Each run's head is the one that its own dev items selected. Scores are means over seeds on the tested items,",
        f"with 95 % intervals from {MIN_SEEDS} seeds on.",
    ]

    # What the heads do at the end of training; questions of one outcome have the same measures.
    for outcome, measures in SHOWN.items():
        columns: dict[str, Callable[[QuestionOverSeeds], str]] = {
            "question": lambda row: row.question,
            "supported in": lambda row: f"{row.n_supported} of {row.n} [{row.share.low:.2f}, {row.share.high:.2f}]",
            "verdicts": lambda row: ", ".join(f"{name} {n}" for name, n in Counter(row.verdicts).items()),
        }
        for name in measures:
            label = MEASURES[name].label if name in MEASURES else f"rule: {name}"
            columns[label] = lambda row, name=name: _mean(row.values[name], ".3f")  # type: ignore[misc]
        lines += _table([row for row in results.questions if row.outcome == outcome], columns | {"heads": _heads})

    # When they emerge, and what the models answer.
    curves = [(row.question, name, times) for row in results.questions for name, times in row.timing.items()]
    note = "t50: the step at which a curve has risen half way from chance to its end."
    lines += _table(curves, {
        "question": lambda row: row[0],
        "curve": lambda row: row[1].replace("_", " "),
        "end": lambda row: _mean(row[2]["end"], ".2f"),
        "t50 (step)": lambda row: _mean(row[2]["t50"], ".0f"),
    }, note)  # fmt: skip
    note = (
        "The models' answers. Resolved share: 0 if the pronoun is ignored, 1 at the entropy lower bound, below 0 if\n"
    )
    answers = [item for item in results.behaviour.items() if item[1]["resolved_share"].n]
    lines += _table(answers, {
        "answers": lambda row: row[0],
        "n": lambda row: f"{row[1]['n'].minimum:.0f}",
        "resolved share": lambda row: _mean(row[1]["resolved_share"], ".3f"),
        "minimum": lambda row: f"{row[1]['resolved_share'].minimum:.3f}",
        "accuracy": lambda row: _mean(row[1]["accuracy"], ".3f"),
    }, f"{note}the model is misled.")  # fmt: skip
    return "\n".join([*lines, *_notes(results)]) + "\n"


def _notes(results: SeedsResult | Comparison) -> list[str]:
    return [f"note: {warning}" for warning in results.warnings]


def _heads(row: QuestionOverSeeds) -> str:
    """Return the heads of each run with their level."""
    return ", ".join(f"{'+'.join(map(str, each))} {level}" for each, level in zip(row.heads, row.levels, strict=True))


def _table(rows: Iterable[_Row], columns: Mapping[str, Callable[[_Row], str]], note: str = "") -> list[str]:
    """Return an empty line, a note and a table with a row for each item; nothing without rows."""
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return ["", *([note, ""] if note else []), *markdown_table(list(columns), cells)] if cells else []


def _mean(values: Summary, form: str) -> str:
    """Return the mean with its interval, if it has one; "never" for a curve that has not risen in any run."""
    if values.mean is None:
        return "never"
    interval = f" [{values.interval[0]:{form}}, {values.interval[1]:{form}}]" if values.interval else ""
    return f"{values.mean:{form}}{interval}"


def comparison_markdown(results: Comparison) -> str:
    """Return a table with a row for each variant, one sentence for each, and what the columns mean."""
    columns: dict[str, Callable[[Variant], str]] = {"variant": lambda row: row.name}
    columns["seeds"] = lambda row: str(len(row.seeds))
    names = list(results.variants[0].values)
    for name in names:
        columns[name.replace("_", " ")] = lambda row, name=name: _with_star(row, name)  # type: ignore[misc]
    columns["supported"] = lambda row: f"{row.n_supported} of {len(row.verdicts)}" if row.verdicts else "not tested"
    sentences = [f"- {STANDARD}: {variant_name(results.standard)}"]
    sentences += [f"- {variant.sentence}" for variant in results.variants[1:]]
    legend = [f"{name.replace('_', ' ')}: {COLUMNS[name].meaning}" for name in names]
    if results.question:
        legend.append(f"supported: number of runs whose head for the question {results.question} is supported")
    return "\n".join(
        [*_table(results.variants, columns)[1:], "", *sentences, "", *legend, *_STAR, *_notes(results), ""]
    )


def _with_star(variant: Variant, name: str) -> str:
    """Return a mean, with a star if it differs significantly from that of the standard; a dash for none."""
    if name not in variant.values:
        return "–"
    is_significant = name in variant.differences and variant.differences[name].is_significant
    return _mean(variant.values[name], COLUMNS[name].form) + (" *" if is_significant else "")


def comparison_csv(results: Comparison) -> str:
    """Return one row per variant, seed and measure."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["variant", "seed", "run", "measure", "value"])
    for variant in results.variants:
        for name, values in variant.values.items():
            for seed, run, value in zip(variant.seeds, variant.runs, values.by_run, strict=True):
                writer.writerow([variant.name, seed, run, name, "" if value is None else f"{value:.6f}"])
    return stream.getvalue()
