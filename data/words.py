"""Which words a model has seen in training: read back from the tokens it was trained on."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from data.tokenizer import END, UNKNOWN, end_id

MAX_TOKENS = 20_000_000  # read back of a training text: a minute; a word rarer than once in them was hardly learned
_CHUNK = 1 << 18  # tokens decoded at a time
_WORD = re.compile(r"\w+|[^\w\s]+")  # as tokenizers' Whitespace cuts


def training_words(tokenizer: Tokenizer, folder: Path) -> tuple[frozenset[str], str] | None:
    """Return the words of the training text, case counting, and one phrase saying where they were read.

    Args:
        tokenizer: of the run.
        folder: of its corpus in the cache; may be gone.

    Returns:
        None where the words cannot be known: the tokenizer has pieces of words and the cache has no training text.

    """
    vocabulary = tokenizer.get_vocab()
    if json.loads(tokenizer.to_str())["model"]["type"] == "WordLevel":
        words = frozenset(vocabulary) - {END, UNKNOWN}
        if any(len(word) > 1 for word in words):
            return words, "the tokenizer's words"
    path = folder / "train.npy"
    if not path.is_file():
        return None
    tokens = np.load(path, mmap_mode="r")
    known = frozenset(_words(tokenizer, tokens[:MAX_TOKENS]))
    whole = len(tokens) <= MAX_TOKENS
    return known, "the training text" if whole else f"the first {MAX_TOKENS:,} tokens of the training text"


def _words(tokenizer: Tokenizer, tokens: np.ndarray) -> Iterator[str]:
    """Yield words, many of them again and again; one that a chunk's end cuts in two is put together."""
    end, rest = end_id(tokenizer), ""
    for first in range(0, len(tokens), _CHUNK):
        some = np.asarray(tokens[first : first + _CHUNK])
        texts = [part[part != end].tolist() for part in np.split(some, np.flatnonzero(some == end))]
        decoded = tokenizer.decode_batch(texts, skip_special_tokens=False)
        decoded[0] = rest + decoded[0]
        cut = re.search(r"\w*$|[^\w\s]*$", decoded[-1])
        rest = cut.group() if cut else ""
        decoded[-1] = decoded[-1][: len(decoded[-1]) - len(rest)]
        yield from {word for text in decoded for word in _WORD.findall(text)}
    yield from _WORD.findall(rest)
