"""Edits of one attention head, and the answer margins of item pairs under an edit.

Each item is compared with its partner: the same text except for the pronoun or cue, so that the other mention is
the antecedent. Partners are neighbouring rows 2i and 2i + 1 of a batch.

Axes: B texts (always even), T tokens, K head width.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from data.errors import UserError
from data.links import LinkItem
from model.observe import HeadEdit, ObservableModel
from probe.batches import length_batches, pad_rows, with_bar

NO_TOKEN = -1  # pads rows of token ids
PASS_ERROR = 1e-5  # nats; the margins of two float32 passes that should agree differ by up to this much


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


def pair_up(items: Sequence[LinkItem]) -> tuple[list[LinkItem], int]:
    """Return the items that have a partner, pair after pair, and the number of pairs dropped.

    Items come in whole blocks, so the partner of item i is item i ^ 1. A pair is dropped if an item has no antecedent
    or no payoff, if query, payoff or length differ, or if the antecedent of one is no mention of the other. A mention
    can be the antecedent of both: a name in the same place.
    """
    pairs: list[LinkItem] = []
    for first, second in zip(items[::2], items[1::2], strict=False):
        if _is_comparable(first, second) and _is_comparable(second, first):
            pairs += [first, second]
    return pairs, (len(items) - len(pairs)) // 2


def _is_comparable(item: LinkItem, other: LinkItem) -> bool:
    """Return whether `item` has all it needs, and another antecedent than its partner in the same place."""
    is_complete = bool(item.antecedents and item.answers and item.foils)
    has_payoff = item.payoff is not None and item.payoff >= item.query
    is_same_block = (item.block, item.order) == (other.block, other.order)
    is_same_place = (item.query, item.payoff, len(item.tokens)) == (other.query, other.payoff, len(other.tokens))

    # The partner means mentions of this item, at least one of them a distractor.
    mentions = set(item.antecedents + item.distractors)
    meant_by_other = set(other.antecedents)
    is_swapped = meant_by_other <= mentions and not meant_by_other.isdisjoint(item.distractors)
    return is_complete and has_payoff and is_same_block and is_same_place and is_swapped


def measure_pairs(
    model: ObservableModel,
    items: Sequence[LinkItem],
    tokens_per_batch: int,
    measure: Callable[[PairBatch, list[Tensor]], dict[str, Tensor]],
    *,
    has_bar: bool = True,
) -> dict[str, np.ndarray]:
    """Return the results [N, ...] of `measure` in the order of the items, which are pairs as from `pair_up`.

    It is called with a batch and the unedited residual streams of its texts. `has_bar` False: it has a bar of its own.
    """
    # The measurements, batch by batch; only the numbers stay in memory.
    index: list[int] = []
    results: list[dict[str, np.ndarray]] = []
    for batch in _pair_batches(items, tokens_per_batch, model.device, has_bar=has_bar):
        measured = measure(batch, model.residual_stream(batch.tokens))
        index += batch.index
        results.append({name: values.double().cpu().numpy() for name, values in measured.items()})

    # The batches go by length: back to the order of the items.
    order = np.argsort(index)
    joined = {}
    for name in results[0]:
        joined[name] = np.concatenate([result[name] for result in results])[order]
    return joined


def _pair_batches(
    items: Sequence[LinkItem], tokens_per_batch: int, device: torch.device, *, has_bar: bool
) -> Iterator[PairBatch]:
    """Yield items, pair after pair, in batches of up to `tokens_per_batch` tokens or one pair."""
    lengths = [len(item.tokens) for item in items[::2]]
    batches = length_batches(lengths, tokens_per_batch, n_texts=2)
    for pairs in with_bar(batches, len(lengths)) if has_bar else batches:
        index: list[int] = []
        for pair in pairs:
            index += [2 * pair, 2 * pair + 1]
        yield _make_batch(items, index, device)


def _make_batch(items: Sequence[LinkItem], index: list[int], device: torch.device) -> PairBatch:
    """Return the items at `index`, pair after pair, as one batch on `device`."""
    batch = [items[i] for i in index]
    tokens = pad_rows([item.tokens for item in batch])  # [B, T]
    query = torch.tensor([item.query for item in batch])
    payoff = torch.tensor([item.payoff or 0 for item in batch])

    # The tokens of every mention, and of the antecedents together.
    n_words = max(len(item.antecedents + item.distractors) for item in batch)
    mentions = torch.zeros(len(batch), n_words, tokens.shape[1], dtype=torch.bool)
    antecedent = torch.zeros_like(tokens, dtype=torch.bool)
    for row, item in enumerate(batch):
        for number, word in enumerate(item.antecedents + item.distractors):
            mentions[row, number, list(word)] = True
        antecedent[row] = mentions[row, : len(item.antecedents)].any(0)
    distractor = partner(antecedent) & ~antecedent

    tensors = [tokens, query, payoff, mentions, antecedent, distractor, *answer_ids(batch)]
    return PairBatch(index, *(tensor.to(device) for tensor in tensors))


def partner(x: Tensor) -> Tensor:
    """Return `x` [B, ...] with the rows of each pair exchanged."""
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def answer_ids(items: Sequence[LinkItem]) -> tuple[Tensor, Tensor]:
    """Return the answers and the foils of the items, each [N, n] token ids padded with NO_TOKEN."""
    answers = [item.answers for item in items]
    foils = [item.foils for item in items]
    return pad_rows(answers, NO_TOKEN), pad_rows(foils, NO_TOKEN)


def answer_margins(logits: Tensor, answers: Tensor, foils: Tensor) -> Tensor:
    """Return M [B] = log p(answers) - log p(foils) in nats, from the logits [B, V] at the payoff."""
    sides = []
    for ids in (answers, foils):
        side = logits.gather(1, ids.clamp(min=0)).masked_fill(ids == NO_TOKEN, float("-inf"))
        sides.append(side.logsumexp(-1))
    return sides[0] - sides[1]


def edited_margins(model: ObservableModel, batch: PairBatch, streams: Sequence[Tensor], *edits: HeadEdit) -> Tensor:
    """Return the margins [B] under some edits; `streams` are the unedited residual streams."""
    logits = model.logits(batch.tokens, batch.payoff, edits, streams)
    return answer_margins(logits, batch.answers, batch.foils)


def edit_query_row(query: Tensor, layer: int, head: int, change: Callable[[Tensor], Tensor]) -> HeadEdit:
    """Return an edit that applies `change` ([B, T] -> [B, T]) to the head's attention weights at the `query` [B]."""
    rows = torch.arange(len(query), device=query.device)

    def weights(attention: Tensor) -> Tensor:
        edited = attention.clone()
        edited[rows, query] = change(attention[rows, query])
        return edited

    return HeadEdit(layer, head, weights=weights)


