"""The leakage report: how many probe prefixes are also the beginning of a training story (the target is 0).

Frames and pairs are separated by hash (language.placement), so only two kinds of prefix can coincide: the beginning of
a story without a pronoun, and the text before a cataphoric pronoun ("The cat was at home. Before it"), which has only
one of the two mentions; the only claim about such items is that no head links them.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any


def leakage(train_rows: Iterable[Mapping[str, Any]], probe_rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Returns the number of links, and of those whose text up to the query is the beginning of a training story."""
    texts = sorted({row["text"] for row in train_rows})
    prefixes = [row["text"][: link["query"][1]] for row in probe_rows for link in row["links"]]
    return {"links": len(prefixes), "leaked": sum(_starts_a_text(texts, prefix) for prefix in prefixes)}


def _starts_a_text(sorted_texts: list[str], prefix: str) -> bool:
    """Returns True if a text starts with `prefix` followed by the end of a word.

    Spaces and punctuation sort before letters, so looking at the first text that starts with `prefix` is enough.
    """
    position = bisect_left(sorted_texts, prefix)
    text = sorted_texts[position] if position < len(sorted_texts) else ""
    return text.startswith(prefix) and not text[len(prefix) : len(prefix) + 1].isalnum()
