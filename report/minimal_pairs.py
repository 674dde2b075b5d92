"""What eval.py prints of the scores on minimal pairs."""

from pathlib import Path

from data.text_tables import markdown_table, percent, percent_interval
from probe.minimal_pairs import Accuracy, Coverage, FileScores, MinimalPairs

_HEADER = ("file", "pairs", "right %", "95 %", "ties", "covered", "right %", "ceiling", "above it")
_LEGEND = (
    "right: share of pairs whose good sentence has the higher log-probability; a tie counts half",
    "covered: pairs whose differing words all occur in the training text",
    "ceiling: best accuracy of a predictor that does not see the context; at or below it, no evidence of reference",
)


def minimal_pairs_lines(scores: MinimalPairs, words_source: str) -> list[str]:
    """Return the coverage of a test set, the table of its files and the legend.

    `words_source`: where the words of the training text were read, or why they are not known.
    """
    rows = [_row(file) for file in scores.files]
    return [_coverage_line(scores.coverage, words_source), "", *markdown_table(_HEADER, rows), "", *_LEGEND]


def _coverage_line(coverage: Coverage, words_source: str) -> str:
    if coverage.seen_words is None:
        seen = f"share seen in training unknown ({words_source})"
    else:
        shares = f"{percent(coverage.seen_words)} % ({percent(coverage.seen_types)} % of the distinct ones)"
        seen = f"{shares} are in {words_source}"
    unknown = percent(coverage.unknown_tokens)
    return f"coverage of all files: {coverage.n_words:,} words, {seen}, {unknown} % unknown tokens"


def _row(scores: FileScores) -> list[str]:
    accuracy, interval = _percents(scores.accuracy)
    accuracy_covered, _ = _percents(scores.accuracy_covered)
    return [
        Path(scores.file).stem,
        str(scores.n_pairs),
        accuracy,
        interval,
        str(scores.n_ties),
        "unknown" if scores.n_covered is None else str(scores.n_covered),
        accuracy_covered,
        percent(scores.context_free_ceiling),
        {True: "yes", False: "no", None: "-"}[scores.above_ceiling],
    ]


def _percents(accuracy: Accuracy | None) -> tuple[str, str]:
    """Return an accuracy and its interval; dashes without pairs."""
    if accuracy is None:
        return percent(None), percent_interval(None)
    return percent(accuracy.value), percent_interval(accuracy.interval)
