"""The tables of a sweep, sweep.md: each variant, and each question in it over training seeds."""

from collections import Counter
from collections.abc import Mapping

from extras.sweeps.sweep import OF_TRAINING, STANDARD, QuestionOverSeeds, Sweep, Variant, measure_of, variant_name
from probe.outcomes import OUTCOMES
from probe.results import Estimate, Measure
from probe.statistics import MIN_SEEDS
from probe.tables import number
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
    measures = {name: OF_TRAINING[name] for name in sweep.variants[0].values}
    rows = []
    for variant in sweep.variants:
        rows.append([variant.name, str(len(variant.seeds)), *_means(variant, measures)])
    lines += markdown_table(["variant", sweep.units, *_labels(measures)], rows)

    # Scores of the heads at the end of training; questions of one outcome have the same measures.
    for outcome in OUTCOMES.values():
        measures = {name: measure_of(name) for name in outcome.over_seeds}
        rows = []
        for index, question in enumerate(sweep.variants[0].questions):
            for variant in sweep.variants if question.outcome == outcome.name else ():
                rows.append([question.question, variant.name, *_cells(variant.questions[index], measures)])
        if rows:
            header = ["question", "variant", "supported in", "verdicts", *_labels(measures), "heads"]
            lines += ["", *markdown_table(header, rows)]

    if len(sweep.variants) > 1:
        lines += ["", f"- {STANDARD}: {variant_name(sweep.standard)}", *_STAR]
    return "\n".join([*lines, ""])


def _labels(measures: Mapping[str, Measure]) -> list[str]:
    return [measure.label for measure in measures.values()]


def _cells(question: QuestionOverSeeds, measures: Mapping[str, Measure]) -> list[str]:
    supported = f"{question.n_supported} of {question.n} [{question.share.low:.2f}, {question.share.high:.2f}]"
    verdicts = ", ".join(f"{name} {n}" for name, n in Counter(question.verdicts).items())
    heads = []
    for of_run, level in zip(question.heads, question.levels, strict=True):
        heads.append(f"{'+'.join(map(str, of_run))} {level}")
    return [supported, verdicts, *_means(question, measures), ", ".join(heads)]


def _means(of: Variant | QuestionOverSeeds, measures: Mapping[str, Measure]) -> list[str]:
    """Return each mean, its interval if it has one, and a star if it differs from the standard; a dash for none."""
    cells = []
    for name, measure in measures.items():
        cell = "–"
        if name in of.values:
            mean = Estimate(of.values[name].mean, *(of.values[name].interval or ()))
            cell = number(mean, measure.form)
        if name in of.differences and of.differences[name].is_significant:
            cell += " *"
        cells.append(cell)
    return cells
