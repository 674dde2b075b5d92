"""The leakage report: how many probe prefixes are also the beginning of a training story (the target is 0).

Frames and pairs are separated by hash (language.placement), so only two kinds of prefix can
coincide: the beginning of a story without a pronoun, and the text before a cataphoric pronoun ("The
cat was at home. Before it"), which has only one of the two mentions; the only claim about such items
is that no head links them.
"""

from bisect import bisect_left
from collections.abc import Iterable

from data.pairs import LinkedText


def leakage(train_texts: Iterable[str], probe_texts: Iterable[LinkedText]) -> dict[str, int]:
    """Return the number of links, and of those whose text up to the query is the beginning of a training story."""
    sorted_texts = sorted(set(train_texts))
    n_links = n_leaked = 0
    for probe_text in probe_texts:
        for link in probe_text.links:
            n_links += 1
            n_leaked += _starts_a_text(sorted_texts, probe_text.text[: link.query[1]])
    return {"links": n_links, "leaked": n_leaked}


def _starts_a_text(sorted_texts: list[str], prefix: str) -> bool:
    """Return True if a text starts with `prefix` followed by the end of a word."""
    # Spaces and marks sort before letters, so the first text with the prefix is enough.
    position = bisect_left(sorted_texts, prefix)
    text = sorted_texts[position] if position < len(sorted_texts) else ""
    return text.startswith(prefix) and not text[len(prefix) : len(prefix) + 1].isalnum()
