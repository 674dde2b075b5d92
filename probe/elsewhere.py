"""What heads do elsewhere: their strong weights in many texts, and how many of them are the link of a question.

A head that passes a narrow test may do other things in most texts, so all its strong weights are counted. Weights on
the start token are left out, as heads put weight there that have nothing to do, and those of a token on itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from data.pairs import Cell, Items
from model.observe import ObservableModel
from probe.batches import text_batches
from probe.outcomes import OUTCOMES
from probe.results import Elsewhere, Finding, Head, Place

STRONG = 0.3  # a convention: a token has three such weights at most
N_PLACES = 10
MAX_TOKENS = 20_000  # that are read, of texts drawn at random
_BEFORE, _BETWEEN = 3, 12  # tokens around a place that are shown


class Running(NamedTuple):
    """A text as a model reads it, and the link in it, if it has one."""

    tokens: tuple[int, ...]  # the start token first
    question: str = ""  # that the link belongs to
    cell: Cell | None = None


@dataclass(frozen=True)
class RunningTexts:
    """Different texts in which it is seen what heads do elsewhere."""

    name: str  # "the validation stories"
    texts: list[Running]

    def sample(self) -> list[Running]:
        """Return the texts, in a random order that is always the same, as far as MAX_TOKENS go."""
        order = np.random.default_rng(0).permutation(len(self.texts))  # blocks of four would alias with a step
        n_tokens = np.cumsum([len(self.texts[i].tokens) for i in order])
        return [self.texts[i] for i in order[n_tokens <= MAX_TOKENS]]


def item_texts(items: Items) -> RunningTexts:
    """Return the texts of items up to the query: later words may have links that the items do not name."""
    found: dict[tuple[int, ...], Running] = {}
    for pair in items.pairs:
        for cell in pair.cells[: 2 if items.has_blocks else 1]:  # the counterpart of a passage is not the author's
            tokens = cell.tokens[: cell.query + 1]
            found[tokens] = Running(tokens, pair.question, cell)
    return RunningTexts("the tested texts up to the word that is read", list(found.values()))


def elsewhere(
    model: ObservableModel,
    running: RunningTexts,
    finding: Finding,
    tokens_per_batch: int,
    decode: Callable[[Sequence[int]], str],
) -> Elsewhere | None:
    """Return what the judged heads of a finding do in texts; None if these have no link of it, or no strong weight.

    The strongest places are of different pairs of words: one frequent pair would take all ten.
    """
    texts = running.sample()
    n_queries = sum(text.question == finding.question for text in texts)
    links: list[bool] = []  # for each strong weight, whether it is the link of the finding
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
                links.append(link_of(text, finding, query, key) == finding.question)
                place = float(weights[row, query, key]), head, text, query, key
                pair = text.tokens[query], text.tokens[key]
                strongest[pair] = max(strongest.get(pair, place), place, key=lambda each: each[0])
    if not (links and n_queries):
        return None
    places = []
    for weight, head, text, query, key in sorted(strongest.values(), key=lambda each: -each[0])[:N_PLACES]:
        shown = in_context(text.tokens, query, key, decode)
        places.append(Place(head, weight, *shown, link_of(text, finding, query, key)))
    n_tokens = sum(len(text.tokens) for text in texts)
    return Elsewhere(running.name, len(texts), n_tokens, len(links), sum(links), n_queries, places)


def link_of(text: Running, finding: Finding, query: int, key: int) -> str:
    """Return the question whose link a weight is, "" if it is none: on a word that the finding's outcome looks for."""
    if text.cell is None or text.cell.query != query:
        return ""
    return text.question if any(key in word for word in OUTCOMES[finding.outcome].targets(text.cell)) else ""


def in_context(
    tokens: Sequence[int], query: int, key: int, decode: Callable[[Sequence[int]], str]
) -> tuple[str, str, str]:
    """Return the token that attends, the one that it attends to, and both in their text."""
    first = max(1, key - _BEFORE)

    def piece(start: int, end: int) -> str:
        return decode(tokens[first:end])[len(decode(tokens[first:start])) :]

    def marked(place: int) -> str:
        text = piece(place, place + 1)
        return text.replace(text.strip(), f"[{text.strip()}]") if text.strip() else "[↵]"

    gap = piece(key + 1, query) if query - key <= _BETWEEN else " …"
    text = piece(first, key) + marked(key) + gap + marked(query)
    return piece(query, query + 1).strip(), piece(key, key + 1).strip(), " ".join(text.split())
