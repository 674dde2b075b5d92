"""How far luck alone reaches: intervals over clusters, and the best of many heads that know nothing."""

from collections.abc import Sequence

import numpy as np


def cluster_interval(values: np.ndarray, clusters: np.ndarray, n_bootstrap: int, seed: int) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of a mean, resampling whole clusters.

    Args:
        values: [N] one score per block.
        clusters: [N] the cluster of each; blocks of one cluster are not independent of each other.
        n_bootstrap: resamplings.
        seed: of the resamplings.

    """
    names, index = np.unique(clusters, return_inverse=True)
    sums = np.bincount(index, weights=values, minlength=len(names))
    sizes = np.bincount(index, minlength=len(names))
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=n_bootstrap)  # [B, clusters]
    low, high = np.percentile(drawn @ sums / (drawn @ sizes), (2.5, 97.5))
    return float(low), float(high)


def luck_line(values: np.ndarray, clusterings: Sequence[np.ndarray], centre: float, n_flips: int, seed: int) -> float:
    """Return what the best of these heads would reach in 95 % of cases if none of them knew anything.

    Under that hypothesis a cluster's mean is as likely to lie as far below `centre` as above it, so signs are
    flipped by whole clusters and the maximum over heads is taken each time (max-T, Westfall & Young 1993). A head
    may have a taste for a template or for a pair of words and still know nothing: of several ways to cluster, the one
    that lets luck reach farthest counts.

    Args:
        values: [N, ...] one score per block and head.
        clusterings: each [N], the cluster of each block.
        centre: the score of knowing nothing, 0.5 for Sel@1.
        n_flips: sign flips drawn for each clustering.
        seed: of the flips.

    """
    centred = values.reshape(len(values), -1) - centre
    lines = []
    for clusters in clusterings:
        names, index = np.unique(clusters, return_inverse=True)
        sums = np.zeros((len(names), centred.shape[1]))
        np.add.at(sums, index, centred)
        signs = np.random.default_rng(seed).choice((-1.0, 1.0), size=(n_flips, len(names)))
        lines.append(float(np.percentile((signs @ sums).max(axis=1) / len(values), 95)))
    return centre + max(lines)
