"""The leakage report: how many probe prefixes are also the beginning of a training story (the target is 0).

Frames and pairs are separated by hash (language.placement), so only two kinds of prefix can coincide: the beginning of
a story without a pronoun, and the text before a cataphoric pronoun ("The cat was at home. Before it"), which has only
one of the two mentions; the only claim about such items is that no head links them.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any


def leakage(train_rows: Iterable[Mapping[str, Any]], probe_rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the links whose text up to the query is the beginning of a training story.

    Args:
        train_rows: rows of the training split.
        probe_rows: rows of dev or test, with their links.

    Returns:
        {site: {hold-out: count}}, and over all links "links" (their number), "total" (leaked links), "distinct"
        (different leaked prefixes) and "to_payoff" (links leaked up to the word before the payoff).

    """
    texts = sorted({row["text"] for row in train_rows})
    sites: dict[str, Counter[str]] = defaultdict(Counter)
    n_links, to_payoff, leaked = 0, 0, []
    for row in probe_rows:
        for link in row["links"]:
            prefix = row["text"][: link["query"][1]]
            is_leaked = _starts_a_text(texts, prefix)
            sites[link["site"]][row["holdout"]] += is_leaked
            n_links += 1
            if is_leaked:
                leaked.append(prefix)
                payoff = link["payoff"]
                to_payoff += bool(payoff) and _starts_a_text(texts, row["text"][: payoff[0]].rstrip())
    counts: dict[str, Any] = {site: dict(sorted(holdouts.items())) for site, holdouts in sorted(sites.items())}
    return counts | {"links": n_links, "total": len(leaked), "distinct": len(set(leaked)), "to_payoff": to_payoff}


def _starts_a_text(sorted_texts: list[str], prefix: str) -> bool:
    """Return True if a text starts with `prefix` followed by the end of a word.

    Spaces and punctuation sort before letters, so looking at the first text that starts with `prefix` is enough.
    """
    position = bisect_left(sorted_texts, prefix)
    text = sorted_texts[position] if position < len(sorted_texts) else ""
    return text.startswith(prefix) and not text[len(prefix) : len(prefix) + 1].isalnum()
