"""Means and ratios with their 95 % intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.config import ProbeConfig
from probe.statistics import Design, bootstrap_interval, mean_interval


@dataclass(frozen=True, slots=True)
class Estimate:
    """A measured value and its 95 % interval."""

    value: float
    low: float
    high: float


def estimate_mean(values: np.ndarray, designs: Sequence[Design], config: ProbeConfig) -> Estimate:
    """Returns the mean of values [N] with its interval; `designs` are those of `mean_interval`."""
    low, high = mean_interval(values, designs, config.n_bootstrap, config.seed).tolist()
    return Estimate(float(values.mean()), low, high)


def estimate_ratio(
    numerator: np.ndarray, denominator: np.ndarray, designs: Sequence[Design], config: ProbeConfig
) -> Estimate:
    """Returns the ratio of the means of two values [N] with its interval; nan if the denominator is 0 everywhere."""

    def statistic(weights: np.ndarray) -> np.ndarray:
        below = weights @ denominator
        return np.divide(weights @ numerator, below, out=np.full(len(weights), np.nan), where=below != 0)

    if not denominator.any():
        return Estimate(float("nan"), float("nan"), float("nan"))
    low, high = bootstrap_interval(statistic, designs, config.n_bootstrap, config.seed).tolist()
    return Estimate(float(statistic(np.ones((1, len(numerator))))[0]), low, high)
