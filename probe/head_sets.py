"""The smallest set of heads that decides a question of the stories together: chosen on dev, tested on the headline.

Heads can share the work, and later ones can repair the loss of one (McGrath et al. 2023). So heads are added one by
one: each time the one that raises the joint attention swap on dev most.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from data.links import LinkItem
from model.observe import ObservableModel
from probe.causal import ROUNDING, over_batches
from probe.interventions import PairBatch, answer_margins, edited_margins, pair_up, partner, swap_edges
from probe.statistics import bootstrap_interval, story_clusters, story_designs

MIN_SHARE = 0.8  # joint attention swap at which no more heads are added
MAX_HEADS = 6
MAX_CANDIDATES = 16  # in a model with more heads: those that move dev most alone
N_DEV_PAIRS = 64  # the heads are chosen on this many pairs of dev, at most twice as many, evenly spaced
Head = tuple[int, int]  # (layer, head)


def smallest_set(
    model: ObservableModel,
    dev: Sequence[LinkItem],
    test: Sequence[LinkItem],
    *,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> dict[str, Any] | None:
    """Returns the smallest set of heads whose joint attention swap moves MIN_SHARE of the answer on dev.

    `dev` and `test` are whole blocks of one question. The result has `heads`, `reached` (False: no head adds to them,
    or they are MAX_HEADS, and they move less on dev), `curve` (for each number of heads: the head added and the share
    on dev and on test), `attention_swap` of the set on test and its interval. None if no item has a partner, or if the
    answer is the same for both partners.
    """
    dev_indices, _ = pair_up(dev)
    test_indices, _ = pair_up(test)
    if not dev_indices or not test_indices:
        return None
    step = max(1, len(dev_indices) // (2 * N_DEV_PAIRS))
    dev_pairs = [dev[i + side] for i in dev_indices[:: 2 * step] for side in (0, 1)]
    test_pairs = [test[i] for i in test_indices]

    # Candidates: all heads, in a large model those that move the answer most alone.
    heads = [(layer, head) for layer in range(model.n_layer) for head in range(model.n_head)]
    lost, total = joint_swaps(model, dev_pairs, [[head] for head in heads], tokens_per_batch)
    if total.mean() <= ROUNDING:
        return None
    alone = lost.mean(axis=0) / total.mean()  # [heads]
    order = np.argsort(-alone, kind="stable")[:MAX_CANDIDATES]
    candidates = [heads[i] for i in order]

    # Add heads one by one.
    chosen, shares = [candidates[0]], [float(alone[order[0]])]
    while shares[-1] < MIN_SHARE and len(chosen) < min(MAX_HEADS, len(candidates)):
        remaining = [head for head in candidates if head not in chosen]
        lost, total = joint_swaps(model, dev_pairs, [[*chosen, head] for head in remaining], tokens_per_batch)
        of_sets = lost.mean(axis=0) / total.mean()
        if of_sets.max() <= shares[-1]:
            break  # no head adds to the set
        chosen.append(remaining[int(of_sets.argmax())])
        shares.append(float(of_sets.max()))

    # Test every step once.
    lost, total = joint_swaps(model, test_pairs, [chosen[: n + 1] for n in range(len(chosen))], tokens_per_batch)
    tested = lost.mean(axis=0) / total.mean()
    of_pairs = lost[:, -1].reshape(-1, 2).sum(axis=1), total.reshape(-1, 2).sum(axis=1)

    def statistic(weights: np.ndarray) -> np.ndarray:
        above, below = weights @ of_pairs[0], weights @ of_pairs[1]
        return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)

    designs = story_designs(story_clusters(test_pairs[::2]))
    curve = []
    for head, on_dev, on_test in zip(chosen, shares, tested.tolist(), strict=True):
        curve.append({"layer": head[0], "head": head[1], "dev": on_dev, "test": on_test})
    return {
        "heads": [list(head) for head in chosen],
        "reached": shares[-1] >= MIN_SHARE,
        "attention_swap": float(tested[-1]),
        "attention_swap_interval": bootstrap_interval(statistic, designs, n_bootstrap, seed).tolist(),
        "curve": curve,
    }


def joint_swaps(
    model: ObservableModel, pairs: Sequence[LinkItem], sets: Sequence[Sequence[Head]], tokens_per_batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what each set of heads moves of each item's margin [N, C], and the whole difference [N], in nats."""

    def measure(batch: PairBatch, streams: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        clean_logits = model.logits(batch.tokens, batch.payoff, (), streams)
        clean = answer_margins(clean_logits, batch.answers, batch.foils)
        of_partner = answer_margins(partner(clean_logits), batch.answers, batch.foils)
        moved = []
        for heads in sets:
            edits = [swap_edges(batch, layer, head) for layer, head in heads]
            moved.append(clean - edited_margins(model, batch, streams, *edits))
        return {"moved": torch.stack(moved, dim=1), "total": clean - of_partner}

    results = over_batches(model, pairs, tokens_per_batch, measure)
    return results["moved"], results["total"]
