"""The model that is tested, as every test here sees it, and what a test hands back."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from data.links import Span
from model.transformer import Transformer
from probe.config import ProbeConfig

# Cuts (tokens [N], the bytes of text they stand for) into batches of what the model reads and must predict.
Windows = Callable[[np.ndarray, int], Iterable[tuple[tuple[Tensor, ...], Tensor]]]


Texts = Callable[[str], Iterable[tuple[str, Iterable[tuple[str, bool]]]]]


_WORD = re.compile(r"\w+|[^\w\s]+")


@dataclass(frozen=True)
class Subject:
    """A trained model and what is needed to ask it."""

    model: Transformer  # in eval mode, float32
    encode: Callable[[str], tuple[list[int], list[Span]]]  # a text's tokens, no END in front, and their characters
    decode: Callable[[list[int]], str]  # tokens back to text
    end: int  # the token that stands before every text
    unknown: int | None  # the token of what the tokenizer cannot write; None where it can write everything
    known: frozenset[str] | None  # words of the training text; None where they cannot be read any more
    known_from: str  # where they were read, or why they cannot be
    windows: Windows  # a text's tokens and its bytes -> (what the model reads, targets) until all are predicted
    texts: Texts  # what the user calls a text -> of each file its name and (piece, whether it begins a document)
    untrained: Callable[[int], Transformer]  # the i-th model of the same shape that was never trained
    config: ProbeConfig

    @property
    def limit(self) -> int:
        """How many tokens of a text the model reads behind the END."""
        return self.model.config.context_length - 1


@dataclass(frozen=True)
class Report:
    """What a test found."""

    results: dict[str, Any]  # for <task>.json
    markdown: list[str]  # lines, printed and for <task>.md
    heads: list[dict[str, Any]]  # rows for <task>_heads.csv; none where no head is asked


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of a test the model can read at all."""

    n_words: int  # running words and marks
    n_types: int  # different ones
    seen_words: float | None  # share of the running words that stand in the training text; None: not known
    seen_types: float | None  # share of the different ones
    unknown_tokens: float  # share of the tokens that stand for something the tokenizer cannot write


def words_of(text: str) -> list[str]:
    """Return the words and marks of `text`, cut as the words of the training text are."""
    return _WORD.findall(text)


def cover(subject: Subject, texts: Sequence[str]) -> Coverage:
    """Measure the coverage of some texts: always the first thing to say of a test."""
    words = [word for text in texts for word in words_of(text)]
    types = set(words)
    tokens = [token for text in texts for token in subject.encode(text)[0]]
    known = subject.known
    return Coverage(
        n_words=len(words),
        n_types=len(types),
        seen_words=None if known is None else sum(word in known for word in words) / max(1, len(words)),
        seen_types=None if known is None else len(types & known) / max(1, len(types)),
        unknown_tokens=sum(token == subject.unknown for token in tokens) / max(1, len(tokens)),
    )


def is_known(subject: Subject, text: str) -> bool | None:
    """Whether every word of `text` was seen in training and can be written; None where that cannot be known."""
    if subject.unknown is not None and subject.unknown in subject.encode(text)[0]:
        return False
    return None if subject.known is None else all(word in subject.known for word in words_of(text))


def coverage_line(subject: Subject, found: Coverage, of: str) -> str:
    """Return one line that says it."""
    if found.seen_words is None or found.seen_types is None:
        seen = f"which were seen in training is unknown: {subject.known_from}"
    else:
        seen = (
            f"{100 * found.seen_words:.1f} % of them ({100 * found.seen_types:.1f} % of the different ones) stand in "
            f"{subject.known_from}"
        )
    return f"coverage of {of}: {found.n_words:,} words; {seen}; {100 * found.unknown_tokens:.1f} % unknown tokens"


def percent(share: float | None) -> str:
    """Return 43.1 for .431, and a dash for None."""
    return "-" if share is None else f"{100 * share:.1f}"


def between(interval: tuple[float, float] | list[float] | None) -> str:
    """Return [41.0, 45.2] for (.41, .452), in percent, and a dash for None."""
    return "-" if interval is None else f"[{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table whose columns also stand under each other in a terminal."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return [line(header), line(["-" * width for width in widths]), *(line(row) for row in rows)]


def heads_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return a table of heads, one line each."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
