"""How the model answers at the payoff, between two oracles: with and without knowledge of the antecedent."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from data.links import ORACLES, LinkItem
from model.observe import ObservableModel
from probe.batches import text_batches
from probe.config import ProbeConfig
from probe.interventions import answer_ids, answer_margins
from probe.items import UNDECIDED
from probe.results import BehaviourResult
from probe.statistics import count_clusters, mean_interval, story_clusters, story_designs


def behaviour_study(model: ObservableModel, items: Sequence[LinkItem], config: ProbeConfig) -> list[BehaviourResult]:
    """Return accuracy and loss at every payoff, by family, level, site and hold-out.

    A payoff that several links of a story share counts once, at the first site where it is decided.
    """
    first: dict[tuple[str, int | None], LinkItem] = {}
    for item in items:
        is_undecided = any(question.matches(item) for question in UNDECIDED)
        if item.payoff is not None and not is_undecided:
            first.setdefault((item.text, item.payoff), item)
    answers = list(first.values())
    margins, losses = measure_payoffs(model, answers, config.tokens_per_batch)

    # The groups come in the order of their first items.
    groups: dict[tuple[str, str, str, str], list[int]] = defaultdict(list)
    for i, item in enumerate(answers):
        groups[item.family, item.level, item.site, item.holdout].append(i)
    results = []
    for index in groups.values():
        group = [answers[i] for i in index]
        results.append(_group_result(group, margins[index], losses[index], config))
    return results


def _group_result(
    items: Sequence[LinkItem], margins: np.ndarray, losses: np.ndarray, config: ProbeConfig
) -> BehaviourResult:
    """Return the result of items of one family, level, site and hold-out; margins and losses are [N]."""
    clusters = story_clusters(items)
    right = np.heaviside(margins, 0.5)  # a tie counts half
    low, high = mean_interval(right, story_designs(clusters), config.n_bootstrap, config.seed).tolist()
    loss = float(losses.mean())
    oracles = oracle_losses(items)
    return BehaviourResult(
        family=items[0].family,
        level=items[0].level,
        site=items[0].site,
        holdout=items[0].holdout,
        n=len(items),
        clusters=count_clusters(clusters),
        accuracy=float(right.mean()),
        interval=(low, high),
        resolved_share=resolved_share(loss, oracles),
        loss=loss,
        bayes_loss=oracles.get("bayes"),
        blind_loss=oracles.get("blind"),
    )


def measure_payoffs(
    model: ObservableModel, items: Sequence[LinkItem], tokens_per_batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the margin log p(answers) - log p(foils) and the loss -log p(target), [N] each, in nats at the payoff.

    Both are nan for items without a payoff.
    """
    # The texts up to the payoff, whose next token is the answer.
    margins, losses = np.full((2, len(items)), np.nan)
    with_payoff: list[int] = []
    texts: list[tuple[int, ...]] = []
    for i, item in enumerate(items):
        if item.payoff is not None:
            with_payoff.append(i)
            texts.append(item.tokens[: item.payoff + 1])

    for members, rows, tokens, payoffs in text_batches(texts, tokens_per_batch):
        index = [with_payoff[i] for i in members]
        batch = [items[i] for i in index]
        logits = model.logits(tokens.to(model.device), payoffs.to(model.device))[rows]  # [N, V]
        answers, foils = answer_ids(batch)
        targets = torch.tensor([item.target for item in batch], device=logits.device)
        of_batch = answer_margins(logits, answers.to(logits.device), foils.to(logits.device))
        margins[index] = of_batch.cpu().numpy()
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
