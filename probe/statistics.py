"""Statistics of clustered scores: bootstrap intervals, sign-flip tests corrected for many heads, exact intervals.

Stories share frames (sentences with gaps) and words, so blocks of stories are not independent. Intervals and tests of
scores take whole clusters as their unit.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special, stats

from data.links import LinkItem

CONFIDENCE = 0.95  # coverage of every interval
MIN_CLUSTERS = 5  # fewer clusters give no useful one-way bootstrap: of four, 1 draw in 64 has a single cluster
MIN_SEEDS = 5  # fewer training seeds give no interval for "models trained this way"
CLUSTERINGS = ("frames", "first_words", "second_words")  # in every test; all blocks of a pair share both words
Design = Sequence[np.ndarray]  # clusterings, each [N], that are resampled independently of each other
_ROUNDING = 1e-12  # share of a sum of squares below which a variance counts as zero


def story_clusters(items: Sequence[LinkItem]) -> dict[str, np.ndarray]:
    """Return the frame, the first word, the second word and the word pair of each item, each [N].

    For scores per block, pass one item of each block.
    """
    words = [item.pair.split() for item in items]
    return {
        "frames": np.array([item.frame for item in items]),
        "first_words": np.array([pair[0] for pair in words]),
        "second_words": np.array([pair[-1] for pair in words]),
        "pairs": np.array([item.pair for item in items]),
    }


def story_designs(clusters: Mapping[str, np.ndarray]) -> list[Design]:
    """Return the designs of a story interval: frames crossed with pairs, with first and with second words.

    The widest of the three covers a little less than 95 % if effects of both words dominate.
    """
    return [(clusters["frames"], clusters[name]) for name in ("pairs", "first_words", "second_words")]


def bootstrap_interval(
    statistic: Callable[[np.ndarray], np.ndarray], designs: Sequence[Design], n_bootstrap: int, seed: int
) -> np.ndarray:
    """Return the 95 % bootstrap interval [2, ...] of a statistic of N clustered values.

    A design with one clustering is the cluster bootstrap. A design with two is the pigeonhole bootstrap (Owen 2007):
    both clusterings are resampled independently, and a value's weight is the product of its two counts. If there are
    several designs, the widest interval is returned. The quantiles are those of the expanded percentile interval
    (Hesterberg 2015, section 4.3), because with few clusters the plain percentile interval is too narrow.

    `statistic` maps weights [B, N] to the weighted statistic [B, ...]. The interval is nan if a clustering has a single
    cluster.
    """
    intervals = np.stack([_design_interval(statistic, design, n_bootstrap, seed) for design in designs])
    widest = np.argmax(intervals[:, 1] - intervals[:, 0], axis=0)  # argmax returns nan first
    chosen: np.ndarray = np.take_along_axis(intervals, widest[None, None], axis=0)[0]
    return chosen


def mean_interval(values: np.ndarray, designs: Sequence[Design], n_bootstrap: int, seed: int) -> np.ndarray:
    """Return the `bootstrap_interval` [2, ...] of the means of values [N, ...] over their first axis."""
    flat = values.reshape(len(values), -1).astype(float)

    def means(weights: np.ndarray) -> np.ndarray:
        weighted: np.ndarray = weights @ flat / weights.sum(axis=1, keepdims=True)
        return weighted.reshape(-1, *values.shape[1:])

    return bootstrap_interval(means, designs, n_bootstrap, seed)


def cluster_interval(
    values: np.ndarray, clusters: np.ndarray, n_bootstrap: int, seed: int
) -> tuple[float, float] | None:
    """Return the `mean_interval` of values [N] over one clustering [N]; None below MIN_CLUSTERS clusters."""
    if len(np.unique(clusters)) < MIN_CLUSTERS:
        return None
    low, high = mean_interval(values, [(clusters,)], n_bootstrap, seed).tolist()
    return low, high


def _design_interval(
    statistic: Callable[[np.ndarray], np.ndarray], design: Design, n_bootstrap: int, seed: int
) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = [_resampling_counts(clusters, n_bootstrap, rng) for clusters in design]
    n_clusters = min(len(np.unique(clusters)) for clusters in design)
    weights = np.prod(counts, axis=0)
    drawn = statistic(weights[weights.any(axis=1)])  # crossed draws of few clusters may be empty
    if n_clusters < 2:
        return np.full((2, *drawn.shape[1:]), np.nan)
    expanded = np.sqrt(n_clusters / (n_clusters - 1)) * special.stdtrit(n_clusters - 1, (1 + CONFIDENCE) / 2)
    tail = special.ndtr(-expanded)
    quantiles: np.ndarray = np.nanquantile(drawn, (tail, 1 - tail), axis=0)
    return quantiles


def _resampling_counts(clusters: np.ndarray, n_bootstrap: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each value's cluster is drawn [B, N] if as many clusters are drawn as there are."""
    names, index = np.unique(clusters, return_inverse=True)
    return rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=n_bootstrap)[:, index].astype(float)


