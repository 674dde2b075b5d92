"""A model run again with one thing changed: a second, pure path through it, without hooks and without stored state.

Every intervention here compares an item with its swap partner, the cell of the same block and order in which the
other word is meant: both texts are the same but for the pronoun or the deciding word. Texts are aligned at the query,
padded in front: each token keeps its position in its own text, and padding is hidden from every other key, so nothing
changes.
What lies before the first changed position is never computed twice.

Axes besides those of `model`: B texts, always an even number, rows 2i and 2i + 1 each other's partner.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from data.links import LinkItem
from model.transformer import Attention, Block, Transformer

NO_TOKEN = -1  # fills up rows of token ids


@dataclass(frozen=True, slots=True)
class Pairs:
    """Texts beside their swap partners, in columns that count from the query."""

    items: list[int]  # [B] the place of each among the items given
    tokens: Tensor  # [B, T]
    positions: Tensor  # [B, T] in the text, 0 in front of it
    padding: Tensor  # [B, T] True in front of the text and behind it
    query: int  # its column in every text
    payoff: Tensor  # [B] column
    parted: Tensor  # [B, T] True from the first token on that the partner does not share
    antecedent: Tensor  # [B, T] True on every piece of every mention
    distractor: Tensor  # [B, T] True on the mentions that the partner means
    mention: Tensor  # [B, T] True on those and all other candidates
    answers: Tensor  # [B, n] token ids, filled up with NO_TOKEN
    foils: Tensor  # [B, n]


@dataclass(frozen=True, slots=True)
class Run:
    """What a model did on some texts, kept where an intervention may start."""

    streams: list[Tensor]  # L + 1 of [B, T, D]: before each block and after the last
    keys: list[Tensor]  # L of [B, H, T, K], turned by their positions
    values: list[Tensor]  # L of [B, H, T, K]
    mixed: list[Tensor]  # L of [B, H, T, K]: each head's output before its W_O
    scores: list[Tensor]  # L of [B, H, T]: what the query thinks of each key


def pair_up(items: Sequence[LinkItem]) -> tuple[list[int], int]:
    """Return the places of the items that can be compared with their partner, pair after pair, and how many cannot.

    Items come in whole blocks, so that the partner of item i is item i ^ 1. A pair is left out where nothing is meant
    or nothing pays off, where query, payoff or length differ, or where what one means is no candidate of the other.
    """
    kept = []
    for i in range(0, len(items) - 1, 2):
        one, two = items[i], items[i + 1]
        if _comparable(one, two) and _comparable(two, one):
            kept += [i, i + 1]
    return kept, len(items) // 2 - len(kept) // 2


def _comparable(one: LinkItem, two: LinkItem) -> bool:
    same_place = (one.block, one.order, one.query, one.payoff, len(one.tokens))
    return (
        same_place == (two.block, two.order, two.query, two.payoff, len(two.tokens))
        and one.payoff is not None
        and one.payoff >= one.query
        and bool(one.antecedents and one.answers and one.foils)
        and set(two.antecedents) <= set(one.distractors)
    )


def batches(
    items: Sequence[LinkItem], places: Sequence[int], tokens_per_batch: int, device: torch.device
) -> Iterator[Pairs]:
    """Yield the pairs at `places`, from `pair_up`, in batches of at most `tokens_per_batch` tokens or of one pair."""
    order = sorted(range(0, len(places), 2), key=lambda i: len(items[places[i]].tokens))
    while order:
        n_pairs = max(1, tokens_per_batch // (2 * len(items[places[order[-1]]].tokens)))
        some, order = order[-n_pairs:], order[:-n_pairs]
        yield align(items, [places[i + j] for i in some for j in (0, 1)], device)


def align(items: Sequence[LinkItem], places: list[int], device: torch.device) -> Pairs:
    """Lay the items at `places`, partner beside partner, into one batch with all queries in one column."""
    some = [items[i] for i in places]
    query = max(item.query for item in some)
    shifts = [query - item.query for item in some]
    width = max(shift + len(item.tokens) for shift, item in zip(shifts, some, strict=True))
    tokens = torch.zeros(len(some), width, dtype=torch.int64)
    padding = torch.ones(len(some), width, dtype=torch.bool)
    marks = {name: torch.zeros(len(some), width, dtype=torch.bool) for name in ("antecedent", "distractor", "mention")}
    for row, (item, shift) in enumerate(zip(some, shifts, strict=True)):
        tokens[row, shift : shift + len(item.tokens)] = torch.tensor(item.tokens)
        padding[row, shift : shift + len(item.tokens)] = False
        words = {"antecedent": item.antecedents, "distractor": some[row ^ 1].antecedents}
        words["mention"] = item.antecedents + item.distractors
        for name, mark in marks.items():
            mark[row, [shift + place for word in words[name] for place in word]] = True
    payoff = torch.tensor([(item.payoff or 0) + shift for item, shift in zip(some, shifts, strict=True)])
    positions = (torch.arange(width) - torch.tensor(shifts)[:, None]).clamp(min=0)
    parted = (tokens != partner(tokens)).cumsum(1) > 0
    ids = (_filled([item.answers for item in some]), _filled([item.foils for item in some]))
    to = [one.to(device) for one in (tokens, positions, padding, payoff, parted, *marks.values(), *ids)]
    return Pairs(places, to[0], to[1], to[2], query, *to[3:])


def _filled(rows: list[tuple[int, ...]]) -> Tensor:
    width = max(len(row) for row in rows)
    return torch.tensor([[*row, *[NO_TOKEN] * (width - len(row))] for row in rows])


def partner(x: Tensor) -> Tensor:
    """Return `x` [B, ...] with every two rows changed over."""
    return x.unflatten(0, (-1, 2)).flip(1).flatten(0, 1)


def observe(model: Transformer, pairs: Pairs, n_layer: int | None = None) -> Run:
    """Run the model on both texts of every pair, through its first `n_layer` layers; None for all."""
    run = Run([model.embed(pairs.tokens, pairs.positions)], [], [], [], [])
    for block in list(model.layers())[:n_layer]:
        x = run.streams[-1]
        query, key, value = block.attention.project(block.norm_1(x))
        scores = _scores(block.attention, query, key, pairs.padding, 0)
        mixed = scores.softmax(-1) @ value
        run.scores.append(scores[:, :, pairs.query])
        run.keys.append(key)
        run.values.append(value)
        run.mixed.append(mixed)
        run.streams.append(_add(block, x, mixed))
    return run


def _scores(attention: Attention, query: Tensor, key: Tensor, padding: Tensor, first: int) -> Tensor:
    """Return the scores [B, H, T - first, T]; padding is seen by nobody but itself, which keeps every row finite."""
    columns = torch.arange(key.shape[2], device=key.device)
    scores = attention.judge(query, key, columns[None, first:])
    hidden = padding[:, None, :] & (columns[first:, None] != columns)
    return scores.masked_fill(hidden[:, None], float("-inf"))


def _add(block: Block, x: Tensor, mixed: Tensor) -> Tensor:
    """Return the stream after a block, given what its heads mixed."""
    x = x + block.attention.merge(mixed)
    return x + block.mlp(block.norm_2(x))


def onward(model: Transformer, pairs: Pairs, run: Run, layer: int, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Carry the stream of the last columns from `layer` to the end; the columns before are as they were in `run`.

    Args:
        model: in eval mode.
        pairs: the texts.
        run: of the same model on them.
        layer: the first layer to pass, L for none.
        x: [B, R, D] the stream that enters it in the last R columns.

    Returns:
        The stream [B, R, D] after the last layer, and for each layer passed what its heads mixed [B, H, R, K].

    """
    first, passed = pairs.tokens.shape[1] - x.shape[1], []
    for i, block in enumerate(list(model.layers())[layer:], layer):
        query, key, value = block.attention.project(block.norm_1(x), first)
        key = torch.cat([run.keys[i][:, :, :first], key], dim=2)
        value = torch.cat([run.values[i][:, :, :first], value], dim=2)
        mixed = _scores(block.attention, query, key, pairs.padding, first).softmax(-1) @ value
        passed.append(mixed)
        x = _add(block, x, mixed)
    return x, passed


