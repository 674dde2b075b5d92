"""What heads do elsewhere: their strong weights in running text, and how many of them are the link of a question.

A head that passes a narrow test may do other things in most texts. So all its weights are looked at, but those on the
start token, where a head rests that has nothing to do, and those of a token on itself.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from data.pairs import Cell
from model.observe import ObservableModel
from probe.batches import text_batches
from probe.outcomes import OUTCOMES
from probe.results import Elsewhere, Finding, Head, Place

STRONG = 0.3  # a convention: a token has three such weights at most
N_PLACES = 10
MAX_TOKENS = 20_000  # that are read; texts between are left out
_BEFORE, _BETWEEN = 3, 12  # tokens around a place that are shown


class Running(NamedTuple):
    """A text as a model reads it, and the link in it, if it has one."""

    tokens: tuple[int, ...]  # the start token first
    question: str = ""  # that the link belongs to
    cell: Cell | None = None


def elsewhere(
    model: ObservableModel,
    texts: Sequence[Running],
    finding: Finding,
    tokens_per_batch: int,
    decode: Callable[[Sequence[int]], str],
) -> Elsewhere | None:
    """Return what the judged heads of a finding do in `texts`, None if they have no strong weight there.

    Of the strongest places each is of another pair of words, so that no pair takes all.
    """
    texts = texts[:: max(1, -(-sum(len(text.tokens) for text in texts) // MAX_TOKENS))]
    n_strong = n_link = 0
    strongest: dict[tuple[int, int], tuple[float, Head, Running, int, int]] = {}  # by the tokens of both places
    for indices, rows, tokens, _ in text_batches([text.tokens for text in texts], tokens_per_batch):
        of_row = dict(zip(rows, indices, strict=True))
        records = dict(zip(model.attention_layers, model.record(tokens.to(model.device)), strict=True))
        for head in finding.judged.heads:
            weights = records[head.layer].weights()[:, head.head].cpu().numpy()  # [B, T, T]
            for row, query, key in np.argwhere(weights >= STRONG).tolist():
                text = texts[of_row[row]]
                if key in (0, query) or query >= len(text.tokens):  # behind a text is padding
                    continue
                n_strong += 1
                n_link += is_link(text, finding, query, key)
                place = float(weights[row, query, key]), head, text, query, key
                pair = text.tokens[query], text.tokens[key]
                strongest[pair] = max(strongest.get(pair, place), place, key=lambda each: each[0])
    if not n_strong:
        return None
    places = []
    for weight, head, text, query, key in sorted(strongest.values(), key=lambda each: -each[0])[:N_PLACES]:
        shown = _in_context(text.tokens, query, key, decode)
        places.append(Place(head, weight, *shown, is_link(text, finding, query, key)))
    n_queries = sum(text.question == finding.question for text in texts)
    return Elsewhere(len(texts), sum(len(text.tokens) for text in texts), n_strong, n_link, n_queries, places)


def is_link(text: Running, finding: Finding, query: int, key: int) -> bool:
    """Return whether a weight is the link of a finding: from the query to the antecedent, or to both entities."""
    if text.cell is None or (text.question, text.cell.query) != (finding.question, query):
        return False
    return any(key in word for word in OUTCOMES[finding.outcome].targets(text.cell))


def _in_context(
    tokens: Sequence[int], query: int, key: int, decode: Callable[[Sequence[int]], str]
) -> tuple[str, str, str]:
    """Return the token that attends, the one that it attends to, and both in their text."""
    between = tokens[key + 1 : query]
    gap = decode(between) if len(between) <= _BETWEEN else "…"
    before = decode(tokens[max(1, key - _BEFORE) : key])
    word, on = decode(tokens[query : query + 1]).strip(), decode(tokens[key : key + 1]).strip()
    return word, on, " ".join(f"{before} [{on}] {gap} [{word}]".split())
