"""Rules that know nothing of reference, scored exactly as heads are."""

from collections.abc import Callable, Sequence

import numpy as np

from data.links import LinkItem
from probe.scores import Scores, score


def nearest(item: LinkItem) -> float:
    """Prefer the candidate mentioned last."""
    return float(np.sign(max(item.antecedents)[-1] - max(item.distractors)[-1]))


def first(item: LinkItem) -> float:
    """Prefer the candidate mentioned first."""
    return float(np.sign(min(item.distractors)[0] - min(item.antecedents)[0]))


def uniform(item: LinkItem) -> float:
    """Prefer none."""
    return 0.0


BASELINES: dict[str, Callable[[LinkItem], float]] = {"nearest": nearest, "first": first, "uniform": uniform}


def score_baseline(rule: Callable[[LinkItem], float], items: Sequence[LinkItem]) -> Scores:
    """Score a rule on whole blocks of items."""
    preference = np.array([rule(item) for item in items])
    return score(preference, preference, (preference > 0).astype(float))
