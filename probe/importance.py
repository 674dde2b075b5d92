"""Three measures of a link's importance, and how well they agree.

A link is the attention edge of one head from an item's query to one mention:

    weight      sum_j a_j over the mention's tokens j
    value_norm  ||sum_j a_j W_O W_V x_j||, the length of what the edge adds (Kobayashi et al. 2020, eq. 5)
    effect      |M - M without the edge| in nats, M the answer margin at the payoff; the weight is not redistributed

Only the effect is about the answer, and it is a lower bound, since later layers may compensate. An edge of the last
layer has no effect if the payoff comes after the query.
"""

from collections.abc import Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem
from model.observe import ObservableModel
from probe.interventions import PASS_ERROR, PairBatch, edit_query_row, edited_margins, measure_pairs, pair_up
from probe.results import Agreement, ImportanceResult, LinkMeans, LinkMeansOfHead
from probe.statistics import bootstrap_interval, count_clusters, story_clusters, story_designs

MEASURES = ("weight", "value_norm", "effect")
N_BLOCKS = 64  # blocks of four items per question; eight heads then take less than a second on one core
MAX_HEADS = 64  # in a model with more heads, only those of the chosen layer are measured
MAX_BOOTSTRAP = 200  # enough for the interval of a descriptive correlation
_PAIRS_OF_MEASURES = list(combinations(range(len(MEASURES)), 2))


