"""Heads that decide a question of the stories together: added one by one on dev, tested on the headline.

Heads can share the work, and later ones can repair the loss of one (McGrath et al. 2023). So heads are added one by
one: each time the one that raises the joint attention swap on dev most. Where the chosen head alone is not supported,
the verdict is about the set (`probe.verdict`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem
from model.observe import ObservableModel
from probe.batches import progress_bar
from probe.interventions import (
    PASS_ERROR,
    PairBatch,
    answer_margins,
    cut_edge,
    edited_margins,
    measure_pairs,
    pair_up,
    partner,
    swap_edges,
)
from probe.results import Head, HeadSet, Interval, SetStep
from probe.statistics import ratio_interval, story_clusters, story_designs

MIN_SHARE = 0.8  # joint attention swap at which no more heads are added
MIN_GAIN = 0.02  # a head that adds less to it does not share the work
MAX_HEADS = 6
MAX_CANDIDATES = 16  # in a model with more heads: those that move dev most alone
N_DEV_PAIRS = 64  # the heads are chosen on this many pairs of dev, at most twice as many, evenly spaced
MANY_HEADS = 64  # in a model with more heads, edits of all of them take too long:
MAX_EDITED = 32  # only those with the largest difference of attention weights are edited,
N_DEV_PAIRS_MANY = 16  # on so many pairs, at most twice as many


def smallest_set(
    model: ObservableModel,
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    weight_difference: np.ndarray,
    *,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> HeadSet | None:
    """Return the smallest set of heads whose joint attention swap moves MIN_SHARE of the answer on dev.

    `dev` and `test` are whole blocks of one question; `weight_difference` [L, H] is that of `HeadRows` on dev.
    `reached` is False if no head adds MIN_GAIN to the set, or it has MAX_HEADS, and it moves less on dev. None if no
    item has a partner, or if the answer is the same for both.
    """
    dev_pairs, _ = pair_up(dev)
    test_pairs, _ = pair_up(test)
    if not dev_pairs or not test_pairs:
        return None
    heads = screened_heads(weight_difference)
    n_pairs = N_DEV_PAIRS if weight_difference.size <= MANY_HEADS else N_DEV_PAIRS_MANY
    step = max(1, len(dev_pairs) // (2 * n_pairs))
    dev_pairs = [item for i, item in enumerate(dev_pairs) if i // 2 % step == 0]

    # Candidates: all heads, in a large model those that move the answer most alone.
    lost, total = joint_swaps(model, dev_pairs, [[head] for head in heads], tokens_per_batch)
    if total.mean() <= PASS_ERROR:
        return None
    alone = lost.mean(axis=0) / total.mean()  # [heads]
    order = np.argsort(-alone, kind="stable")[:MAX_CANDIDATES]
    candidates = [heads[i] for i in order]

    # What all of them can move together, at the query.
    lost, total = joint_swaps(model, dev_pairs, [candidates], tokens_per_batch)
    of_all = float(lost.mean() / total.mean())

    # Add heads one by one.
    chosen = [candidates[0]]
    shares = [float(alone[order[0]])]
    while shares[-1] < MIN_SHARE and len(chosen) < min(MAX_HEADS, len(candidates)):
        remaining = [head for head in candidates if head not in chosen]
        sets = [[*chosen, head] for head in remaining]
        lost, total = joint_swaps(model, dev_pairs, sets, tokens_per_batch)
        of_sets = lost.mean(axis=0) / total.mean()  # [remaining]
        if of_sets.max() <= shares[-1] + MIN_GAIN:
            break  # no head adds to the set
        chosen.append(remaining[int(of_sets.argmax())])
        shares.append(float(of_sets.max()))

    # Test every step once.
    sets = [chosen[: n + 1] for n in range(len(chosen))]
    lost, total = joint_swaps(model, test_pairs, sets, tokens_per_batch)
    tested = (lost.mean(axis=0) / total.mean()).tolist()
    curve = []
    for head, on_dev, on_test in zip(chosen, shares, tested, strict=True):
        curve.append(SetStep(head.layer, head.head, on_dev, on_test))

    return HeadSet(
        heads=chosen,
        reached=shares[-1] >= MIN_SHARE,
        all_heads_dev=of_all,
        attention_swap=tested[-1],
        attention_swap_interval=_interval(lost[:, -1], total, test_pairs, n_bootstrap, seed),
        curve=curve,
    )


def screened_heads(weight_difference: np.ndarray) -> list[Head]:
    """Return all heads, or of more than MANY_HEADS the MAX_EDITED with the largest difference of weights [L, H]."""
    order = np.argsort(-weight_difference.ravel(), kind="stable")
    kept = order if len(order) <= MANY_HEADS else order[:MAX_EDITED]
    heads = []
    for index in np.sort(kept).tolist():
        heads.append(Head(*divmod(index, weight_difference.shape[1])))
    return heads


def joint_specificity(
    model: ObservableModel,
    items: Sequence[LinkItem],
    heads: Sequence[Head],
    *,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> tuple[float, Interval]:
    """Return how much more of the answer the edges to the antecedent carry than those to the distractor.

    The edges of all `heads` at the query are cut together. A share, as the attention swap, with its interval; `items`
    are those of `smallest_set`'s test.
    """

    def measure(batch: PairBatch, streams: list[Tensor]) -> dict[str, Tensor]:
        clean, total = _clean_margins(model, batch, streams)
        margins = []
        for mentions in (batch.antecedent, batch.distractor):
            edits = [cut_edge(batch.query, layer, head, mentions) for layer, head in heads]
            margins.append(edited_margins(model, batch, streams, *edits))
        without_antecedent, without_distractor = margins
        return {"specificity": without_distractor - without_antecedent, "total": total}

    pairs, _ = pair_up(items)
    results = measure_pairs(model, pairs, tokens_per_batch, measure)
    specificity, total = results["specificity"], results["total"]
    return float(specificity.mean() / total.mean()), _interval(specificity, total, pairs, n_bootstrap, seed)


def _interval(
    values: np.ndarray, total: np.ndarray, pairs: Sequence[LinkItem], n_bootstrap: int, seed: int
) -> Interval:
    """Return the interval of the ratio of two means over items [N]; both items of a pair are resampled together."""
    values, total = (part.reshape(-1, 2).sum(axis=1) for part in (values, total))
    designs = story_designs(story_clusters(pairs[::2]))
    low, high = ratio_interval(values, total, designs, n_bootstrap, seed).tolist()
    return low, high


def joint_swaps(
    model: ObservableModel, pairs: Sequence[LinkItem], sets: Sequence[Sequence[Head]], tokens_per_batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each set of heads moves of each item's margin [N, C], and the whole difference [N], in nats."""
    bar = progress_bar(len(pairs) * len(sets), "edit")

    def measure(batch: PairBatch, streams: list[Tensor]) -> dict[str, Tensor]:
        clean, total = _clean_margins(model, batch, streams)
        moved = []
        for heads in sets:
            edits = [swap_edges(batch, layer, head) for layer, head in heads]
            moved.append(clean - edited_margins(model, batch, streams, *edits))
            bar.update(len(batch.index))
        return {"moved": torch.stack(moved, dim=1), "total": total}

    # One bar for all sets: a batch with the edits of many heads takes long.
    with bar:
        results = measure_pairs(model, pairs, tokens_per_batch, measure, has_bar=False)
    return results["moved"], results["total"]


def _clean_margins(model: ObservableModel, batch: PairBatch, streams: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the margins [B] of unedited passes, and their difference from those after the partner's text."""
    logits = model.logits(batch.tokens, batch.payoff, (), streams)
    clean = answer_margins(logits, batch.answers, batch.foils)
    return clean, clean - answer_margins(partner(logits), batch.answers, batch.foils)
