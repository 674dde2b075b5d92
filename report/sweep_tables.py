"""The tables of a sweep: seeds.md for its training seeds, compare.md for its variants."""

from collections import Counter

from data.text_tables import markdown_table
from probe.results import MEASURES
from probe.seeds import SHOWN, QuestionOverSeeds, SeedsResult, Summary
from probe.statistics import MIN_SEEDS
from probe.variants import COLUMNS, STANDARD, Comparison, Variant, variant_name

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
        labels = [MEASURES[name].label if name in MEASURES else f"rule: {name}" for name in measures]
        header = ["question", "supported in", "verdicts", *labels, "heads"]
        rows = []
        for of_question in results.questions:
            if of_question.outcome == outcome:
                supported = f"{of_question.n_supported} of {of_question.n}"
                interval = f"[{of_question.share.low:.2f}, {of_question.share.high:.2f}]"
                verdicts = ", ".join(f"{name} {n}" for name, n in Counter(of_question.verdicts).items())
                means = [_mean(of_question.values[name], ".3f") for name in measures]
                rows.append([of_question.question, f"{supported} {interval}", verdicts, *means, _heads(of_question)])
        if rows:
            lines += ["", *markdown_table(header, rows)]
    return "\n".join([*lines, *_notes(results), ""])


def _heads(row: QuestionOverSeeds) -> str:
    """Return the heads of each run with their level."""
    runs = zip(row.heads, row.levels, strict=True)
    return ", ".join(f"{'+'.join(map(str, heads))} {level}" for heads, level in runs)


def _mean(values: Summary, form: str) -> str:
    """Return the mean with its interval, if it has one; a dash if no run has a value."""
    if values.mean is None:
        return "–"
    interval = f" [{values.interval[0]:{form}}, {values.interval[1]:{form}}]" if values.interval else ""
    return f"{values.mean:{form}}{interval}"


def comparison_markdown(results: Comparison) -> str:
    """Return a table with a row for each variant, and what the columns mean."""
    names = list(results.variants[0].values)
    header = ["variant", "seeds", *(name.replace("_", " ") for name in names), "supported"]
    rows = []
    for variant in results.variants:
        supported = "not tested"
        if variant.verdicts:
            supported = f"{variant.n_supported} of {len(variant.verdicts)}"
        means = [_with_star(variant, name) for name in names]
        rows.append([variant.name, str(len(variant.seeds)), *means, supported])
    lines = [*markdown_table(header, rows), "", f"- {STANDARD}: {variant_name(results.standard)}"]
    lines += ["", *(f"{name.replace('_', ' ')}: {COLUMNS[name].meaning}" for name in names)]
    if results.question:
        head = f"head for the question {results.question}"
        lines.append(f"supported: number of runs whose {head} is supported")
    return "\n".join([*lines, *_STAR, *_notes(results), ""])


def _notes(results: SeedsResult | Comparison) -> list[str]:
    return [f"note: {warning}" for warning in results.warnings]


def _with_star(variant: Variant, name: str) -> str:
    """Return a mean, with a star if it differs from that of the standard; a dash for none."""
    if name not in variant.values:
        return "–"
    is_significant = name in variant.differences and variant.differences[name].is_significant
    return _mean(variant.values[name], COLUMNS[name].form) + (" *" if is_significant else "")