def importance_study(
    model: ObservableModel,
    items: Sequence[LinkItem],
    layer: int,
    head: int,
    *,
    question: str,
    holdout: str,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> ImportanceResult:
    """Return how the three measures agree over the links of all heads and of the chosen head, and each head's means.

    The items are whole blocks of the question and hold-out named; up to `N_BLOCKS` blocks and `MAX_BOOTSTRAP`
    resamplings are used. Raises ValueError if no item has a partner.
    """
    items, _ = pair_up(spread_blocks(items))
    if not items:
        raise ValueError("no item has a partner")
    is_small = model.n_layer * model.n_head <= MAX_HEADS
    layers = list(range(model.n_layer)) if is_small else [layer]
    links = measure_links(model, items, layers, tokens_per_batch)  # [3, N, layers, H, W]
    resampling = min(n_bootstrap, MAX_BOOTSTRAP), seed
    heads = []
    for i, j in np.ndindex(len(layers), model.n_head):
        heads.append(_head_means(links[:, :, i, j], items, layers[i], j))
    return ImportanceResult(
        question=question,
        holdout=holdout,
        layer=layer,
        head=head,
        n_items=len(items),
        clusters=count_clusters(story_clusters(items)),
        layers=layers,
        all_heads=_agreement(links, items, *resampling),
        chosen_head=_agreement(links[:, :, layers.index(layer), head], items, *resampling),
        heads=heads,
    )


def spread_blocks(items: Sequence[LinkItem], n_blocks: int = N_BLOCKS) -> list[LinkItem]:
    """Return `n_blocks` whole blocks of four items, evenly spread, or all if there are fewer."""
    n_available = len(items) // 4
    blocks = np.linspace(0, n_available - 1, min(n_blocks, n_available)).round().astype(int)
    return [items[4 * block + cell] for block in blocks for cell in range(4)]


def measure_links(
    model: ObservableModel, items: Sequence[LinkItem], layers: Sequence[int], tokens_per_batch: int
) -> np.ndarray:
    """Return the three measures of every link, [3, N, layers, H, W]; nan beyond an item's last mention.

    The items are pairs as from `pair_up`; their mentions are in the order antecedents, distractors. Effects below
    float32 rounding are 0. Value norms are nan if the model's output weights are not known.
    """
    n_words = [len(item.antecedents + item.distractors) for item in items]

    def measure(batch: PairBatch, streams: list[Tensor]) -> dict[str, Tensor]:
        n_mentions = batch.mentions.shape[1]
        shape = (len(batch.index), 3, len(layers), model.n_head, max(n_words))
        links = torch.full(shape, torch.nan, device=batch.tokens.device)
        records = model.record(batch.tokens, batch.query[:, None])
        clean = edited_margins(model, batch, streams)  # [B]
        for i, layer in enumerate(layers):
            # Weight: a_j of the tokens of each mention, and their sum.
            weights = records[layer].scores[:, :, 0].softmax(-1)  # [B, H, T]
            edges = weights[:, :, None] * batch.mentions[:, None]  # [B, H, W, T]
            links[:, 0, i, :, :n_mentions] = edges.sum(-1)

            # Value norm: W_O applied to the sum of a_j W_V x_j.
            output = model.head_weights(layer).output  # [H, D, K]
            if output is not None:
                added = torch.einsum("bhwk,hdk->bhwd", edges @ records[layer].values, output)
                links[:, 1, i, :, :n_mentions] = added.norm(dim=-1)

            # Effect: the margin without each edge.
            for head, word in np.ndindex(model.n_head, n_mentions):
                remove = partial(torch.masked_fill, mask=batch.mentions[:, word], value=0)
                edit = edit_query_row(batch.query, layer, head, remove)
                links[:, 2, i, head, word] = (edited_margins(model, batch, streams, edit) - clean).abs()
        return {"links": links}

    # Effects below rounding are none, and mentions that an item does not have are no links.
    links = measure_pairs(model, items, tokens_per_batch, measure)["links"].swapaxes(0, 1)
    links[2] = np.where(links[2] < PASS_ERROR, 0, links[2])
    for row, n in enumerate(n_words):
        links[:, row, ..., n:] = np.nan
    return links


def _agreement(links: np.ndarray, items: Sequence[LinkItem], n_bootstrap: int, seed: int) -> Agreement:
    """Return the number of links and the Spearman correlation of every two measures with its 95 % interval.

    `links` [3, N, ...] are the measures, nan where there is no link; the items' frames and words are resampled.
    """
    is_link = ~np.isnan(links[0])
    values = links[:, is_link]  # [3, n]
    item_of_link = np.nonzero(is_link)[0]
    correlations = rank_correlations(values, np.ones((1, values.shape[1])))[0]  # [3]
    is_known = ~np.isnan(correlations)

    def statistic(weights: np.ndarray) -> np.ndarray:
        drawn = []
        for chunk in np.array_split(weights, 16):  # large temporary arrays are slow
            drawn.append(rank_correlations(values, chunk[:, item_of_link])[:, is_known])
        return np.concatenate(drawn)

    intervals = np.full((len(is_known), 2), np.nan)
    if is_known.any():
        designs = story_designs(story_clusters(items))[:1]  # frames x pairs; all three take three times as long
        intervals[is_known] = bootstrap_interval(statistic, designs, n_bootstrap, seed).T

    # A correlation with a constant measure is None.
    measured: dict[str, Any] = {}
    for pair, (i, j) in enumerate(_PAIRS_OF_MEASURES):
        name = f"{MEASURES[i]}_{MEASURES[j]}"
        low, high = intervals[pair].tolist()
        measured[name] = float(correlations[pair]) if is_known[pair] else None
        measured[f"{name}_interval"] = (low, high) if is_known[pair] else None
    return Agreement(n_links=values.shape[1], **measured)


def rank_correlations(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weighted Spearman correlation of every two rows of `values` [3, n] under `weights` [B, n]: [B, 3].

    A link of weight 2 counts as two links. nan if a measure is constant.
    """
    # Ranks about their mean, which is half the total weight, and their sums of squares.
    total = weights.sum(1, keepdims=True)
    centred = [_weighted_ranks(row, weights) - total / 2 for row in values]  # 3 x [B, n]
    spreads = [(weights * ranks**2).sum(1) for ranks in centred]  # 3 x [B]

    # Pearson's correlation of the ranks.
    columns = []
    for i, j in _PAIRS_OF_MEASURES:
        product = (weights * centred[i] * centred[j]).sum(1)
        scale = np.sqrt(spreads[i] * spreads[j])
        columns.append(np.divide(product, scale, out=np.full_like(product, np.nan), where=scale > 0))
    return np.stack(columns, axis=1)


def _weighted_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weight below each of `values` [n] plus half the weight of its ties, [B, n]; `weights` [B, n]."""
    # The weight of every different value, ascending, and the weight below its middle.
    order = np.argsort(values, kind="stable")
    levels, starts = np.unique(values[order], return_index=True)
    weight_of_level = np.add.reduceat(weights[:, order], starts, axis=1)  # [B, levels]
    below: np.ndarray = weight_of_level.cumsum(1) - weight_of_level / 2
    return below[:, np.searchsorted(levels, values)]


def _head_means(links: np.ndarray, items: Sequence[LinkItem], layer: int, head: int) -> LinkMeansOfHead:
    """Return a head's mean measures [3, N, W] over its links to antecedents and to distractors."""
    n_antecedents = np.array([len(item.antecedents) for item in items])
    is_antecedent = np.arange(links.shape[2]) < n_antecedents[:, None]  # [N, W]
    is_distractor = ~is_antecedent & ~np.isnan(links[0])
    return LinkMeansOfHead(
        layer,
        head,
        antecedent=LinkMeans(*links[:, is_antecedent].mean(axis=1).tolist()),
        distractor=LinkMeans(*links[:, is_distractor].mean(axis=1).tolist()),
    )
