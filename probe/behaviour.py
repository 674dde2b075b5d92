"""How the model answers at the payoff, between two oracles: with and without knowledge of the antecedent."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from data.links import ORACLES, LinkItem
from model.observe import ObservableModel
from probe.config import ProbeConfig
from probe.interventions import answer_ids, answer_margins
from probe.items import UNDECIDED
from probe.scores import text_batches
from probe.statistics import mean_interval, story_clusters, story_designs


def behaviour_study(model: ObservableModel, items: Sequence[LinkItem], config: ProbeConfig) -> list[dict[str, Any]]:
    """Return accuracy and loss at every payoff, by family, level, site and hold-out.

    A payoff that several links of a story share counts once, at the first site where it is decided.
    """
    first: dict[tuple[str, int | None], LinkItem] = {}
    for item in items:
        if item.payoff is not None and not any(question.matches(item) for question in UNDECIDED):
            first.setdefault((item.text, item.payoff), item)
    answers = list(first.values())
    margins, losses = read_payoffs(model, answers, config.tokens_per_batch)
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for i, item in enumerate(answers):
        groups[item.family, item.level, item.site, item.holdout].append(i)
    return [
        dict(zip(("family", "level", "site", "holdout"), group, strict=True))
        | _summary([answers[i] for i in index], margins[index], losses[index], config)
        for group, index in groups.items()
    ]


def _summary(items: Sequence[LinkItem], margins: np.ndarray, losses: np.ndarray, config: ProbeConfig) -> dict[str, Any]:
    clusters = story_clusters(items)
    right = np.heaviside(margins, 0.5)  # a tie counts half
    bounds = oracle_losses(items)
    return {
        "n": len(items),
        "clusters": {name: len(set(labels)) for name, labels in clusters.items()},
        "accuracy": float(right.mean()),
        "interval": mean_interval(right, story_designs(clusters), config.n_bootstrap, config.seed).tolist(),
        "resolved_share": resolved_share(float(losses.mean()), bounds),
        "loss": float(losses.mean()),
        "bayes_loss": bounds.get("bayes"),
        "blind_loss": bounds.get("blind"),
    }


def read_payoffs(
    model: ObservableModel, items: Sequence[LinkItem], tokens_per_batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the margin log p(answers) - log p(foils) and the loss -log p(target), [N] each, in nats at the payoff.

    Both are nan for items without a payoff.
    """
    margins, losses = np.full((2, len(items)), np.nan)
    texts = {i: item.tokens[: item.payoff + 1] for i, item in enumerate(items) if item.payoff is not None}
    with_payoff = list(texts)
    for members, rows, tokens, payoffs in text_batches(list(texts.values()), tokens_per_batch):
        index = [with_payoff[i] for i in members]
        batch = [items[i] for i in index]
        logits = model.logits(tokens.to(model.device), payoffs.to(model.device))[rows]
        targets = torch.tensor([item.target for item in batch], device=logits.device)
        sides = (ids.to(logits.device) for ids in answer_ids(batch))
        margins[index] = answer_margins(logits, *sides).cpu().numpy()
        losses[index] = F.cross_entropy(logits, targets, reduction="none").cpu().numpy()
    return margins, losses


def oracle_losses(items: Sequence[LinkItem]) -> dict[str, float]:
    """Return the mean loss of each oracle in nats; empty if it is not known for every item."""
    if not items or not all(item.surprisal for item in items):
        return {}
    means = np.array([item.surprisal for item in items]).mean(axis=0)
    return dict(zip(ORACLES, means.tolist(), strict=True))


def resolved_share(loss: float, oracles: dict[str, float]) -> float | None:
    """Return (blind loss - loss) / (blind loss - Bayes loss).

    1: as good as the Bayes-optimal predictor; 0: as good as if the model ignored the antecedent; below 0: worse.
    None if a loss is not known or the antecedent makes no difference to it.
    """
    if not oracles or np.isnan(loss) or oracles["blind"] == oracles["bayes"]:
        return None
    return (oracles["blind"] - loss) / (oracles["blind"] - oracles["bayes"])