def with_stream(model: Transformer, pairs: Pairs, run: Run, layer: int, stream: Tensor) -> Tensor:
    """Return the last stream [B, T, D] of a run whose stream entering `layer` (L: leaving the last) is `stream`."""
    first = _first_change(stream.transpose(1, 2), run.streams[layer].transpose(1, 2))
    if first is None:
        return run.streams[-1]
    x, _ = onward(model, pairs, run, layer, stream[:, first:])
    return torch.cat([run.streams[-1][:, :first], x], dim=1)


def with_head(model: Transformer, pairs: Pairs, run: Run, layer: int, head: int, mixed: Tensor) -> Tensor:
    """Return the last stream [B, T, D] of a run in which `head` of `layer` gives `mixed` [B, T, K] instead."""
    first = _first_change(mixed.transpose(1, 2), run.mixed[layer][:, head].transpose(1, 2))
    if first is None:
        return run.streams[-1]
    every = run.mixed[layer][:, :, first:].clone()
    every[:, head] = mixed[:, first:]
    x = _add(list(model.layers())[layer], run.streams[layer][:, first:], every)
    x, _ = onward(model, pairs, run, layer + 1, x)
    return torch.cat([run.streams[-1][:, :first], x], dim=1)


def _first_change(new: Tensor, old: Tensor) -> int | None:
    """Return the first column in which [..., T] differ."""
    changed = (new != old).flatten(0, -2).any(0).nonzero()
    return int(changed[0]) if len(changed) else None


