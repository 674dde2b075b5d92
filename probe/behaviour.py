"""What the model itself expects at the payoff, beside readers who know exactly one thing about reference."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from data.links import ORACLES, LinkItem
from model.observe import TransformerView
from model.transformer import Transformer
from probe.scores import margins_of, payoff_logits
from training.evaluate import token_losses


def read_losses(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> np.ndarray:
    """Return [N] -log p(target) in nats at each item's payoff, nan for items without one; `model` in eval mode."""
    losses = np.full(len(items), np.nan)
    for places, logits in payoff_logits(TransformerView(model), items, tokens_per_batch):
        losses[places] = _losses([items[i] for i in places], logits)
    return losses


def read_payoffs(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `read_margins` and `read_losses` [N] of one pass over the texts."""
    margins, losses = np.full((2, len(items)), np.nan)
    for places, logits in payoff_logits(TransformerView(model), items, tokens_per_batch):
        some = [items[i] for i in places]
        margins[places], losses[places] = margins_of(some, logits), _losses(some, logits)
    return margins, losses


def _losses(items: Sequence[LinkItem], logits: Tensor) -> np.ndarray:
    targets = torch.tensor([item.target for item in items], device=logits.device)
    found: np.ndarray = token_losses(logits[:, None], targets[:, None])[:, 0].cpu().numpy()
    return found


def surprisals(items: Sequence[LinkItem]) -> np.ndarray:
    """Return [N, ORACLES] -log p(target) in nats by each oracle, nan where it is not known."""
    unknown = (np.nan,) * len(ORACLES)
    return np.array([item.surprisal or unknown for item in items]).reshape(-1, len(ORACLES))


def oracle_losses(surprisal: np.ndarray) -> dict[str, float]:
    """Return each oracle's mean loss in nats, from [N, ORACLES]; none where any is unknown."""
    means = surprisal.mean(axis=0) if len(surprisal) else np.full(len(ORACLES), np.nan)
    return {} if np.isnan(means).any() else dict(zip(ORACLES, means.tolist(), strict=True))


def rho(nll: np.ndarray, surprisal: np.ndarray) -> float | None:
    """Return (H_blind - NLL) / (H_blind - H_bayes): 0 reference is ignored, 1 optimal, below 0 misled.

    Args:
        nll: [N] of the model, in nats, of the same items.
        surprisal: [N, ORACLES] in nats.

    Returns:
        None where a loss is unknown, or where knowing the antecedent changes nothing.

    """
    oracles = oracle_losses(surprisal)
    if not oracles or np.isnan(nll).any() or oracles["blind"] == oracles["bayes"]:
        return None
    return float((oracles["blind"] - nll.mean()) / (oracles["blind"] - oracles["bayes"]))
