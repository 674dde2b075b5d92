"""Does the model's answer depend on one head's link? One edit of one head, and the answer margin is measured again.

    M = log p(answers) - log p(foils) at the payoff, in nats
    effect of an edit = mean(M_clean - M_edited) / mean(M_clean - M_partner)

M_partner is the margin of the item's own answers after the partner's text. An effect of 1 removes the whole difference
between the partners, 0 changes nothing. Later layers may compensate for an ablated head (self-repair, McGrath et al.
2023), so ablation effects are lower bounds. Outputs taken from the partner stay in distribution; zero ablation does not
(Zhang & Nanda 2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem
from model.observe import HeadEdit, ObservableModel
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
from probe.results import CausalResult, ControlHeads
from probe.statistics import bootstrap_interval, story_clusters, story_designs

MAX_CONTROL_HEADS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EditedMargins:
    """The answer margins M of N items in nats, unedited and under each edit of a head, each [N]."""

    clean: np.ndarray
    partner: np.ndarray  # margins of the item's answers after the partner's text
    attention_swap: np.ndarray
    edge_ablation: np.ndarray
    distractor_edge_ablation: np.ndarray
    head_effect: np.ndarray
    zero_ablation: np.ndarray
    denoising_patch: np.ndarray
    controls: np.ndarray  # [N, n] under the attention swap of n other heads of the layer


def causal_study(
    model: ObservableModel,
    items: Sequence[LinkItem],
    layer: int,
    head: int,
    *,
    tokens_per_batch: int,
    n_bootstrap: int,
    seed: int,
) -> CausalResult | None:
    """Return the causal effects of one head's link with their intervals, None if no item has a partner.

    The items are whole blocks of one question and hold-out. `seed` decides the resamplings and the control heads.

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
    pairs, n_dropped = pair_up(items)
    if not pairs:
        return None
    others = np.delete(np.arange(model.n_head), head)
    drawn = np.random.default_rng(seed).permutation(others)[:MAX_CONTROL_HEADS]
    controls = np.sort(drawn).tolist()
    margins = measure_margins(model, pairs, layer, head, controls, tokens_per_batch)
    effects = causal_effects(margins, pairs, n_bootstrap, seed)

    # The same ratio for the other heads; it is known if this head's is.
    swaps = None
    if effects["attention_swap"] is not None:
        lost = margins.clean[:, None] - margins.controls  # [N, n]
        total = margins.clean - margins.partner
        swaps = ControlHeads(controls, (lost.sum(axis=0) / total.sum()).tolist())
    return CausalResult(
        n_pairs=len(pairs) // 2,
        n_dropped=n_dropped,
        n_frames=len({item.frame for item in pairs}),
        controls=swaps,
        **effects,
    )


def measure_margins(
    model: ObservableModel, pairs: Sequence[LinkItem], layer: int, head: int, controls: list[int], tokens_per_batch: int
) -> EditedMargins:
    """Return the margins of the items with every edit of a head; `controls` are the other heads."""

    def measure(batch: PairBatch, streams: list[Tensor]) -> dict[str, Tensor]:
        def margins_of(logits: Tensor) -> Tensor:
            return answer_margins(logits, batch.answers, batch.foils)

        def margins_with(edit: HeadEdit) -> Tensor:
            return edited_margins(model, batch, streams, edit)

        # Logits [B, V] at the payoff, unedited and with this head's output of the partner's text.
        from_partner = HeadEdit(layer, head, output=partner)
        clean = model.logits(batch.tokens, batch.payoff, (), streams)
        resampled = model.logits(batch.tokens, batch.payoff, (from_partner,), streams)

        swaps = [margins_with(swap_edges(batch, layer, control)) for control in controls]
        return {
            "clean": margins_of(clean),
            "partner": margins_of(partner(clean)),
            "attention_swap": margins_with(swap_edges(batch, layer, head)),
            "edge_ablation": margins_with(cut_edge(batch.query, layer, head, batch.antecedent)),
            "distractor_edge_ablation": margins_with(cut_edge(batch.query, layer, head, batch.distractor)),
            "head_effect": margins_of(resampled),
            "zero_ablation": margins_with(HeadEdit(layer, head, output=torch.zeros_like)),
            # In the partner's row the head has this item's output.
            "denoising_patch": margins_of(partner(resampled)),
            "controls": torch.stack(swaps, dim=1) if swaps else clean[:, :0],
        }

    return EditedMargins(**measure_pairs(model, pairs, tokens_per_batch, measure))


def causal_effects(margins: EditedMargins, pairs: Sequence[LinkItem], n_bootstrap: int, seed: int) -> dict[str, Any]:
    """Return every effect and its interval, as the fields of `CausalResult`.

    Effects are ratios of means, so all of them are resampled together, by pairs of items.
    """
    # What each edit takes from the margin, or gives back to that of the partner, [N] in nats.
    clean = margins.clean
    lost = {
        "attention_swap": clean - margins.attention_swap,
        "edge_ablation": clean - margins.edge_ablation,
        "distractor_edge_ablation": clean - margins.distractor_edge_ablation,
        "edge_specificity": (clean - margins.edge_ablation) - (clean - margins.distractor_edge_ablation),
        "head_effect": clean - margins.head_effect,
        "zero_ablation": clean - margins.zero_ablation,
        "denoising_patch": margins.denoising_patch - margins.partner,
    }

    # Numerator and denominator of every result, summed over the two items of each pair: [results, 2, pairs].
    ones = np.ones_like(clean)
    total = clean - margins.partner
    ratios = {"margin": (clean, ones), "answer_difference": (total / 2, ones)}
    if total.any():
        ratios |= {name: (values, total) for name, values in lost.items()}
    sums = np.array(list(ratios.values())).reshape(len(ratios), 2, -1, 2).sum(-1)

    def statistic(weights: np.ndarray) -> np.ndarray:
        above, below = np.einsum("bn,rsn->sbr", weights, sums, optimize=True)
        return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)

    values = statistic(np.ones((1, sums.shape[-1])))[0]
    designs = story_designs(story_clusters(pairs[::2]))
    intervals = bootstrap_interval(statistic, designs, n_bootstrap, seed).T  # [results, 2]

    # Shares of a difference that may be 0 mean nothing.
    distinguishes = intervals[list(ratios).index("answer_difference"), 0] > PASS_ERROR
    effects: dict[str, Any] = dict.fromkeys((*lost, *(f"{name}_interval" for name in lost)))
    for name, value, (low, high) in zip(ratios, values.tolist(), intervals.tolist(), strict=True):
        if distinguishes or name not in lost:
            effects[name] = value
            effects[f"{name}_interval"] = (low, high)
    return effects
