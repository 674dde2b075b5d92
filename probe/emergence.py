"""A small probe to be run while training: has a head begun to link, and is it more than luck?"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.links import LinkItem
from model.transformer import Transformer
from probe.readout import read_rows
from probe.scores import best_head, score
from probe.significance import luck_line


@dataclass(frozen=True, slots=True)
class Glimpse:
    """One family at one site, at one step."""

    name: str  # as in "V_S1"
    layer: int
    head: int
    sel1: float  # of the head that is best on these very items
    dd: float
    luck: float  # Sel@1 that the best of as many know-nothing heads reaches in 1 of 20 cases
    heads: np.ndarray  # [L, H] Sel@1 of each


def choose_items(items: Sequence[LinkItem], n_sequences: int) -> dict[str, list[LinkItem]]:
    """Return the items of V at S1 and R at S2, about `n_sequences` together, in whole blocks."""
    chosen = {}
    for name, family, site, share in (("V_S1", "V", "S1", 0.75), ("R_S2", "R", "S2", 0.25)):
        some = [item for item in items if (item.family, item.site, item.holdout) == (family, site, "iid")]
        chosen[name] = some[: int(n_sequences * share) // 4 * 4]
    return {name: some for name, some in chosen.items() if some}


def glimpse(model: Transformer, items: dict[str, list[LinkItem]], tokens_per_batch: int) -> list[Glimpse]:
    """Probe `model` (in eval mode) on the items of `choose_items`."""
    found = []
    for name, some in items.items():
        rows = read_rows(model, some, tokens_per_batch)
        scores = score(rows.preference, rows.selects, rows.strict)
        layer, head = best_head(scores)
        sel1, dd = scores.sel1.mean(axis=0), scores.dd.mean(axis=0)
        templates = np.array([item.template for item in some[::4]])
        pairs = np.array([item.pair for item in some[::4]])
        luck = luck_line(scores.sel1, (templates, pairs), centre=0.5, n_flips=400, seed=0)
        found.append(Glimpse(name, layer, head, float(sel1[layer, head]), float(dd[layer, head]), luck, sel1))
    return found
