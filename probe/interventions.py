"""Edits of one attention head, and the answer margins of item pairs under an edit.

Each item is compared with its partner: the same text except for the pronoun or cue, so that the other mention is
the antecedent. Partners are neighbouring rows 2i and 2i + 1 of a batch.

Axes: B texts (always even), T tokens, K head width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data.links import LinkItem
from model.observe import HeadEdit, ObservableModel

NO_TOKEN = -1  # pads rows of token ids


@dataclass(frozen=True, slots=True)
class PairBatch:
    """Items and their partners as one right-padded batch."""

    index: list[int]  # [B] position of each item among the given items
    tokens: Tensor  # [B, T]
    query: Tensor  # [B] position of the pronoun or cue
    payoff: Tensor  # [B] position whose next token the antecedent decides
    mentions: Tensor  # [B, W, T] True on the tokens of each mention, antecedents first
    antecedent: Tensor  # [B, T] True on the tokens of the antecedent
    distractor: Tensor  # [B, T] True on the tokens of the partner's antecedent that are not of this item's
    answers: Tensor  # [B, n] token ids, padded with NO_TOKEN
    foils: Tensor  # [B, n]


def pair_up(items: Sequence[LinkItem]) -> tuple[list[int], int]:
    """Return the indices of the items that have a partner, pair after pair, and the number of pairs dropped.

    Items come in whole blocks, so the partner of item i is item i ^ 1. A pair is dropped if an item has no antecedent
    or no payoff, if query, payoff or length differ, or if the antecedent of one is no mention of the other. A mention
    can be the antecedent of both: a name in the same place.
    """
    indices = []
    for i in range(0, len(items) - 1, 2):
        if _comparable(items[i], items[i + 1]) and _comparable(items[i + 1], items[i]):
            indices += [i, i + 1]
    return indices, (len(items) - len(indices)) // 2


def _comparable(item: LinkItem, partner_item: LinkItem) -> bool:
    places = [(i.block, i.order, i.query, i.payoff, len(i.tokens)) for i in (item, partner_item)]
    has_payoff = item.payoff is not None and item.payoff >= item.query
    is_complete = bool(item.antecedents and item.answers and item.foils)
    antecedents, distractors = set(item.antecedents), set(item.distractors)
    of_partner = set(partner_item.antecedents)
    is_swapped = of_partner <= antecedents | distractors and not of_partner.isdisjoint(distractors)
    return places[0] == places[1] and has_payoff and is_complete and is_swapped


def pair_batches(
    items: Sequence[LinkItem], indices: Sequence[int], tokens_per_batch: int, device: torch.device
) -> Iterator[PairBatch]:
    """Yield the pairs at `indices`, from `pair_up`, in batches of up to `tokens_per_batch` tokens or one pair."""
    pairs = sorted(zip(indices[::2], indices[1::2], strict=True), key=lambda pair: len(items[pair[0]].tokens))
    while pairs:
        n_pairs = max(1, tokens_per_batch // (2 * len(items[pairs[-1][0]].tokens)))
        chosen, pairs = pairs[-n_pairs:], pairs[:-n_pairs]
        yield make_batch(items, [i for pair in chosen for i in pair], device)


def make_batch(items: Sequence[LinkItem], index: list[int], device: torch.device) -> PairBatch:
    """Return the items at `index`, pair after pair, as one batch on `device`."""
    batch = [items[i] for i in index]
    width = max(len(item.tokens) for item in batch)
    tokens = _padded([item.tokens for item in batch], 0)
    query = torch.tensor([item.query for item in batch])
    payoff = torch.tensor([item.payoff or 0 for item in batch])
    words = [item.antecedents + item.distractors for item in batch]
    mentions = torch.zeros(len(batch), max(map(len, words)), width, dtype=torch.bool)
    for row, row_words in enumerate(words):
        for number, word in enumerate(row_words):
            mentions[row, number, list(word)] = True
    antecedent = torch.stack([row[: len(i.antecedents)].any(0) for i, row in zip(batch, mentions, strict=True)])
    tensors = tokens, query, payoff, mentions, antecedent, partner(antecedent) & ~antecedent
    return PairBatch(index, *(tensor.to(device) for tensor in (*tensors, *answer_ids(batch))))


def _padded(rows: list[tuple[int, ...]], padding: int) -> Tensor:
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=padding)


def partner(x: Tensor) -> Tensor:
    """Return `x` [B, ...] with the rows of each pair exchanged."""
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def answer_ids(items: Sequence[LinkItem]) -> tuple[Tensor, Tensor]:
    """Returns the answers and the foils of the items, each [N, n] token ids padded with NO_TOKEN."""
    return _padded([item.answers for item in items], NO_TOKEN), _padded([item.foils for item in items], NO_TOKEN)


def answer_margins(logits: Tensor, answers: Tensor, foils: Tensor) -> Tensor:
    """Returns M [B] = log p(answers) - log p(foils) in nats, from the logits [B, V] at the payoff."""
    sides = []
    for ids in (answers, foils):
        side = logits.gather(1, ids.clamp(min=0)).masked_fill(ids == NO_TOKEN, float("-inf"))
        sides.append(side.logsumexp(-1))
    return sides[0] - sides[1]


def edited_margins(model: ObservableModel, batch: PairBatch, streams: Sequence[Tensor], *edits: HeadEdit) -> Tensor:
    """Returns the margins [B] under some edits; `streams` are the unedited residual streams."""
    return answer_margins(model.logits(batch.tokens, batch.payoff, edits, streams), batch.answers, batch.foils)


def edit_query_row(query: Tensor, layer: int, head: int, change: Callable[[Tensor], Tensor]) -> HeadEdit:
    """Return an edit that applies `change` ([B, T] -> [B, T]) to the head's attention weights at the `query` [B]."""
    rows = torch.arange(len(query), device=query.device)

    def weights(attention: Tensor) -> Tensor:
        edited = attention.clone()
        edited[rows, query] = change(attention[rows, query])
        return edited

    return HeadEdit(layer, head, weights=weights)


def swap_edges(batch: PairBatch, layer: int, head: int) -> HeadEdit:
    """Return the attention swap: antecedent and distractor exchange their weights at the query."""
    return edit_query_row(batch.query, layer, head, lambda row: exchange(row, batch.antecedent, batch.distractor))


def cut_edge(query: Tensor, layer: int, head: int, mask: Tensor) -> HeadEdit:
    """Return the edge ablation: `cut_weights` at the `query` [B]."""
    return edit_query_row(query, layer, head, lambda row: cut_weights(row, mask))


def cut_weights(weights: Tensor, mask: Tensor) -> Tensor:
    """Return the weights [B, T] with those on `mask` [B, T] set to 0 and the others scaled to a sum of 1.

    This equals scores of -inf before the softmax (Geva et al. 2023, "attention knockout").
    """
    remaining = weights.masked_fill(mask, 0)
    return remaining / remaining.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def exchange(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Exchange the total weight of two disjoint sets of tokens; all arguments are [B, T].

    Within each set the new total is distributed in proportion to the old weights, evenly if they are all 0. Applying
    the function twice restores the weights.
    """
    totals, shares = [], []
    for side in (left, right):
        inside = weights.masked_fill(~side, 0)
        total = inside.sum(-1, keepdim=True)
        even = side.float() / side.sum(-1, keepdim=True)
        totals.append(total)
        shares.append(torch.where(total > 0, inside / total.where(total > 0, 1.0), even))
    return weights.masked_fill(left | right, 0) + totals[1] * shares[0] + totals[0] * shares[1]
