"""Attention snapshots during training: every head's weights between the words of the worked examples, step by step.

attention.jsonl holds one object per line: first {"step": -1, "version", "n_layer", "n_head", "texts": [{"text",
"words"}]}, then per step {"step", "data": [for each text `pack_weights` of its weights]}.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from model.observe import ObservableModel
from probe.sentences import EXAMPLE_BLOCK, TIRED_OR_SOFT, Example, TokenizedText

HISTORY_FILE = "attention.jsonl"
_VERSION = 3
Examples = Sequence[tuple[Example, TokenizedText]]


def choose_examples(
    tokenize: Callable[[str], TokenizedText], unknown_token: int | None, context_length: int
) -> list[tuple[Example, TokenizedText]]:
    """Return the worked examples, one per text, that fit the context and have no unknown token."""
    by_text = {example.text: example for example in (*EXAMPLE_BLOCK, *TIRED_OR_SOFT)}
    tokenized = [(example, tokenize(text)) for text, example in by_text.items()]
    return [
        (example, text)
        for example, text in tokenized
        if len(text.tokens) <= context_length and unknown_token not in text.tokens
    ]


def header(examples: Examples, model: ObservableModel) -> dict[str, Any]:
    """Return the first line of attention.jsonl, without its step."""
    texts = [{"text": text.text, "words": text.words} for _, text in examples]
    return {"version": _VERSION, "n_layer": model.n_layer, "n_head": model.n_head, "texts": texts}


def read_history(path: Path) -> dict[str, Any] | None:
    """Read attention.jsonl as {"texts", "steps", "data": per step the base64 of each text}; None if it has no line.

    An incomplete last line, as while training runs, is ignored. Raises ValueError if the file is damaged.
    """
    if not path.is_file():
        return None
    try:
        lines = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        if not lines:
            return None
        first, *snapshots = lines
        sizes = [_n_bytes(first, text) for text in first["texts"]]
        steps = [snapshot["step"] for snapshot in snapshots]
        is_valid = (
            (first["step"], first["version"]) == (-1, _VERSION)
            and all(type(step) is int for step in steps)
            and steps == sorted(set(steps) - {-1})
            and all([len(b64decode(d, validate=True)) for d in snapshot["data"]] == sizes for snapshot in snapshots)
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise ValueError(f"{path}: damaged; delete it to continue without attention snapshots")
    return {"texts": first["texts"], "steps": steps, "data": [snapshot["data"] for snapshot in snapshots]}


def _n_bytes(first: dict[str, Any], text: dict[str, Any]) -> int:
    """Return how many bytes one step stores of a text; TypeError if its words are not strings."""
    words = text["words"]
    if not all(isinstance(word, str) for word in (text["text"], *words)):
        raise TypeError("words must be strings")
    return int(first["n_layer"] * first["n_head"] * len(words) * (len(words) + 1))
