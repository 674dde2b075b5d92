"""Three meanings of "importance" for every link: how much is looked at, how much is moved, and what hangs on it.

A link is the edge from an item's query to one word that could be meant, in one head. Attention gives only the sum over
all words, so the sum cannot say which of them mattered. What can be said of one edge:

    weight      sum_j w_j over the word's pieces
    value norm  || sum_j w_j W_O W_V x_j ||, length of what the edge adds to the stream (Kobayashi et al. 2020, eq. 5)
    effect      | M - M without that sum | in nats, M the margin at the payoff; the weight goes to no other word

Only the effect is about the answer. It is a lower bound, as that of every ablation: later layers repair. Where the
payoff comes after the query, an edge of the last layer has none: nobody reads there any more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem
from model.transformer import Transformer
from probe.causal import ROUNDING, Draws, collect, draw_clusters, spearman, with_row
from probe.interventions import Pairs, Run, margins, pair_up, with_head
from probe.scores import Candidates, candidates
from probe.statistics import clusters_of

MEANINGS = ("weight", "value_norm", "effect")
N_BLOCKS = 64  # of four items each, that a question is asked of: over eight heads 0.6 s of one core (measured)
_N_AT_ONCE = 2**18  # numbers of a resampling that are held at once: 2 MB, which stays in a processor's cache


@dataclass(frozen=True, slots=True)
class Links:
    """Every link of some items. Axes: N items, L layers, H heads, W words of an item; nan where it has fewer words."""

    weight: np.ndarray  # [N, L, H, W] 0 to 1
    value_norm: np.ndarray  # [N, L, H, W] 0 or more
    effect: np.ndarray  # [N, L, H, W] nats, 0 where below what rounding makes


def importance_study(
    model: Transformer,
    items: Sequence[LinkItem],
    layer: int,
    head: int,
    *,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> dict[str, Any]:
    """Return how the three meanings of importance agree, over the links of all heads and within one head.

    Args:
        model: in eval mode, float32.
        items: of one question and hold-out, in whole blocks; `N_BLOCKS` of them are asked.
        layer: of the chosen head.
        head: the chosen head.
        tokens_per_batch: of one forward pass.
        n_bootstrap: resamplings behind each interval.
        seed: of the resamplings.

    Returns:
        An entry of probe.json's `importance`: Spearman's rank correlations with 95 % intervals, None where one of the
        two is the same for every link, and each head's means for antecedents and for distractors.

    Raises:
        ValueError: no two partners can be compared.

    """
    some = spread(items)
    some = [some[i] for i in pair_up(some)[0]]
    if not some:
        raise ValueError("no item can be compared with its swap partner")
    links, gold = read_links(model, some, tokens_per_batch), candidates(some).gold.numpy()
    draws = draw_clusters(some, n_bootstrap, seed)
    every = np.stack([getattr(links, name) for name in MEANINGS])  # [3, N, L, H, W]
    return {
        "n_items": len(some),
        "clusters": {name: len(set(which)) for name, which in clusters_of(some).items()},
        "all_heads": agreement(every, draws),
        "chosen_head": agreement(every[:, :, layer : layer + 1, head : head + 1], draws),
        "heads": [_head(every[:, :, i, j], gold, i, j) for i, j in np.ndindex(every.shape[2:4])],
    }


def spread(items: Sequence[LinkItem], n_blocks: int = N_BLOCKS) -> list[LinkItem]:
    """Return `n_blocks` whole blocks of four, evenly spread over `items`, or all where there are no more."""
    n_there = len(items) // 4
    which = np.linspace(0, n_there - 1, min(n_blocks, n_there)).round().astype(int)
    return [items[4 * block + cell] for block in which for cell in range(4)]


def read_links(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> Links:
    """Read every link of `items`, each cut alone and run onward; words in the order of `candidates`.

    Args:
        model: in eval mode, float32.
        items: pair after pair, as `pair_up` keeps them.
        tokens_per_batch: of one forward pass.

    """
    mentions = candidates(items)
    queries = torch.tensor([item.query for item in items])

    def measure(pairs: Pairs, run: Run) -> dict[str, Tensor]:
        shifts = pairs.query - queries[pairs.items]
        return _links(model, pairs, run, _marks(mentions, pairs, shifts))

    with torch.no_grad():
        device = model.token_embedding.weight.device
        found = collect(model, items, list(range(len(items))), tokens_per_batch, device, measure)
    found["effect"] = np.where(found["effect"] < ROUNDING, 0, found["effect"])
    there = mentions.present.any(-1).numpy()[:, None, None]  # [N, 1, 1, W]
    return Links(**{field.name: np.where(there, found[field.name], np.nan) for field in fields(Links)})


def _marks(mentions: Candidates, pairs: Pairs, shifts: Tensor) -> Tensor:
    """Return [B, W, T] True on the pieces of each word, whose text begins `shifts` [B] columns late."""
    columns = mentions.positions[pairs.items] + shifts[:, None, None]
    rows, words, pieces = mentions.present[pairs.items].nonzero(as_tuple=True)
    marks = torch.zeros(*columns.shape[:2], pairs.tokens.shape[1], dtype=torch.bool)
    marks[rows, words, columns[rows, words, pieces]] = True
    return marks.to(pairs.tokens.device)


def _links(model: Transformer, pairs: Pairs, run: Run, words: Tensor) -> dict[str, Tensor]:
    """Return the three of every link [B, L, H, W]; `words` [B, W, T]."""
    clean = margins(model, pairs, run.streams[-1])
    found: dict[str, list[Tensor]] = {name: [] for name in MEANINGS}
    for layer, block in enumerate(model.layers()):
        weights = run.scores[layer].softmax(-1)  # [B, H, T]
        edges = weights[:, :, None] * words[:, None]  # [B, H, W, T]
        *_, output = block.attention.by_head()
        found["weight"].append(edges.sum(-1))
        found["value_norm"].append(torch.einsum("bhwk,hdk->bhwd", edges @ run.values[layer], output).norm(dim=-1))
        effects = torch.empty_like(found["weight"][-1])
        for head in range(effects.shape[1]):
            for word in range(effects.shape[2]):
                mixed = with_row(pairs, run, layer, head, weights[:, head].masked_fill(words[:, word], 0))
                stream = with_head(model, pairs, run, layer, head, mixed)
                effects[:, head, word] = (margins(model, pairs, stream) - clean).abs()
        found["effect"].append(effects)
    return {name: torch.stack(values, dim=1) for name, values in found.items()}


def agreement(values: np.ndarray, draws: Draws) -> dict[str, Any]:
    """Return how many links there are and Spearman's correlation of every two meanings with its interval.

    Args:
        values: [3, N, ...] the three meanings of the links of N items, nan where there is no link.
        draws: of whole clusters of the items; the lowest low and the highest high of all clusterings count.

    """
    there = ~np.isnan(values[0])
    items = np.broadcast_to(np.arange(len(there)).reshape(-1, *[1] * (there.ndim - 1)), there.shape)[there]
    flat = values[:, there]  # [3, n]
    found: dict[str, Any] = {"n_links": flat.shape[1]}
    bounds = np.stack([_interval(resampled(flat, index[items], drawn)) for index, drawn in draws])  # [ways, 2, 3, 3]
    lowest, highest = bounds[:, 0].min(0), bounds[:, 1].max(0)
    for i, j in combinations(range(len(MEANINGS)), 2):
        name, value = f"{MEANINGS[i]}_{MEANINGS[j]}", spearman(flat[i], flat[j])
        interval = None if value is None else (float(lowest[i, j]), float(highest[i, j]))
        found |= {name: value, f"{name}_interval": interval}
    return found


def _interval(correlations: np.ndarray) -> np.ndarray:
    """Return [2, 3, 3], the percentiles of [B, 3, 3] without the resamplings in which a meaning is constant."""
    bounds = np.full((2, *correlations.shape[1:]), np.nan)
    for i, j in np.ndindex(correlations.shape[1:]):
        known = correlations[:, i, j][~np.isnan(correlations[:, i, j])]
        if len(known):
            bounds[:, i, j] = np.percentile(known, (2.5, 97.5))
    return bounds


def resampled(values: np.ndarray, clusters: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return Spearman's correlation of every two of `values` in each resampling of whole clusters, [B, k, k].

    A rank in a resampling is the number of drawn links below, and half of those alike. That is linear in how often each
    cluster was drawn, so nothing is sorted again. nan where one of the two is constant.

    Args:
        values: [k, n].
        clusters: [n] the cluster of each link, counted from 0.
        drawn: [B, C] how often each cluster is drawn.

    """
    below = np.stack([_below(one, clusters, drawn.shape[1]) for one in values])  # [k, C, n]
    parts = []
    for some in np.array_split(drawn, -(-drawn.shape[0] * values.shape[1] // _N_AT_ONCE)):
        weights = some[:, clusters].astype(float)  # [b, n]
        centred = some @ below - weights.sum(-1, keepdims=True) / 2  # [k, b, n]; the mean of ranks is half their number
        weighted = centred * weights
        products = np.einsum("ibn,jbn->bij", weighted, centred)
        spreads = np.sqrt(np.einsum("bii->bi", products))
        with np.errstate(invalid="ignore"):
            parts.append(products / (spreads[:, :, None] * spreads[:, None]))
    return np.concatenate(parts)


def _below(values: np.ndarray, clusters: np.ndarray, n_clusters: int) -> np.ndarray:
    """Return how many of each cluster's links lie below each link, those alike by half: [C, n]."""
    levels, level = np.unique(values, return_inverse=True)
    counts = np.zeros((n_clusters, len(levels)))
    np.add.at(counts, (clusters, level), 1)
    return (counts.cumsum(1) - counts / 2)[:, level]


def _head(values: np.ndarray, gold: np.ndarray, layer: int, head: int) -> dict[str, Any]:
    """Return a head's means over its links to antecedents and to distractors; `values` [3, N, W], `gold` [N, W]."""
    sides = {"antecedent": gold, "distractor": ~gold & ~np.isnan(values[0])}
    means = {
        side: {name: float(one[links].mean()) for name, one in zip(MEANINGS, values, strict=True)}
        for side, links in sides.items()
    }
    return {"layer": layer, "head": head} | means