def chance_level(
    values: np.ndarray, clusterings: Sequence[np.ndarray], centre: float, n_flips: int, seed: int
) -> float:
    """Return the 95th percentile of the best head's mean score under the null hypothesis that no head is above centre.

    Under the null hypothesis a cluster's mean lies above or below `centre` with equal probability. So the signs of
    whole clusters are flipped at random, `n_flips` times, and the maximum over heads is taken (max-T, Westfall & Young
    1993). The flips of the clusterings are added, so that their variances add as in `max_t_test`; this is conservative
    (simulated in tests/probe/test_statistics.py). Arguments as in `max_t_test`.
    """
    centred = values.reshape(len(values), -1) - centre
    rng = np.random.default_rng(seed)
    totals = np.zeros((n_flips, centred.shape[1]))
    for clusters in clusterings:
        sums, sizes = _cluster_sums(centred, clusters)
        totals += rng.choice((-1.0, 1.0), size=(n_flips, len(sizes))) @ sums
    return centre + float(np.percentile(totals.max(axis=1) / len(values), 95))


@dataclass(frozen=True, slots=True)
class MaxT:
    """The result of the max-T sign-flip test."""

    p: np.ndarray  # [...] of each head, corrected for the search over all heads
    smallest_p: float  # the smallest p that is possible with so few clusters
    t: np.ndarray  # [...] the studentised mean of each head


def max_t_test(
    values: np.ndarray,
    clusterings: Sequence[np.ndarray],
    centre: float,
    n_flips: int,
    seed: int,
    *,
    two_sided: bool = False,
) -> MaxT:
    """Test for each head whether its mean score is above `centre`, corrected for the search over all heads.

    1. T of a head is the sum of its values minus `centre`, divided by its standard error. Blocks share frames and
       words, so the variances under all clusterings are added. The sum counts the overlap of two clusterings twice and
       is conservative (Cameron, Gelbach & Miller 2011, without the subtraction, which can be negative).
    2. For each clustering, the signs of whole clusters are flipped at random, B times. T* is the flipped sum, divided
       by its standard error under this clustering, and its maximum over heads is kept (max-T, Westfall & Young 1993).
    3. p_h = (1 + #{max T* >= T_h}) / (B + 1). If there are at most B sign patterns, all of them are used and
       p_h = #{max T* >= T_h} / 2^n. The largest p over the clusterings is returned.

    Dividing by standard errors keeps a head with large, erratic scores from setting the threshold for the others. With
    one clustering and cluster sums that are symmetric about 0, the test is exact.

    `values` [N_b, ...] are one score per block and head, each of `clusterings` [N_b] is the cluster of each block, and
    B is `n_flips`. `centre` is 0 for the pronoun contrast and 1/2 for pair accuracy: by chance, both pronouns of a
    prefix are right at most as often as both are wrong, so at most in half of the cases. With `two_sided` the test is
    whether the mean differs from `centre`: |T| and |T*| take the place of T and T*.
    """
    centred = values.reshape(len(values), -1).astype(float) - centre
    tables = [_cluster_sums(centred, clusters) for clusters in clusterings]
    if min(len(sizes) for _, sizes in tables) < 2:
        return MaxT(np.ones(values.shape[1:]), 1.0, np.zeros(values.shape[1:]))
    variance = sum(_flipped_totals(sums, sizes, np.ones((1, len(sizes))))[1][0] for sums, sizes in tables)
    p = np.zeros(centred.shape[1])
    for sums, sizes in tables:
        signs = _sign_patterns(len(sizes), n_flips, seed)
        totals, variances = _flipped_totals(sums, sizes, signs)
        null = totals / np.sqrt(variances)  # [B, heads]
        t = centred.sum(axis=0) / np.sqrt(np.maximum(variance, _variance_floor(sums)))
        observed = np.abs(t) if two_sided else t
        null = (np.abs(null) if two_sided else null).max(axis=1)  # [B]
        hits = (null[:, None] >= observed - 1e-9 * np.abs(observed)).sum(axis=0)
        is_exact = len(signs) == 2 ** len(sizes)
        p = np.maximum(p, hits / len(signs) if is_exact else (1 + hits) / (1 + len(signs)))
    smallest = max(max((1 + two_sided) * 2.0 ** -len(sizes), 1 / (n_flips + 1)) for _, sizes in tables)
    return MaxT(p.reshape(values.shape[1:]), smallest, t.reshape(values.shape[1:]))


