"""Any text: how many bits a byte of it costs this model, so that models of different tokenizers can be compared."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from probe.subject import Coverage, Report, Subject, coverage_line, markdown_table, percent, words_of
from training.evaluate import row_losses


def measure_file(subject: Subject, file: str, pieces: Iterable[tuple[str, bool]]) -> dict[str, Any]:
    """Return the loss of a whole file, the END standing before each document.

    The windows are those of a validation split: every token is predicted once, but the very first END.

    Args:
        subject: the model.
        file: its name.
        pieces: (text, whether it begins a document) in order.

    """
    ids: list[int] = []
    n_bytes = n_words = n_seen = 0
    types: set[str] = set()
    comes_back = True
    for piece, begins in pieces:
        ids += [subject.end] if begins else []
        own = subject.encode(piece)[0]
        ids += own
        comes_back = comes_back and subject.decode(own) == piece
        n_bytes += len(piece.encode())
        words = words_of(piece)
        n_words += len(words)
        n_seen += sum(word in subject.known for word in words) if subject.known is not None else 0
        types.update(words)
    tokens = np.array(ids)
    if len(tokens) < 2:
        raise ValueError(f"{file} holds no text")
    parts = ((read, targets, None, None) for read, targets in subject.windows(tokens, n_bytes))
    rows = row_losses(subject.model, parts, 1)
    nats, n = float(rows.losses.sum()), int(rows.counts.sum())
    known = subject.known
    coverage = Coverage(
        n_words,
        len(types),
        None if known is None else n_seen / max(1, n_words),
        None if known is None else len(types & known) / max(1, len(types)),
        float((tokens == subject.unknown).mean()) if subject.unknown is not None else 0.0,
    )
    return {
        "file": file,
        "n_bytes": n_bytes,
        "n_tokens": n,
        "nats_per_token": nats / n,
        "bits_per_byte": nats / math.log(2) / n_bytes,
        "comes_back": comes_back,
        "coverage": asdict(coverage),
    }


def measure_text(subject: Subject, path: str) -> Report:
    """Measure every file meant by `path`."""
    results = [measure_file(subject, file, pieces) for file, pieces in subject.texts(path)]
    lines = [coverage_line(subject, Coverage(**one["coverage"]), Path(one["file"]).name) for one in results]
    return Report(
        {"files": results}, [*lines, "", *_table(results), "", *_notes(results, subject.decode([subject.end]))], []
    )


def _table(results: Sequence[dict[str, Any]]) -> list[str]:
    header = ["file", "bytes", "tokens", "bits/byte", "nats/token", "bytes/token", "unknown tokens %"]
    rows = [
        [
            Path(one["file"]).name,
            f"{one['n_bytes']:,}",
            f"{one['n_tokens']:,}",
            f"{one['bits_per_byte']:.4f}",
            f"{one['nats_per_token']:.4f}",
            f"{one['n_bytes'] / one['n_tokens']:.2f}",
            percent(one["coverage"]["unknown_tokens"]),
        ]
        for one in results
    ]
    return markdown_table(header, rows)


def _notes(results: Sequence[dict[str, Any]], begin: str) -> list[str]:
    lines = [f"read in windows of the context's length that do not overlap, {begin} before each document"]
    if not all(one["comes_back"] for one in results):
        lines.append(
            "this tokenizer does not give the text back as it was (unknown words, spaces): what it leaves out is not "
            "predicted, so bits/byte is too low and flatters this model"
        )
    return lines
