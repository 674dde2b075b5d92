"""Tables as Markdown, and shares as percentages."""

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    return ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in (header, rule, *rows)]


def percent(share: float | None) -> str:
    """Return 43.1 for .431 and a dash for None."""
    return "-" if share is None else f"{100 * share:.1f}"


def percent_interval(interval: tuple[float, float] | None) -> str:
    """Return [41.0, 45.2] for (.41, .452) and a dash for None."""
    return "-" if interval is None else f"[{percent(interval[0])}, {percent(interval[1])}]"
