"""What the external test sets share: the evaluated model, reading of test files, vocabulary coverage, and tables."""

import glob
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.links import Span
from model.observe import ObservableModel
from probe.config import ProbeConfig

_WORD = re.compile(r"\w+|[^\w\s]+")
_TYPE_NAMES = {str: "a text", int: "a whole number", list: "a list"}


@dataclass(frozen=True)
class EvaluatedModel:
    """A trained model with its tokenizer and the vocabulary of its training text."""

    model: ObservableModel
    encode: Callable[[str], tuple[list[int], list[Span]]]  # text -> token ids, character spans; no start token
    start_token: int  # precedes every text
    unknown_token: int | None  # id of <|unknown|>; None if the tokenizer can write any text
    training_words: frozenset[str] | None  # None: not known
    training_words_source: str  # where they were read, or why they are not known
    untrained: Callable[[int], ObservableModel]  # number -> a randomly initialised model of the same shape
    config: ProbeConfig

    @property
    def max_tokens(self) -> int:
        """Longest text in tokens that fits behind the start token."""
        return self.model.context_length - 1


@dataclass(frozen=True)
class Report:
    """The result of one test set."""

    results: dict[str, Any]  # for <task>.json
    lines: list[str]  # Markdown, printed and written to <task>.md


def find_files(path: str, endings: Sequence[str]) -> list[Path]:
    """Return the files of a path, folder or glob, or of several separated by commas.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: a file has another ending or is not a regular file.

    """
    files: list[Path] = []
    for name in path.split(","):
        location = Path(name.strip()).expanduser()
        if location.is_dir():
            matches = sorted(file for file in location.iterdir() if file.suffix in endings)
        else:
            matches = [location] if location.exists() else sorted(Path(match) for match in glob.glob(str(location)))
        if not name.strip() or not matches:
            raise FileNotFoundError(f"path={name.strip()}: no {' or '.join(endings)} file there")
        files += matches
    for file in files:
        if file.suffix not in endings:
            raise ValueError(f"path={file}: this task reads {', '.join(endings)}")
        if not file.is_file():  # opening a named pipe would block
            raise ValueError(f"path={file}: not a regular file")
    return list(dict.fromkeys(files))


def read_lines(file: Path) -> list[tuple[int, str]]:
    """Return (line number, line) of the non-blank lines; ValueError if there are none or the text is not UTF-8."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise ValueError(f"{file}: no text in it")
    return lines


def read_objects(file: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return ("FILE line N", object) of each line of a .jsonl file; ValueError names the line that is not an object."""
    objects = []
    for number, line in read_lines(file):
        where = f"{file} line {number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON ({error})") from None
        if not isinstance(value, dict):
            raise ValueError(f"{where}: not a JSON object")
        objects.append((where, value))
    return objects


def field(value: dict[str, Any], name: str, kind: type, where: str) -> Any:
    """Return value[name]; ValueError starting with `where` if it is missing or not of type `kind`."""
    if name not in value:
        raise ValueError(f"{where}: no field {name}")
    if not isinstance(value[name], kind) or isinstance(value[name], bool):
        raise ValueError(f"{where}: {name} is not {_TYPE_NAMES[kind]}")
    return value[name]


def words_of(text: str) -> list[str]:
    """Return the words and punctuation marks of `text`, split as the training text is."""
    return _WORD.findall(text)


def is_covered(evaluated: EvaluatedModel, text: str) -> bool:
    """Return True unless a word of `text` is known to be absent from training or cannot be tokenized."""
    if evaluated.unknown_token is not None and evaluated.unknown_token in evaluated.encode(text)[0]:
        return False
    return evaluated.training_words is None or all(word in evaluated.training_words for word in words_of(text))


def coverage(evaluated: EvaluatedModel, texts: Sequence[str]) -> dict[str, Any]:
    """Return how much of `texts` the model's vocabulary covers.

    Returns:
        n_words; seen_words and seen_types, the shares of running and of distinct words that the training text
        contains (None if it is not known); unknown_tokens, the share of <|unknown|> among the tokens.

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
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in [header, ["-" * width for width in widths], *rows]
    ]
    return lines
