"""What carries the answer: heads are tested for what they pass on at the query, wherever they look.

- carries: a head's output at the query changes places with that in the other text of the pair, and the answer follows
  by this share (interchange intervention, Geiger et al. 2021).
- keeps: the outputs of all *other* heads change places; what stays of the answer is kept by these heads and by the word
  at the query, which differs in "It" and "They". A head can be necessary without being enough.
- same answer: the output comes from another pair of the batch with the same answer. What carries only the answer
  changes nothing.
- feeds: an earlier head is removed at one place, and only its effect on the outputs of the carrying heads is kept: the
  share of the answer that is lost (path patching, Wang et al. 2022, with zero in place of other texts).

Heads and feeders are chosen on dev; every number in the result is of other items. Where a head looks is not asked: a
head can read "by", which holds the first noun by then, and carry the whole answer.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product

import numpy as np
import torch
from torch import Tensor

from data.pairs import Cell
from model.edits import cut_weights
from model.observe import HeadEdit, SiteEdit
from probe.config import ProbeConfig
from probe.edits import EDIT_ALL, MAX_CANDIDATES, MIN_GAIN, Batch, EditedPairs, all_heads, alone, grown
from probe.results import Carrier, Feed, Head, Read
from probe.statistics import sample_of

MIN_FEED = 0.05  # share of the answer, the lower end of its interval; our convention, as the number of feeders
MAX_FEEDS = 3
N_WORDS = 3  # of largest mean weight that are cut, besides the mentions
N_READ_PAIRS = 64  # about as many, for what heads read
# The first two are mentions of the question's two nouns. A third noun is another mention, wherever it stands: counted
# by its place, it once made the second mention a different noun in a quarter of the sentences of `verb`.
_MENTIONS = ("the first mention", "the second mention", "another mention")
_DIFFER = "the words that differ"
_QUERY = "the query"
_REST = "all other words"
PLACES = (*_MENTIONS, _DIFFER, _QUERY, _REST)


def find_carrier(
    dev: EditedPairs, tested: EditedPairs, config: ProbeConfig, decode: Callable[[int], str]
) -> Carrier | None:
    """Return a set of heads, grown one by one, that carries the answer, which the model must know; None if none does.

    `decode` gives the text of a token.
    """
    heads = all_heads(tested.model)
    if not dev.items.pairs:
        return None
    steps = grown(partial(dev.exchanged, edit="carries"), heads, least_gain=MIN_GAIN, most=MAX_CANDIDATES)
    chosen = [head for head, _ in steps]
    if not chosen:
        return None

    # What all of them carry and keep together, and what each carries
    others = [head for head in heads if head not in chosen]
    moved, total = tested.exchanged([chosen, others, *alone(chosen)], "carries")
    moved[:, 1] = total - moved[:, 1]  # what the others do not move is kept
    carries, keeps, *each = sample_of(tested.items, moved).ratios(total, config)
    values = {"carries": carries, "keeps": keeps}

    # Pairs whose answers no other pair of their batch has are left out of the control.
    moved, _ = tested.exchanged([chosen], "same_answer")
    known = np.flatnonzero(np.isfinite(moved[:, 0]))
    if known.size:
        [values["same_answer"]] = sample_of(tested.items.take(known), moved[known]).ratios(total[known], config)
    some = EditedPairs(tested.model, tested.items.some(N_READ_PAIRS), tested.tokens_per_batch)
    reads = [words_read(some, head, decode) for head in chosen]
    return Carrier(heads=chosen, values=values, each=each, reads=reads, feeds=_feeds(dev, tested, chosen, config))


@torch.no_grad()
def words_read(pairs: EditedPairs, head: Head, decode: Callable[[int], str]) -> list[Read]:
    """Return what a head reads at the query: both mentions and the words of most weight, by what a cut takes away.

    Weight alone does not say it: a head that carries the answer from a noun can have more weight on every "the".
    """
    meant = pairs.model.vocab_size  # mentions have the numbers after those of all tokens
    other = meant + 1

    def words_of(batch: Batch) -> Tensor:
        return batch.tokens.masked_fill(batch.masks["meant"], meant).masked_fill(batch.masks["other"], other)

    of_words = torch.zeros(other + 1, dtype=torch.double)
    for batch, site_pass in pairs.passes():
        row = site_pass.records()[head.layer].weights[:, head.head].double()  # [B, T]
        of_words += torch.bincount(words_of(batch).flatten(), row.flatten(), len(of_words)).cpu()
    largest = of_words[:meant].topk(min(N_WORDS, meant)).indices.tolist()
    words = [meant, other, *largest]
    weights = of_words[words] / (2 * len(pairs.items))

    def cuts(batch: Batch) -> list[list[SiteEdit]]:
        masks = [words_of(batch) == word for word in words]
        return [[SiteEdit(*head, weights=partial(cut_weights, mask=mask))] for mask in masks]

    lost = (pairs.clean - pairs.edited(cuts)).mean((1, 2)) / pairs.clean.sum(axis=1).mean()
    labels = ["the antecedent", "the other mention", *(f"“{decode(word)}”" for word in largest)]
    reads = map(Read, labels, weights.tolist(), lost.tolist())
    return sorted(reads, key=lambda read: -read.lost)


def _feeds(dev: EditedPairs, tested: EditedPairs, chosen: Sequence[Head], config: ProbeConfig) -> list[Feed]:
    """Return which earlier heads, at which place, make what the `chosen` ones pass on; none in models of many heads."""
    last = max(head.layer for head in chosen)
    earlier = [head for head in all_heads(dev.model) if head.layer < last and head not in chosen]
    if not earlier or len(earlier) > EDIT_ALL:
        return []
    places = list(product(earlier, PLACES))
    lost = _lost_by_feeders(dev, places, chosen).mean(axis=0)
    largest = np.argsort(-lost, kind="stable")[:MAX_FEEDS]
    largest_places = [places[i] for i in largest]
    of_tested = _lost_by_feeders(tested, largest_places, chosen)
    shares = sample_of(tested.items, of_tested).ratios(tested.clean.sum(axis=1), config)
    feeds = []
    for (head, place), share in zip(largest_places, shares, strict=True):
        if (share.low or 0.0) > MIN_FEED:
            feeds.append(Feed(head, place, share))
    return feeds


@torch.no_grad()
def _lost_by_feeders(pairs: EditedPairs, places: Sequence[tuple[Head, str]], chosen: Sequence[Head]) -> np.ndarray:
    """Return what each earlier head at one place feeds into the margin through the `chosen` heads, [N, places]."""

    def without_feeders(batch: Batch) -> list[list[SiteEdit]]:
        """Return for each place the edits that replace the outputs of the chosen heads by those without the feeder."""
        streams = pairs.model.residual_stream(batch.tokens)
        masks = _place_masks(pairs.items.take(batch.pairs).cells, batch.tokens)
        lists = []
        for feeder, place in places:
            outputs: dict[Head, Tensor] = {}
            edits = [HeadEdit(*feeder, output=partial(torch.Tensor.masked_fill, mask=masks[place][..., None], value=0))]
            edits += [SiteEdit(*head, output=partial(outputs.setdefault, head)).at(batch.query) for head in chosen]
            pairs.model.logits(batch.tokens, batch.payoff, edits, streams)
            lists.append([SiteEdit(*head, output=outputs[head].type_as) for head in chosen])
        return lists

    lost: np.ndarray = (pairs.clean - pairs.edited(without_feeders)).mean(axis=2).T
    return lost


def _place_masks(cells: Sequence[Cell], tokens: Tensor) -> dict[str, Tensor]:
    """Return the tokens [B, T] of each of PLACES; every token before the query but the start token is of one."""
    places = np.full(tokens.shape, "", dtype=object)
    for row, cell in enumerate(cells):
        counterpart = cells[row ^ 1].tokens
        for place in range(1, cell.query):
            places[row, place] = _REST if cell.tokens[place] in counterpart else _DIFFER
        mentions = [*sorted(cell.meant + cell.other), *cell.bystanders]
        for number, word in enumerate(mentions):
            places[row, list(word)] = _MENTIONS[min(number, 2)]
        places[row, cell.query] = _QUERY
    return {name: torch.from_numpy(places == name).to(tokens.device) for name in PLACES}
