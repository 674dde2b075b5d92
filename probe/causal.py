"""Does the model's answer depend on one head's link? One edit of one head, and the answer margin is measured again.

    M = log p(answers) - log p(foils) at the payoff, in nats
    effect of an edit = mean(M_clean - M_edited) / mean(M_clean - M_partner)

M_partner is the margin of the item's own answers after the partner's text. An effect of 1 removes the whole difference
between the partners, 0 changes nothing. Later layers may compensate for an ablated head (self-repair, McGrath et al.
2023), so ablation effects are lower bounds. Outputs taken from the partner stay in distribution; zero ablation does not
(Zhang & Nanda 2024).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem
from model.observe import HeadEdit, ObservableModel
from probe.interventions import (
    PairBatch,
    answer_margins,
    cut_edge,
    edited_margins,
    pair_batches,
    pair_up,
    partner,
    swap_edges,
)
from probe.statistics import bootstrap_interval, story_clusters, story_designs

MAX_CONTROL_HEADS = 20
ROUNDING = 1e-5  # nats; two float32 passes that should agree differ by up to this much
EFFECTS = (
    *("attention_swap", "edge_ablation", "distractor_edge_ablation", "edge_specificity"),
    *("head_effect", "zero_ablation", "denoising_patch"),
)


def causal_study(
    model: ObservableModel,
    items: Sequence[LinkItem],
    layer: int,
    head: int,
    *,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> dict[str, Any] | None:
    """Return the causal effects of one head's link, each with its 95 % interval under `<name>_interval`.

    The items are whole blocks of one question and hold-out. `seed` decides the resamplings and the control heads. None
    if no item has a partner, else n_pairs, n_dropped, n_frames and:

    margin: mean M_clean, in nats.
    answer_difference: mean of (M_clean - M_partner) / 2, in nats; what the effects below are shares of. If its interval
        reaches 0, the model does not distinguish the partners, and the effects are None.
    attention_swap: antecedent and distractor exchange their attention weights at the query.
    edge_ablation, distractor_edge_ablation: the attention to one of them is removed at the query.
    edge_specificity: edge_ablation - distractor_edge_ablation.
    head_effect: the head's output comes from the partner's text, at all positions.
    zero_ablation: the head's output is 0.
    denoising_patch: share of the difference that returns if, in the partner's text, this head alone has the item's
        output. Equal to head_effect if the partners' answers and foils are each other's.
    controls: attention_swap of up to 20 random other heads of the layer.
    """
    indices, n_dropped = pair_up(items)
    if not indices:
        return None
    pairs = [items[i] for i in indices]
    candidates = np.delete(np.arange(model.n_head), head)
    controls = np.sort(np.random.default_rng(seed).permutation(candidates)[:MAX_CONTROL_HEADS]).tolist()
    margins = measure_margins(model, pairs, layer, head, controls, tokens_per_batch)
    entry: dict[str, Any] = {"n_pairs": len(pairs) // 2, "n_dropped": n_dropped}
    entry |= {"n_frames": len({item.frame for item in pairs}), "controls": None}
    entry |= summarise(margins, pairs, n_bootstrap, seed)
    if entry["attention_swap"] is not None:
        lost, total = margins["clean"][:, None] - margins["controls"], margins["clean"] - margins["partner"]
        entry["controls"] = {"heads": controls, "attention_swap": (lost.sum(axis=0) / total.sum()).tolist()}
    return entry


def measure_margins(
    model: ObservableModel, pairs: Sequence[LinkItem], layer: int, head: int, controls: list[int], tokens_per_batch: int
) -> dict[str, np.ndarray]:
    """Return the margin [N] of every item, "clean", after the partner's text ("partner") and under each edit.

    "controls" [N, n] are those under the attention swap of other heads of the layer.
    """

    def measure(batch: PairBatch, streams: list[Tensor]) -> dict[str, Tensor]:
        clean = model.logits(batch.tokens, batch.payoff, (), streams)
        resampled = model.logits(batch.tokens, batch.payoff, (HeadEdit(layer, head, output=partner),), streams)
        margins = partial(answer_margins, answers=batch.answers, foils=batch.foils)
        edits = {
            "attention_swap": swap_edges(batch, layer, head),
            "edge_ablation": cut_edge(batch.query, layer, head, batch.antecedent),
            "distractor_edge_ablation": cut_edge(batch.query, layer, head, batch.distractor),
            "zero_ablation": HeadEdit(layer, head, output=torch.zeros_like),
        }
        swaps = [edited_margins(model, batch, streams, swap_edges(batch, layer, control)) for control in controls]
        return {
            "clean": margins(clean),
            "partner": margins(partner(clean)),
            "head_effect": margins(resampled),
            "denoising_patch": margins(partner(resampled)),
            "controls": torch.stack(swaps, dim=1) if swaps else clean[:, :0],
        } | {name: edited_margins(model, batch, streams, edit) for name, edit in edits.items()}

    return over_batches(model, pairs, tokens_per_batch, measure)


def over_batches(
    model: ObservableModel,
    pairs: Sequence[LinkItem],
    tokens_per_batch: int,
    measure: Callable[[PairBatch, list[Tensor]], dict[str, Tensor]],
) -> dict[str, np.ndarray]:
    """Return the results [N, ...] of `measure` (called with a batch and its residual streams) in the items' order."""
    index: list[int] = []
    results: list[dict[str, np.ndarray]] = []
    for batch in pair_batches(pairs, range(len(pairs)), tokens_per_batch, model.device):
        index += batch.index
        measured = measure(batch, model.residual_stream(batch.tokens))
        results.append({name: values.double().cpu().numpy() for name, values in measured.items()})
    order = np.argsort(index)
    return {name: np.concatenate([result[name] for result in results])[order] for name in results[0]}


def summarise(
    margins: dict[str, np.ndarray], pairs: Sequence[LinkItem], n_bootstrap: int, seed: int
) -> dict[str, float | list[float] | None]:
    """Return every effect and its interval, from the margins of `measure_margins`.

    Effects are ratios of means, so all of them are resampled together, by pairs of items.
    """
    clean, partner_margin = margins["clean"], margins["partner"]
    lost = {name: clean - values for name, values in margins.items() if name in EFFECTS}
    lost["denoising_patch"] = margins["denoising_patch"] - partner_margin
    lost["edge_specificity"] = lost["edge_ablation"] - lost["distractor_edge_ablation"]
    ones, total = np.ones_like(clean), clean - partner_margin
    ratios = {"margin": (clean, ones), "answer_difference": (total / 2, ones)}
    if total.any():
        ratios |= {name: (lost[name], total) for name in EFFECTS}
    sums = np.array(list(ratios.values())).reshape(len(ratios), 2, -1, 2).sum(-1)  # [ratios, 2, pairs]

    def statistic(weights: np.ndarray) -> np.ndarray:
        above, below = np.einsum("bn,rsn->sbr", weights, sums, optimize=True)
        return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)

    values = statistic(np.ones((1, sums.shape[-1])))[0]
    intervals = bootstrap_interval(statistic, story_designs(story_clusters(pairs[::2])), n_bootstrap, seed).T
    distinguishes = intervals[1, 0] > ROUNDING
    entry: dict[str, float | list[float] | None] = dict.fromkeys((*EFFECTS, *(f"{name}_interval" for name in EFFECTS)))
    for name, value, interval in zip(ratios, values, intervals, strict=True):
        if distinguishes or name not in EFFECTS:
            entry |= {name: float(value), f"{name}_interval": interval.tolist()}
    return entry
