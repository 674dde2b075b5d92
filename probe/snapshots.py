"""Attention snapshots during training: every head's weights between the words of the worked examples, step by step.

attention.jsonl holds one object per line: first the header, with step -1, then one snapshot per step.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from data.errors import damaged_file_error
from data.typed_json import from_json
from model.observe import ObservableModel
from probe.sentences import EXAMPLE_BLOCK, TIRED_OR_SOFT, Example, TokenizedText

HISTORY_FILE = "attention.jsonl"
Examples = Sequence[tuple[Example, TokenizedText]]
_VERSION = 3
_HEADER_STEP = -1


@dataclass(frozen=True, slots=True)
class _SnapshotText:
    """A text of which the attention is recorded."""

    text: str
    words: list[str]


@dataclass(frozen=True, slots=True)
class _SnapshotHeader:
    """The first line of attention.jsonl."""

    step: int
    version: int
    n_layer: int
    n_head: int
    texts: list[_SnapshotText]


@dataclass(frozen=True, slots=True)
class _Snapshot:
    step: int
    data: list[str]  # for each text the `pack_weights` of its weights


@dataclass(frozen=True, slots=True)
class SnapshotHistory:
    """The content of attention.jsonl."""

    texts: list[str]
    steps: list[int]
    data: list[list[str]]  # per step the base64 of each text


def choose_examples(
    tokenize: Callable[[str], TokenizedText], unknown_token: int | None, context_length: int
) -> Examples:
    """Return the worked examples, one per text, that fit the context and have no unknown token."""
    by_text = {example.text: example for example in (*EXAMPLE_BLOCK, *TIRED_OR_SOFT)}
    chosen = []
    for text, example in by_text.items():
        tokenized = tokenize(text)
        if len(tokenized.tokens) <= context_length and unknown_token not in tokenized.tokens:
            chosen.append((example, tokenized))
    return chosen


def snapshot_header(texts: Sequence[TokenizedText], model: ObservableModel) -> _SnapshotHeader:
    """Return the first line of attention.jsonl for a model that reads these texts."""
    shown = [_SnapshotText(text.text, text.words) for text in texts]
    return _SnapshotHeader(_HEADER_STEP, _VERSION, model.n_layer, model.n_head, shown)


def load_history(path: Path) -> SnapshotHistory | None:
    """Return the content of attention.jsonl; None if it has no line. UserError if the file is damaged.

    An incomplete last line, as while training runs, is ignored.
    """
    if not path.is_file():
        return None
    with damaged_file_error(path, "delete it to continue without attention snapshots"):
        # The line that training is writing has no end yet.
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not lines:
            return None
        header: _SnapshotHeader = from_json(_SnapshotHeader, lines[0], "header")
        if (header.step, header.version) != (_HEADER_STEP, _VERSION):
            raise ValueError("another version")

        # Row r of each head has the weights on words 0 to r, two bytes each.
        sizes = []
        for text in header.texts:
            n_words = len(text.words)
            sizes.append(header.n_layer * header.n_head * n_words * (n_words + 1))

        # One line per step, in order.
        steps = []
        data = []
        for line in lines[1:]:
            snapshot: _Snapshot = from_json(_Snapshot, line, "snapshot")
            if [len(b64decode(packed, validate=True)) for packed in snapshot.data] != sizes:
                raise ValueError("data of another size")
            steps.append(snapshot.step)
            data.append(snapshot.data)
        if steps != sorted(set(steps) - {_HEADER_STEP}):
            raise ValueError("steps out of order")
    return SnapshotHistory([text.text for text in header.texts], steps, data)
