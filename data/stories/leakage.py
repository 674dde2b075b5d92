"""The leakage report: how many probe prefixes are also the beginning of a training story (the target is 0).

Frames and pairs are separated by hash (language.placement), so only the beginning of a story without
a pronoun can coincide.
"""

from bisect import bisect_left
from collections.abc import Iterable

from data.pairs import LinkedText


def leakage(train_texts: Iterable[str], probe_texts: Iterable[LinkedText]) -> dict[str, int]:
    """Return the number of links, and of those whose text up to the query is the beginning of a training story."""
    sorted_texts = sorted(set(train_texts))
    prefixes = [probe_text.text[: link.query[1]] for probe_text in probe_texts for link in probe_text.links]
    n_leaked = 0
    for prefix in prefixes:
        # Spaces and marks sort before letters, so the first text with the prefix is enough.
        position = bisect_left(sorted_texts, prefix)
        text = sorted_texts[position] if position < len(sorted_texts) else ""
        n_leaked += text.startswith(prefix) and not text[len(prefix) : len(prefix) + 1].isalnum()
    return {"links": len(prefixes), "leaked": n_leaked}
