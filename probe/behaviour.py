"""What the model itself expects at the payoff, beside readers who know exactly one thing about reference."""

from collections.abc import Sequence

import numpy as np
import torch

from data.links import ORACLES, LinkItem
from model.loss import token_losses
from model.transformer import Transformer, streams
from probe.readout import text_batches


@torch.no_grad()
def read_losses(model: Transformer, items: Sequence[LinkItem], tokens_per_batch: int) -> np.ndarray:
    """Return [N] -log p(target) in nats at each item's payoff, nan for items without one; `model` in eval mode."""
    losses = np.full(len(items), np.nan)
    asked = [i for i, item in enumerate(items) if item.payoff is not None]
    device = model.token_embedding.weight.device
    for members, place, tokens in text_batches([items[i].tokens for i in asked], tokens_per_batch):
        some = [items[asked[i]] for i in members]
        *_, stream = streams(model, tokens.to(device))
        payoffs = torch.tensor([item.payoff for item in some], device=device)
        targets = torch.tensor([item.target for item in some], device=device)
        logits = model.unembed(stream[torch.tensor(place, device=device), payoffs])  # [N, V]
        losses[[asked[i] for i in members]] = token_losses(logits[:, None], targets[:, None])[:, 0].cpu().numpy()
    return losses


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
