"""What the head that decides the next pronoun does right after one: where it looks, and what its output raises.

Nothing in the next words depends on whom "She" means, so this describes a head and tests no claim about the model's
answers. Axes: N prefixes (`probe.natural`).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from data.links import LinkItem, Word
from model.observe import ObservableModel
from probe.batches import text_batches
from probe.config import ProbeConfig
from probe.natural import MIN_PREFIXES, PrefixItems
from probe.results import AfterPronoun, Head
from probe.study import estimate_mean


def after_pronoun(model: ObservableModel, items: PrefixItems, head: Head, config: ProbeConfig) -> AfterPronoun | None:
    """Measure a head at the pronoun; None with fewer than MIN_PREFIXES prefixes."""
    n = len(items.prefixes)
    if n < MIN_PREFIXES:
        return None

    # Where it attends. A weight can underflow, or lie outside a window.
    cells = items.cells["pronoun"]  # both readings of each prefix in turn
    weights, streams = observe_at_pronoun(model, cells, head, config.tokens_per_batch)  # [2 N, 2], [2 N, D]
    log_weights = np.log(np.maximum(weights, np.finfo(np.float32).tiny))
    log_ratio = log_weights[:, 0] - log_weights[:, 1]
    contrast = log_ratio.reshape(-1, 2).mean(axis=1)  # [N]
    test = items.sample(contrast[:, None]).test(config, two_sided=True)

    # What its output raises.
    raised = output_effects(model, cells, streams, head, config.tokens_per_batch)  # [N, 2]
    is_known = bool(np.isfinite(raised).all())
    designs = items.designs
    return AfterPronoun(
        n=n,
        contrast=estimate_mean(contrast, designs, config),
        p=float(test.p[0]),
        raises_pronoun=estimate_mean(raised[:, 0], designs, config) if is_known else None,
        raises_name=estimate_mean(raised[:, 1], designs, config) if is_known else None,
    )


def observe_at_pronoun(
    model: ObservableModel, cells: Sequence[LinkItem], head: Head, tokens_per_batch: int
) -> tuple[np.ndarray, Tensor]:
    """Return a head's weights on antecedents and distractors at the query [N, 2] and the final stream there [N, D]."""
    weights = np.full((len(cells), 2), np.nan)
    streams: list[Tensor | None] = [None] * len(cells)
    texts = [cell.tokens[: cell.query + 1] for cell in cells]
    for members, rows, tokens, site in text_batches(texts, tokens_per_batch):
        site_pass = model.site_pass(tokens.to(model.device), site.to(model.device))
        of_head = site_pass.records()[head.layer].weights[:, head.head]  # [B, T]
        final = site_pass.final_stream().float()  # [B, D]
        for member, row in zip(members, rows, strict=True):
            streams[member] = final[row]
            for side, words in enumerate((cells[member].antecedents, cells[member].distractors)):
                weights[member, side] = float(of_head[row, _positions(words)].sum())
    return weights, torch.stack([stream for stream in streams if stream is not None])


@torch.no_grad()
def output_effects(
    model: ObservableModel, cells: Sequence[LinkItem], streams: Tensor, head: Head, tokens_per_batch: int
) -> np.ndarray:
    """Return what a head's output raises if it attends to one of two entities, [N, 2] in nats per unit of attention.

    `cells` are both readings of each prefix in turn, and `streams` [2 N, D] the final residual streams at their
    queries; the first readings are used. The output of a mention is W_O W_V x (Elhage et al. 2021), pulled back through
    the final norm. Columns: the pronoun of the attended entity against the other pronoun; its first token against that
    of the other entity. Both are means over the two entities; nan where the model gives no weights.
    """
    layer, number = head
    first = cells[::2]
    second = cells[1::2]
    effects = np.full((len(first), 2), np.nan)
    weight = model.head_weights(layer).output  # [H, D, K]
    if weight is None:
        return effects

    # The directions of both pronouns and of both names, as the final norm sees them.
    unembedding = model.unembedding().float()
    directions = []
    for cell, other in zip(first, second, strict=True):
        pronouns = unembedding[cell.tokens[cell.query]] - unembedding[other.tokens[other.query]]
        names = unembedding[_first_token(cell, cell.antecedents)] - unembedding[_first_token(cell, cell.distractors)]
        directions.append(torch.stack((pronouns, names)))
    pulled = model.final_norm_pullback(torch.stack(directions), streams[::2, None])  # [N, 2, D]
    if pulled is None:
        return effects

    # Both directions point to the first entity, so what the second one writes counts against them.
    texts = [cell.tokens[: cell.query + 1] for cell in first]
    for members, rows, tokens, _ in text_batches(texts, tokens_per_batch):
        values = model.record(tokens.to(model.device))[layer].values[:, number].float()  # [B, T, K]
        written = values @ weight[number].float().T  # [B, T, D]
        for member, row in zip(members, rows, strict=True):
            cell = first[member]
            by_first = pulled[member] @ _mean_output(written[row], cell.antecedents)  # [2]
            by_second = pulled[member] @ _mean_output(written[row], cell.distractors)
            effects[member] = ((by_first - by_second) / 2).cpu().numpy()
    return effects


def _first_token(cell: LinkItem, words: Sequence[Word]) -> int:
    """Return the first token of the last mention."""
    return cell.tokens[words[-1][0]]


def _mean_output(written: Tensor, words: Sequence[Word]) -> Tensor:
    """Return the mean [D] of what a head would write from the tokens of some words; `written` is [T, D]."""
    return written[_positions(words)].mean(dim=0)


def _positions(words: Sequence[Word]) -> list[int]:
    positions: list[int] = []
    for word in words:
        positions += word
    return positions
