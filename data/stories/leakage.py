"""What a model could know by heart: how many of a probe's prefixes stand at the start of a training story.

The target is 0. Frames with pairs are kept apart by hash (language.py); what is left are the stories without a
pronoun, which may tell a frame with words that are held out elsewhere, and stop being a prefix at the pronoun at the
latest. One kind of prefix may coincide: before a cataphoric pronoun ("The cat was at home. Before it") only half of
the pair has been mentioned, and nothing is asked there but that no head should link.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any


def leakage(train_rows: Iterable[Mapping[str, Any]], probe_rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the questions whose text up to the query begins a training story.

    Text up to the payoff is longer, so it cannot begin one more often.

    Args:
        train_rows: of the training split.
        probe_rows: of dev or test, with their links.

    Returns:
        For each site the count of each hold-out, {"pronoun": {"headline": 0}}, and over all of them "asked", how many
        questions there are, "total", how many leak, "distinct", how many different prefixes those have, and
        "to_payoff", how many leak up to the word before the payoff too.

    """
    begun = _Beginnings(row["text"] for row in train_rows)
    sites: dict[str, Counter[str]] = defaultdict(Counter)
    asked, to_payoff, leaked = 0, 0, []
    for row in probe_rows:
        for link in row["links"]:
            prefix = row["text"][: link["query"][1]]
            leaks = begun.holds(prefix)
            sites[link["site"]][row["holdout"]] += leaks
            asked += 1
            if leaks:
                leaked.append(prefix)
                to_payoff += bool(link["payoff"]) and begun.holds(row["text"][: link["payoff"][0]].rstrip())
    counts: dict[str, Any] = {site: dict(sorted(some.items())) for site, some in sorted(sites.items())}
    return counts | {"asked": asked, "total": len(leaked), "distinct": len(set(leaked)), "to_payoff": to_payoff}


class _Beginnings:
    """The word-wise beginnings of many texts, found in their sorted list."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._sorted = sorted(set(texts))

    def holds(self, prefix: str) -> bool:
        """Whether a text begins with `prefix` and the next word with the next character.

        Of the texts that begin with `prefix` the first goes on with a space or a mark if any does: they sort before
        letters and digits.
        """
        place = bisect_left(self._sorted, prefix)
        text = self._sorted[place] if place < len(self._sorted) else ""
        return text.startswith(prefix) and not text[len(prefix) : len(prefix) + 1].isalnum()
