"""Intervals of shares over items that are not independent of each other."""

import numpy as np

from probe.significance import CONFIDENCE, resampled_means

MIN_CLUSTERS = 5  # below it a resampling of clusters says nothing: with four, 1 in 256 draws is of one alone


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `n` independent items (Wilson 1927); a tie may have counted half."""
    from scipy import stats  # a second to import, and training needs none of it

    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)))
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered(values: np.ndarray, clusters: np.ndarray, n_bootstrap: int, seed: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean, whole clusters being resampled; None below MIN_CLUSTERS.

    Quantiles are those of the expanded percentile interval (Hesterberg 2015, section 4.3), since the plain one is too
    narrow with few clusters.

    Args:
        values: [N] one number per item.
        clusters: [N] the cluster of each: a document, a word.
        n_bootstrap: resamplings.
        seed: of the resamplings.

    """
    from scipy import stats

    n = len(np.unique(clusters))
    if n < MIN_CLUSTERS:
        return None
    tail = stats.norm.cdf(-np.sqrt(n / (n - 1)) * stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
    low, high = np.quantile(resampled_means(values, clusters, n_bootstrap, seed), (tail, 1 - tail))
    return float(low), float(high)


def widest(*intervals: tuple[float, float] | None) -> tuple[float, float]:
    """Return the widest of some intervals; what is None is passed over."""
    return max((one for one in intervals if one is not None), key=lambda one: one[1] - one[0])
