"""How far luck alone reaches: intervals over clusters, and the best of many heads that know nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from data.links import LinkItem

CONFIDENCE = 0.95  # of every interval


MIN_SEEDS = 5  # below it nothing is said about models trained in one way


_RELATIVE_ZERO = 1e-12  # of a sum of squares: what rounding leaves of a variance that is none


def clusters_of(items: Sequence[LinkItem]) -> dict[str, np.ndarray]:
    """Return the template, the first word, the second word and the pair of each item, each [N]; of blocks, give one.

    These are the ways in which items are not independent: a head that knows nothing has a taste for a frame, and for
    each single word together with a pronoun, so thousands of items may rest on a handful of words.
    """
    words = [item.pair.split() for item in items]
    return {
        "templates": np.array([item.template for item in items]),
        "first_words": np.array([one[0] for one in words]),
        "second_words": np.array([one[-1] for one in words]),
        "pairs": np.array([item.pair for item in items]),
    }


def cluster_interval(values: np.ndarray, clusters: np.ndarray, n_bootstrap: int, seed: int) -> tuple[float, float]:
    """Return the 95 % percentile-bootstrap interval of a mean, resampling whole clusters.

    Args:
        values: [N] one score per block.
        clusters: [N] the cluster of each; blocks of one cluster are not independent of each other.
        n_bootstrap: resamplings.
        seed: of the resamplings.

    """
    low, high = np.percentile(resampled_means(values, clusters, n_bootstrap, seed), (2.5, 97.5))
    return float(low), float(high)


def resampled_means(values: np.ndarray, clusters: np.ndarray, n_bootstrap: int, seed: int) -> np.ndarray:
    """Return [n_bootstrap] means of `values` [N], each over as many whole clusters, drawn with replacement."""
    names, index = np.unique(clusters, return_inverse=True)
    sums = np.bincount(index, weights=values, minlength=len(names))
    sizes = np.bincount(index, minlength=len(names))
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=n_bootstrap)  # [B, clusters]
    means: np.ndarray = drawn @ sums / (drawn @ sizes)
    return means


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


@dataclass(frozen=True, slots=True)
class MaxT:
    """What max-T sign flips say of every head."""

    p: np.ndarray  # [...] corrected for the search over all heads, one-sided
    n_clusters: int  # of the clustering with the fewest
    smallest_p: float  # that no head could beat with so few clusters, however good


def max_t_p(values: np.ndarray, clusterings: Sequence[np.ndarray], centre: float, n_flips: int, seed: int) -> MaxT:
    """Test that each head's mean is above `centre`, corrected for having looked at all of them.

    p_h = (1 + #{max T* >= T_h}) / (B + 1): signs are flipped by whole clusters and the maximum of T* over heads is
    taken (Westfall & Young 1993). Where all 2^n sign patterns are no more than `n_flips`, they are enumerated, the
    identity among them, and p_h = #{max T* >= T_h} / 2^n. The largest p over the clusterings counts.

    T is studentised, so that a head whose scores are large and erratic does not set the bar for the others. The
    observed T is divided by the root of the SUM of the variances that each clustering gives the mean, T* by the
    one of its own: where blocks share templates and words the variances add, and flips of one clustering alone
    see only their part. (Largest p of plain one-way flips, measured with tastes for 20 + 20 words: 30 % false
    positives at .05; so 1.7 %.) The sum counts what two clusterings share twice and so errs to the safe side
    (Cameron, Gelbach & Miller 2011, without the subtraction, which can go below zero). With one clustering it
    is the plain exact test.

    Args:
        values: [N_b, ...] one score per block and head.
        clusterings: each [N_b], the cluster of each block.
        centre: the score of knowing nothing. 0 for DD. 1/2 for F2: a head that knows nothing gets both pronouns
            of a prefix right at most as often as both wrong, so at most in half of the cases.
        n_flips: B.
        seed: of the flips.

    """
    centred = values.reshape(len(values), -1).astype(float) - centre
    sums = [_cluster_sums(centred, clusters) for clusters in clusterings]
    n_clusters = min(len(sizes) for _, sizes in sums)
    if n_clusters < 2:
        return MaxT(np.ones(values.shape[1:]), n_clusters, 1.0)
    whole = [np.ones((1, len(sizes))) for _, sizes in sums]
    variance = sum(_flipped(*one, plus)[1][0] for one, plus in zip(sums, whole, strict=True))
    smallest = max(_smallest_p(len(sizes), n_flips) for _, sizes in sums)
    p = np.zeros(centred.shape[1])
    for one in sums:
        signs = _signs(len(one[1]), n_flips, seed)
        totals, spread = _flipped(*one, signs)
        reached = (totals / np.sqrt(spread)).max(axis=1)  # [B]
        observed = centred.sum(axis=0) / np.sqrt(np.maximum(variance, _floor(one[0])))
        hits = (reached[:, None] >= observed - 1e-9 * np.abs(observed)).sum(axis=0)
        exact = len(signs) == 2 ** len(one[1])
        p = np.maximum(p, hits / len(signs) if exact else (1 + hits) / (1 + len(signs)))
    return MaxT(p.reshape(values.shape[1:]), n_clusters, smallest)


def _cluster_sums(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum [C, heads] and the size [C] of each cluster of values [N_b, heads]."""
    names, index = np.unique(clusters, return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, index, values)
    return sums, np.bincount(index).astype(float)


def _flipped(sums: np.ndarray, sizes: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (total, its variance), both [B, heads], under each row of signs [B, C]; the variance is never 0.

    The variance is that of a sum of C independent clusters about their common mean m: C/(C-1) sum (s S - n m)^2.
    """
    totals = signs @ sums
    mean = totals / sizes.sum()
    squares = (sums**2).sum(axis=0) - 2 * mean * (signs @ (sizes[:, None] * sums)) + mean**2 * (sizes**2).sum()
    return totals, np.maximum(squares * len(sizes) / (len(sizes) - 1), _floor(sums))


def _floor(sums: np.ndarray) -> np.ndarray:
    return np.maximum(_RELATIVE_ZERO * (sums**2).sum(axis=0), np.finfo(float).tiny)


def _signs(n_clusters: int, n_flips: int, seed: int) -> np.ndarray:
    """Return every pattern of signs [2^C, C] where those are few enough, else `n_flips` drawn ones [B, C]."""
    if n_clusters < 60 and 2**n_clusters <= n_flips:  # beyond 60 a 64-bit integer is too short
        return 1.0 - 2.0 * ((np.arange(2**n_clusters)[:, None] >> np.arange(n_clusters)) & 1)
    return np.random.default_rng(seed).choice((-1.0, 1.0), size=(n_flips, n_clusters))


def _smallest_p(n_clusters: int, n_flips: int) -> float:
    return max(2.0**-n_clusters, 1 / (n_flips + 1))


def two_way_interval(
    values: np.ndarray, rows: np.ndarray, columns: Sequence[np.ndarray], n_bootstrap: int, seed: int
) -> np.ndarray:
    """Return the 95 % interval [2, ...] of means over blocks that share a row and a column of a design.

    The pigeonhole bootstrap (Owen 2007): rows and columns are resampled independently and a block weighs as often as
    both were drawn together. Of several ways to name the columns the widest interval counts: (template x pair) says
    nothing of how few words the pairs are made of. Quantiles are those of the expanded percentile interval (Hesterberg
    2015, section 4.3), without which six clusters cover 87 % instead of 95 %. nan where a clustering has one cluster.

    Args:
        values: [N_b, ...] scores per block.
        rows: [N_b] as the template of each block.
        columns: each [N_b], as the pair, the first and the second word of each block.
        n_bootstrap: resamplings.
        seed: of the resamplings.

    """
    flat = values.reshape(len(values), -1).astype(float)
    found = np.stack([_pigeonhole(flat, rows, names, n_bootstrap, seed) for names in columns])  # [ways, 2, scores]
    widest = np.argmax(found[:, 1] - found[:, 0], axis=0)  # nan counts as widest
    return found[widest, :, np.arange(flat.shape[1])].T.reshape(2, *values.shape[1:])


def _pigeonhole(values: np.ndarray, rows: np.ndarray, columns: np.ndarray, n_bootstrap: int, seed: int) -> np.ndarray:
    """Return the interval [2, scores] of the means of values [N_b, scores]."""
    from scipy import special

    n_clusters = min(len(np.unique(rows)), len(np.unique(columns)))
    if n_clusters < 2:
        return np.full((2, values.shape[1]), np.nan)
    rng = np.random.default_rng(seed)
    weights = _times_drawn(rows, n_bootstrap, rng) * _times_drawn(columns, n_bootstrap, rng)  # [B, N_b]
    weights = weights[weights.any(axis=1)]  # of few cells, a draw may take none
    means = weights @ values / weights.sum(axis=1, keepdims=True)
    expanded = np.sqrt(n_clusters / (n_clusters - 1)) * special.stdtrit(n_clusters - 1, (1 + CONFIDENCE) / 2)
    tail = special.ndtr(-expanded)
    return np.quantile(means, (tail, 1 - tail), axis=0)


def _times_drawn(clusters: np.ndarray, n_bootstrap: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each block's cluster is drawn [B, N_b], as many clusters being drawn as there are."""
    names, index = np.unique(clusters, return_inverse=True)
    return rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=n_bootstrap)[:, index].astype(float)


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each of `values` [n], from 1; those alike share the mean of theirs."""
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    found: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[index]
    return found


def seeds_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % t interval of a mean over training seeds; ValueError below five.

    Student's t and not a sign or rank interval: with five seeds the widest of those, from the least to the greatest,
    covers 1 - 2 / 2^5 = 93.75 % and no more. A share's interval may pass 0 or 1: clip it where it is shown.
    """
    from scipy import stats

    if len(values) < MIN_SEEDS:
        raise ValueError(f"{len(values)} seeds say nothing about models trained this way: at least {MIN_SEEDS} needed")
    spread = stats.sem(values)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1) * spread)
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def share_interval(n_found: int, n: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share (Clopper & Pearson 1934), as of models called supported."""
    from scipy import stats

    found = stats.binomtest(n_found, n).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


MIN_CLUSTERS = 5  # below it a resampling of clusters says nothing: with four, 1 in 256 draws is of one alone


def wilson(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of `n` independent items (Wilson 1927); a tie may have counted half."""
    from scipy import stats

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