def margins(model: Transformer, pairs: Pairs, stream: Tensor) -> Tensor:
    """Return M [B] = log p(answers) - log p(foils) at the payoff, from the last stream [B, T, D].

    The softmax's denominator cancels, so only the logits of these words are computed.
    """
    x = model.final_norm(stream[torch.arange(len(stream), device=stream.device), pairs.payoff])  # [B, D]
    sides = []
    for ids in (pairs.answers, pairs.foils):
        logits = (model.unembedding[ids.clamp(min=0)] @ x[:, :, None])[..., 0]  # [B, n]
        sides.append(logits.masked_fill(ids == NO_TOKEN, float("-inf")).logsumexp(-1))
    return sides[0] - sides[1]


def from_partner(pairs: Pairs, x: Tensor, where: Tensor | None = None) -> Tensor:
    """Return `x` [B, T, ...] with the partner's values in the columns `where` [B, T]; None for all columns.

    Columns before the texts part stay as they are to the last bit: there the partner has read the same.
    """
    take = pairs.parted if where is None else pairs.parted & where
    return torch.where(take[:, :, None], partner(x), x)


def exchange(weights: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Give the words `one` the whole weight of the words `other` and the other way round.

    Within each side the new total is shared out over the pieces in the old proportions, evenly where they were all 0.
    Doing it twice changes nothing.

    Args:
        weights: [B, T].
        one: [B, T] True on the pieces of one side.
        other: [B, T] True on those of the other side; no piece is on both.

    """
    totals, shares = [], []
    for side in (one, other):
        mine = weights.masked_fill(~side, 0)
        total = mine.sum(-1, keepdim=True)
        even = side.float() / side.sum(-1, keepdim=True)
        totals.append(total)
        shares.append(torch.where(total > 0, mine / total.where(total > 0, 1.0), even))
    return weights.masked_fill(one | other, 0) + totals[1] * shares[0] + totals[0] * shares[1]