def random_half(clusters: np.ndarray, seed: int) -> np.ndarray:
    """Return [N] True for the values of a random half of the clusters."""
    names = np.unique(clusters)
    return np.isin(clusters, np.random.default_rng(seed).permutation(names)[: len(names) // 2])


def cap_clusters(clusterings: Sequence[np.ndarray], max_share: float, limit: int) -> list[int]:
    """Return the indices of up to `limit` values of which no cluster has more than `max_share`, in their order.

    `clusterings` are each [N]; values with the label "" belong to no cluster. A cluster may always have one value. The
    cap is the largest number of values per cluster that is at most `max_share` of those that remain.
    """
    n = len(clusterings[0])
    for cap in range(max(1, int(max_share * min(n, limit))), 0, -1):
        counts = [dict[str, int]() for _ in clusterings]
        kept: list[int] = []
        for i in range(n):
            labels = [labels[i] for labels in clusterings]
            is_full = any(label and count.get(label, 0) >= cap for label, count in zip(labels, counts, strict=True))
            if is_full or len(kept) == limit:
                continue
            kept.append(i)
            for label, count in zip(labels, counts, strict=True):
                count[label] = count.get(label, 0) + 1
        if cap <= max_share * len(kept) or cap == 1:
            return kept
    return []


def largest(values: np.ndarray) -> tuple[int, ...]:
    """Return the index of the largest value, such as (layer, head); the first of equal ones."""
    return tuple(int(i) for i in np.unravel_index(values.argmax(), values.shape))


def similar_heads(values: np.ndarray, place: tuple[int, int], n: int = 3) -> list[dict[str, float]]:
    """Return the `n` other heads whose values [N, L, H] correlate most with those of the head at `place` (Pearson r).

    Ordered by |r|; heads whose values do not vary are left out.
    """
    centred = values - values.mean(axis=0)
    spread = np.sqrt((centred**2).sum(axis=0))
    product = np.einsum("nlh,n->lh", centred, centred[:, *place])
    scale = spread * spread[place]
    correlation = np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)
    order = sorted(np.ndindex(*correlation.shape), key=lambda other: -abs(correlation[other]))
    others = [other for other in order if other != tuple(place) and scale[other] > 0]
    return [{"layer": layer, "head": head, "r": float(correlation[layer, head])} for layer, head in others[:n]]


def _cluster_sums(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum [C, heads] and the size [C] of each cluster of values [N_b, heads]."""
    names, index = np.unique(clusters, return_inverse=True)
    sums = np.zeros((len(names), values.shape[1]))
    np.add.at(sums, index, values)
    return sums, np.bincount(index).astype(float)


def _flipped_totals(sums: np.ndarray, sizes: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the total and its variance, both [B, heads], under each sign pattern [B, C].

    The variance is that of a sum of C independent clusters about their common mean m: C / (C - 1) sum (s S - n m)^2.
    """
    totals = signs @ sums
    mean = totals / sizes.sum()
    squares = (sums**2).sum(axis=0) - 2 * mean * (signs @ (sizes[:, None] * sums)) + mean**2 * (sizes**2).sum()
    return totals, np.maximum(squares * len(sizes) / (len(sizes) - 1), _variance_floor(sums))


def _variance_floor(sums: np.ndarray) -> np.ndarray:
    return np.maximum(_ROUNDING * (sums**2).sum(axis=0), np.finfo(float).tiny)


def _sign_patterns(n_clusters: int, n_flips: int, seed: int) -> np.ndarray:
    """Return all sign patterns [2^C, C] if there are at most `n_flips`, else `n_flips` random ones [B, C]."""
    if n_clusters < 60 and 2**n_clusters <= n_flips:  # 2^60 still fits a 64-bit integer
        return 1.0 - 2.0 * ((np.arange(2**n_clusters)[:, None] >> np.arange(n_clusters)) & 1)
    return np.random.default_rng(seed).choice((-1.0, 1.0), size=(n_flips, n_clusters))


def share_interval(n_successes: int, n: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share of n independent cases (Clopper & Pearson 1934)."""
    interval = stats.binomtest(n_successes, n).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of n independent items in which a tie may count half (Wilson 1927)."""
    z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)))
    return max(0.0, centre - half), min(1.0, centre + half)
