"""The tables of a sweep: seeds.md for its training seeds, compare.md and compare.csv for its variants."""

import csv
import io
from collections.abc import Mapping, Sequence

from data.text_tables import markdown_table
from lab.compare import FIRST_STEPS, MEASURES, QUESTION, Comparison, MeasureResult
from lab.seeds import AnswersOverSeeds, NextPronounOverSeeds, SeedsResult, Summary, Support
from probe.results import Head
from probe.statistics import MIN_SEEDS

LEGEND = (
    "gap: loss minus the entropy lower bound, nats/token; resolved share: 0 if the pronoun is ignored, 1 if optimal",
    f"accuracy, block accuracy: of the head selected for {QUESTION}, on new words in new frames (headline)",
    "entropy: 1 for uniform attention, 0 for attention to a single token, mean over heads",
    f"gradient norm: before clipping, mean of the recorded steps among the first {FIRST_STEPS}",
    "asymmetry: 0 if the score of a for b equals the score of b for a, .71 for random weights",
    "supported: number of runs in which the probe's verdict on that head is supported",
    "*: differs from the standard: the 95 % interval of the paired difference excludes 0, and the permutation p is at",
    "   most .05 or, with fewer than six seeds, the smallest possible p (five seeds: .0625); not corrected for columns",
)


def seeds_markdown(results: SeedsResult) -> str:
    """Return the tables of seeds.md."""
    lines = [
        f"# Results over training seeds {', '.join(map(str, results.seeds))}",
        "",
        "Each run's head is the one its own dev items selected. Scores are means over seeds on the headline hold-out,",
        f"with 95 % intervals from {MIN_SEEDS} seeds on.",
    ]

    # What the heads do at the end of training.
    if results.questions:
        scores = "accuracy|block accuracy|pronoun contrast"
        header = f"question|supported in|verdicts|{scores}|head and level per seed"
        lines += _table(header, _question_rows(results))
    if results.next_pronoun:
        header = "next pronoun|supported in|share|flips|author's|nearest|head (share) and level per seed"
        lines += _table(header, [_next_pronoun_row(question) for question in results.next_pronoun])

    # When they emerge.
    timed = _timing_rows(results)
    if timed:
        lines += ["", "t50: the step at which a curve has risen half way from chance to its end."]
        lines += _table("question|curve|end|t50 (step)", timed)

    # What the models answer.
    answered = [group for group in results.behaviour if group.resolved_share.n]
    if answered:
        lines.append("")
        lines.append("The models' answers. Resolved share: 0 if the pronoun is ignored, 1 at the entropy lower bound,")
        lines.append("below 0 if the model is misled.")
        header = "answers|hold-out|n|resolved share|minimum|accuracy|minimum"
        lines += _table(header, [_answer_row(group) for group in answered])
    return "\n".join(lines) + "\n"


def _table(header: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Return an empty line and a table; the names of the columns are separated by "|"."""
    return ["", *markdown_table(header.split("|"), rows)]


def _question_rows(results: SeedsResult) -> list[list[str]]:
    rows = []
    for question in results.questions:
        row = [question.question, _supported(question), _counts(question.verdicts)]
        for score in question.scores.values():
            row.append(_mean(score, ".3f"))
        heads = [f"{'+'.join(map(str, head.heads))} {head.evidence_level}" for head in question.heads]
        rows.append([*row, " ".join(heads)])
    return rows


def _next_pronoun_row(question: NextPronounOverSeeds) -> list[str]:
    heads = []
    for head in question.heads:
        unit = f" set of {len(head.head_set.heads)}" if head.unit == "set" and head.head_set else ""
        heads.append(f"{Head(head.layer, head.head)}{unit} ({head.share:.2f}) {head.evidence_level}")
    row = [question.question, _supported(question)]
    for value in (question.share, question.flips, question.author_accuracy, question.nearest_accuracy):
        row.append(_mean(value, ".2f"))
    return [*row, " ".join(heads)]


def _timing_rows(results: SeedsResult) -> list[list[str]]:
    rows = []
    for question in results.questions:
        for curve, times in question.timing.items():
            rows.append([question.question, curve, _mean(times.end, ".2f"), _mean(times.t50, ".0f")])
    return rows


def _answer_row(group: AnswersOverSeeds) -> list[str]:
    name = group.family if group.family == group.level else f"{group.family} {group.level}"
    row = [f"{name} at {group.site}", group.holdout, str(min(group.n_items))]
    for score in (group.resolved_share, group.accuracy):
        row += [_mean(score, ".3f"), f"{score.minimum:.3f}"]
    return row


def _supported(question: Support) -> str:
    low, high = question.share_interval
    return f"{question.n_supported} of {question.n} [{low:.2f}, {high:.2f}]"


def _counts(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{verdict} {count}" for verdict, count in verdicts.items())


def _mean(values: Summary | MeasureResult, form: str, missing: str = "never") -> str:
    """Return the mean with its interval, if it has one."""
    if values.mean is None:
        return missing
    interval = ""
    if values.interval:
        low, high = values.interval
        interval = f" [{low:{form}}, {high:{form}}]"
    return f"{values.mean:{form}}{interval}"


def comparison_markdown(results: Comparison) -> str:
    """Return a table with a row for each variant, and one sentence for each."""
    # One row for each variant; the star is explained in LEGEND.
    rows = []
    for variant in results.variants:
        row = [variant.name, str(len(variant.seeds))]
        for measure in MEASURES:
            values = variant.measures[measure.name]
            is_significant = values.difference is not None and values.difference.is_significant
            row.append(_mean(values, measure.form, missing="-") + (" *" if is_significant else ""))
        supported = f"{variant.n_supported} of {variant.n_tested}" if variant.n_tested else "not tested"
        rows.append([*row, supported])
    names = [measure.name.replace("_", " ") for measure in MEASURES]
    table = markdown_table(["variant", "seeds", *names, "supported"], rows)
    sentences = [f"- {variant.sentence}" for variant in results.variants]
    return "\n".join([*table, "", *sentences, ""])


def comparison_csv(results: Comparison) -> str:
    """Return one row per variant, seed and measure."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["variant", "seed", "run", "measure", "value"])
    for variant in results.variants:
        for measure in MEASURES:
            values = variant.measures[measure.name].by_seed
            for seed, run, value in zip(variant.seeds, variant.runs, values, strict=True):
                shown = "" if value is None else f"{value:.6f}"
                writer.writerow([variant.name, seed, run, measure.name, shown])
    return stream.getvalue()
