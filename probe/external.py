"""What the external test sets share: the evaluated model, reading of test files, vocabulary coverage, and tables."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.links import Span
from data.text import text_files
from data.words import words_of
from model.observe import ObservableModel
from probe.config import ProbeConfig


@dataclass(frozen=True)
class EvaluatedModel:
    """A trained model with its tokenizer and the vocabulary of its training text."""

    model: ObservableModel
    encode: Callable[[str], tuple[list[int], list[Span]]]  # text -> token ids, character spans; no start token
    start_token: int  # precedes every text
    unknown_token: int | None  # id of <|unknown|>; None if the tokenizer can write any text
    training_words: frozenset[str] | None  # None: not known
    training_words_source: str  # where they were read, or why they are not known
    config: ProbeConfig


@dataclass(frozen=True)
class Report:
    """The result of one test set."""

    results: dict[str, Any]  # for <task>.json
    lines: list[str]  # Markdown, printed and written to <task>.md


def find_files(path: str, endings: Sequence[str]) -> list[Path]:
    """Returns the files of `text_files` that have one of these endings; FileNotFoundError if there are none."""
    files = [file for file in text_files(path, "path") if file.suffix in endings]
    if not files:
        raise FileNotFoundError(f"path={path}: no {' or '.join(endings)} file there")
    return files


def read_lines(file: Path) -> dict[str, str]:
    """Return the non-blank lines by "FILE line N"; ValueError if there are none or the text is not UTF-8."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    lines = {f"{file} line {number}": line for number, line in enumerate(text.split("\n"), 1) if line.strip()}
    if not lines:
        raise ValueError(f"{file}: no text in it")
    return lines


def read_objects(file: Path, fields: Mapping[str, type]) -> dict[str, dict[str, Any]]:
    """Return the object of each line of a .jsonl file by "FILE line N"; ValueError if a field is missing or wrong."""
    objects = {}
    for where, line in read_lines(file).items():
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON ({error})") from None
        for name, kind in fields.items():
            if not isinstance(value, dict) or type(value.get(name)) is not kind:
                raise ValueError(f"{where}: no field {name} of type {kind.__name__}")
        objects[where] = value
    return objects


def is_covered(evaluated: EvaluatedModel, text: str) -> bool:
    """Return True unless a word of `text` is known to be absent from training or cannot be tokenized."""
    if evaluated.unknown_token is not None and evaluated.unknown_token in evaluated.encode(text)[0]:
        return False
    return evaluated.training_words is None or all(word in evaluated.training_words for word in words_of(text))


def coverage(evaluated: EvaluatedModel, texts: Sequence[str]) -> dict[str, Any]:
    """Return n_words and the shares of words (seen_words) and of distinct words (seen_types) in the training text.

    Both are None if the training text is not known. unknown_tokens is the share of <|unknown|> among the tokens.
    """
    words = [word for text in texts for word in words_of(text)]
    tokens = [token for text in texts for token in evaluated.encode(text)[0]]
    types, vocabulary = set(words), evaluated.training_words
    return {
        "n_words": len(words),
        "seen_words": None if vocabulary is None else sum(word in vocabulary for word in words) / max(1, len(words)),
        "seen_types": None if vocabulary is None else len(types & vocabulary) / max(1, len(types)),
        "unknown_tokens": sum(token == evaluated.unknown_token for token in tokens) / max(1, len(tokens)),
    }


def coverage_line(evaluated: EvaluatedModel, measured: dict[str, Any], subject: str) -> str:
    """Return the coverage of `subject` as one line."""
    share_seen = f"share seen in training unknown ({evaluated.training_words_source})"
    if measured["seen_words"] is not None:
        shares = f"{percent(measured['seen_words'])} % ({percent(measured['seen_types'])} % of the distinct ones)"
        share_seen = f"{shares} are in {evaluated.training_words_source}"
    unknown = percent(measured["unknown_tokens"])
    return f"coverage of {subject}: {measured['n_words']:,} words, {share_seen}, {unknown} % unknown tokens"


def percent(share: float | None) -> str:
    """Return 43.1 for .431 and a dash for None."""
    return "-" if share is None else f"{100 * share:.1f}"


def percent_interval(interval: Sequence[float] | None) -> str:
    """Return [41.0, 45.2] for (.41, .452) and a dash for None."""
    return "-" if interval is None else f"[{percent(interval[0])}, {percent(interval[1])}]"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table with aligned columns."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    table = [header, ["-" * width for width in widths], *rows]
    return ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in table]
