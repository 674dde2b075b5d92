"""The tables of a sweep, sweep.md: each variant, and each question in it over training seeds."""

from collections import Counter
from collections.abc import Mapping

from extras.sweeps.sweep import STANDARD, Difference, QuestionOverSeeds, Summary, Sweep, measure_of, variant_name
from probe.outcomes import OUTCOMES
from probe.statistics import MIN_SEEDS
from probe.text_tables import markdown_table

_STAR = (
    "*: differs from the standard: the 95 % interval of the paired difference excludes 0, and the permutation p is at",
    "   most .05 or, with fewer than six seeds, the smallest possible p (five seeds: .0625); not corrected for columns",
)


def sweep_markdown(sweep: Sweep) -> str:
    """Return the tables of sweep.md."""
    lines = [
        f"# Results over {sweep.units} {', '.join(map(str, sweep.variants[0].seeds))}",
        "",
        "Each run's head is the one that its own dev items selected. Scores are means on the tested items,",
        f"with 95 % intervals from {MIN_SEEDS} {sweep.units} on.",
        *(f"note: {warning}" for warning in sweep.warnings),
        "",
    ]

    names = list(sweep.variants[0].values)
    rows = []
    for variant in sweep.variants:
        means = [_mean(variant.values, variant.differences, name) for name in names]
        rows.append([variant.name, str(len(variant.seeds)), *means])
    lines += markdown_table(["variant", sweep.units, *(measure_of(name).label for name in names)], rows)

    # Scores of the heads at the end of training; questions of one outcome have the same measures.
    for outcome_name, outcome in OUTCOMES.items():
        rows = []
        for index, question in enumerate(sweep.variants[0].questions):
            if question.outcome == outcome_name:
                for variant in sweep.variants:
                    rows.append(_question_row(variant.name, variant.questions[index], outcome.over_seeds))
        header = ["question", "variant", "supported in", "verdicts"]
        header += [measure_of(name).label for name in outcome.over_seeds]
        lines += ["", *markdown_table([*header, "heads"], rows)] if rows else []

    lines += ["", f"- {STANDARD}: {variant_name(sweep.standard)}", *_STAR] if len(sweep.variants) > 1 else []
    return "\n".join([*lines, ""])


def _question_row(variant: str, question: QuestionOverSeeds, names: tuple[str, ...]) -> list[str]:
    supported = f"{question.n_supported} of {question.n}"
    interval = f"[{question.share.low:.2f}, {question.share.high:.2f}]"
    verdicts = ", ".join(f"{name} {n}" for name, n in Counter(question.verdicts).items())
    means = [_mean(question.values, question.differences, name) for name in names]
    runs = zip(question.heads, question.levels, strict=True)
    heads = ", ".join(f"{'+'.join(map(str, of_run))} {level}" for of_run, level in runs)
    return [question.question, variant, f"{supported} {interval}", verdicts, *means, heads]


def _mean(values: Mapping[str, Summary], differences: Mapping[str, Difference], name: str) -> str:
    """Return a mean with its interval, if it has one, and a star if it differs from the standard; a dash for none."""
    if name not in values:
        return "–"
    summary = values[name]
    form = measure_of(name).form
    interval = f" [{summary.interval[0]:{form}}, {summary.interval[1]:{form}}]" if summary.interval else ""
    star = " *" if name in differences and differences[name].is_significant else ""
    return f"{summary.mean:{form}}{interval}{star}"
