"""Tables as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table of the evidence."""

    title: str
    header: list[str]
    rows: list[list[str]]
    note: str = ""


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with aligned columns."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    rule = ["-" * width for width in widths]
    return ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in (header, rule, *rows)]