def remove_head(layer: int, head: int) -> HeadEdit:
    """Return the edit that sets the output of a head to 0 at every token."""
    return HeadEdit(layer, head, output=torch.zeros_like)


def cut_link(layer: int, head: int, token: int, targets: Sequence[int]) -> HeadEdit:
    """Return the edit that cuts the links of a head from one token to others, as `cut_weights`, in every text.

    Positions count from 0, the start token. Raise UserError for a link that no text can have.
    """
    _check_links(token, targets)
    return _edit_token(layer, head, token, lambda row: cut_weights(row, _mask(row, targets)))


def exchange_links(layer: int, head: int, token: int, left: Sequence[int], right: Sequence[int]) -> HeadEdit:
    """Return the edit by which two sets of tokens exchange a head's weights at one token, as `exchange_weights`.

    Positions count from 0, the start token. Raise UserError for links that no text can have, or sets that overlap.
    """
    _check_links(token, left)
    _check_links(token, right)
    if not set(left).isdisjoint(right):
        raise UserError(f"exchange_links: {list(left)} and {list(right)} must not share a token")
    return _edit_token(layer, head, token, lambda row: exchange_weights(row, _mask(row, left), _mask(row, right)))


def _check_links(token: int, targets: Sequence[int]) -> None:
    """Raise UserError unless `targets` are one or more tokens that a head can attend to from `token`."""
    if not targets or not all(0 <= target <= token for target in targets):
        raise UserError(f"no link from token {token} to {list(targets)}: it can have links to tokens 0 to {token} only")


def _edit_token(layer: int, head: int, token: int, change: Callable[[Tensor], Tensor]) -> HeadEdit:
    """Return an edit that applies `change` ([B, T] -> [B, T]) to a head's weights at the same token of every text."""

    def weights(attention: Tensor) -> Tensor:
        if token >= attention.shape[1]:
            raise UserError(f"no link from token {token}: the text has tokens 0 to {attention.shape[1] - 1}")
        edited = attention.clone()
        edited[:, token] = change(attention[:, token])
        return edited

    return HeadEdit(layer, head, weights=weights)


def _mask(row: Tensor, tokens: Sequence[int]) -> Tensor:
    """Return a mask [B, T] that is True at some tokens."""
    mask = torch.zeros_like(row, dtype=torch.bool)
    mask[:, list(tokens)] = True
    return mask


def swap_edges(batch: PairBatch, layer: int, head: int) -> HeadEdit:
    """Return the attention swap: antecedent and distractor exchange their weights at the query."""
    return edit_query_row(
        batch.query, layer, head, lambda row: exchange_weights(row, batch.antecedent, batch.distractor)
    )


def cut_edge(query: Tensor, layer: int, head: int, mask: Tensor) -> HeadEdit:
    """Return the edge ablation: `cut_weights` at the `query` [B]."""
    return edit_query_row(query, layer, head, lambda row: cut_weights(row, mask))


def cut_weights(weights: Tensor, mask: Tensor) -> Tensor:
    """Return the weights [B, T] with those on `mask` [B, T] set to 0 and the others scaled to a sum of 1.

    This equals scores of -inf before the softmax (Geva et al. 2023, "attention knockout").
    """
    remaining = weights.masked_fill(mask, 0)
    return remaining / remaining.sum(-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)


def exchange_weights(weights: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Exchange the total weight of two disjoint sets of tokens; all arguments are [B, T].

    Within each set the new total is distributed in proportion to the old weights, evenly if they are all 0. Applying
    the function twice restores the weights.
    """
    # Either set takes the total of the other; the weights outside stay.
    left_total, left_shares = _total_and_shares(weights, left)
    right_total, right_shares = _total_and_shares(weights, right)
    return weights.masked_fill(left | right, 0) + right_total * left_shares + left_total * right_shares


def _total_and_shares(weights: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return the total weight [B, 1] of some tokens, and each one's share of it [B, T]."""
    kept = weights.masked_fill(~inside, 0)
    total = kept.sum(-1, keepdim=True)
    even = inside.float() / inside.sum(-1, keepdim=True)
    return total, torch.where(total > 0, kept / total.where(total > 0, 1.0), even)
