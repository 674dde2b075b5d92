"""Statistics of clustered scores: bootstrap intervals, sign-flip tests corrected for many heads, exact intervals.

Stories share frames (sentences with gaps) and words, so blocks of stories are not independent. Intervals and tests of
scores take whole clusters as their unit.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import special

from data.links import LinkItem
from probe.results import Clusters, Head, SimilarHead

CONFIDENCE = 0.95  # coverage of every interval
MIN_CLUSTERS = 5  # fewer clusters give no useful one-way bootstrap: with four, 1 draw in 64 has a single cluster
MIN_SEEDS = 5  # fewer training seeds give no interval for "models trained this way"
CLUSTERINGS = ("frames", "first_words", "second_words")  # in every test; all blocks of a pair share both words
Design = Sequence[np.ndarray]  # clusterings, each [N], that are resampled independently of each other
_ZERO_VARIANCE = 1e-12  # share of a sum of squares below which a variance counts as zero


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


def count_clusters(clusters: Mapping[str, np.ndarray]) -> Clusters:
    """Return how many different labels each clustering of `story_clusters` has."""
    return Clusters(**{name: len(set(labels)) for name, labels in clusters.items()})


def story_designs(clusters: Mapping[str, np.ndarray]) -> list[Design]:
    """Return the designs of a story interval: frames crossed with pairs, with first and with second words.

    The widest of the three covers a little less than 95 % if effects of both words dominate.
    """
    words = ("pairs", "first_words", "second_words")
    return [(clusters["frames"], clusters[name]) for name in words]


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
    # Intervals of all designs, [designs, 2, ...]; the widest is chosen for each number of the statistic by itself.
    intervals = np.stack([_design_interval(statistic, design, n_bootstrap, seed) for design in designs])
    widest = np.argmax(intervals[:, 1] - intervals[:, 0], axis=0)  # nan counts as widest
    chosen: np.ndarray = np.take_along_axis(intervals, widest[None, None], axis=0)[0]
    return chosen


def mean_interval(values: np.ndarray, designs: Sequence[Design], n_bootstrap: int, seed: int) -> np.ndarray:
    """Return the `bootstrap_interval` [2, ...] of the means of values [N, ...] over their first axis."""
    flat = values.reshape(len(values), -1).astype(float)

    def means(weights: np.ndarray) -> np.ndarray:
        weighted: np.ndarray = weights @ flat / weights.sum(axis=1, keepdims=True)
        return weighted.reshape(-1, *values.shape[1:])

    return bootstrap_interval(means, designs, n_bootstrap, seed)


def ratio_interval(
    numerator: np.ndarray, denominator: np.ndarray, designs: Sequence[Design], n_bootstrap: int, seed: int
) -> np.ndarray:
    """Return the `bootstrap_interval` [2] of the ratio of the sums of two values, each [N]."""

    def ratios(weights: np.ndarray) -> np.ndarray:
        above = weights @ numerator
        below = weights @ denominator
        return np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)

    return bootstrap_interval(ratios, designs, n_bootstrap, seed)


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
    # The weight of a value is the product of how often its cluster of each clustering is drawn, [B, N].
    rng = np.random.default_rng(seed)
    counts = [_resampling_counts(clusters, n_bootstrap, rng) for clusters in design]
    weights = np.prod(counts, axis=0)
    drawn = statistic(weights[weights.any(axis=1)])  # crossed draws of few clusters may be empty
    n_clusters = min(len(np.unique(clusters)) for clusters in design)
    if n_clusters < 2:
        return np.full((2, *drawn.shape[1:]), np.nan)

    # Expanded percentiles: Student's t instead of the normal quantile, and n / (n - 1) for the variance.
    t = special.stdtrit(n_clusters - 1, (1 + CONFIDENCE) / 2)
    expanded = np.sqrt(n_clusters / (n_clusters - 1)) * t
    tail = special.ndtr(-expanded)
    quantiles: np.ndarray = np.nanquantile(drawn, (tail, 1 - tail), axis=0)
    return quantiles


def _resampling_counts(clusters: np.ndarray, n_bootstrap: int, rng: np.random.Generator) -> np.ndarray:
    """Return how often each value's cluster is drawn [B, N] if as many clusters are drawn as there are."""
    names, index = np.unique(clusters, return_inverse=True)
    n = len(names)
    drawn = rng.multinomial(n, np.full(n, 1 / n), size=n_bootstrap)  # [B, n clusters]
    return drawn[:, index].astype(float)


def chance_level(
    values: np.ndarray, clusterings: Sequence[np.ndarray], centre: float, n_flips: int, seed: int
) -> float:
    """Return the 95th percentile of the best head's mean score under the null hypothesis that no head is above centre.

    Under the null hypothesis a cluster's mean lies above or below `centre` with equal probability. So the signs of
    whole clusters are flipped at random, `n_flips` times, and the maximum over heads is taken (max-T, Westfall & Young
    1993). The flips of the clusterings are added, so that their variances add as in `max_t_test`; this is conservative
    (simulated in tests/probe/test_statistics.py). Arguments as in `max_t_test`.
    """
    centred = values.reshape(len(values), -1) - centre  # [N_b, heads]
    rng = np.random.default_rng(seed)
    totals = np.zeros((n_flips, centred.shape[1]))  # flipped sums of all clusterings, [B, heads]
    for clusters in clusterings:
        sums, sizes = _cluster_sums(centred, clusters)
        signs = rng.choice((-1.0, 1.0), size=(n_flips, len(sizes)))
        totals += signs @ sums
    best = totals.max(axis=1) / len(values)  # mean of the best head, [B]
    return centre + float(np.percentile(best, 95))


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
    centred = values.reshape(len(values), -1).astype(float) - centre  # [N_b, heads]
    tables = [_cluster_sums(centred, clusters) for clusters in clusterings]
    fewest = min(len(sizes) for _, sizes in tables)
    if fewest < 2:
        return MaxT(np.ones(values.shape[1:]), 1.0, np.zeros(values.shape[1:]))

    # 1. The variance of a head's sum is that under all clusterings together, [heads].
    variance = np.zeros(centred.shape[1])
    for sums, sizes in tables:
        unflipped = np.ones((1, len(sizes)))
        variance += _flipped_totals(sums, sizes, unflipped)[1][0]

    p = np.zeros(centred.shape[1])
    smallest_p = 0.0
    for sums, sizes in tables:
        t = centred.sum(axis=0) / np.sqrt(np.maximum(variance, _variance_floor(sums)))

        # 2. T* of every head under every sign pattern, and its maximum over heads.
        signs = _sign_patterns(len(sizes), n_flips, seed)  # [B, C]
        totals, variances = _flipped_totals(sums, sizes, signs)
        flipped_t = totals / np.sqrt(variances)  # [B, heads]
        observed = np.abs(t) if two_sided else t
        largest_t = (np.abs(flipped_t) if two_sided else flipped_t).max(axis=1)  # [B]

        # 3. Patterns whose maximum reaches T, [heads]; equal values may differ by rounding.
        hits = (largest_t[:, None] >= observed - 1e-9 * np.abs(observed)).sum(axis=0)
        is_exact = len(signs) == 2 ** len(sizes)
        p_here = hits / len(signs) if is_exact else (1 + hits) / (1 + len(signs))
        p = np.maximum(p, p_here)

        # The unflipped pattern always counts, in a two-sided test its mirror image too.
        smallest_p = max(smallest_p, (1 + two_sided) * 2.0 ** -len(sizes), 1 / (n_flips + 1))
    return MaxT(p.reshape(values.shape[1:]), smallest_p, t.reshape(values.shape[1:]))


def random_half(clusters: np.ndarray, seed: int) -> np.ndarray:
    """Return [N] True for the values of a random half of the clusters."""
    names = np.unique(clusters)
    chosen = np.random.default_rng(seed).permutation(names)[: len(names) // 2]
    return np.isin(clusters, chosen)


def cap_clusters(clusterings: Sequence[np.ndarray], max_share: float, limit: int) -> list[int]:
    """Return the indices of up to `limit` values of which no cluster has more than `max_share`, in their order.

    `clusterings` are each [N]; values with the label "" belong to no cluster. A cluster may always have one value. The
    cap is the largest number of values per cluster that is at most `max_share` of those that remain.
    """
    # The clusters of each value, by number of the clustering and label.
    places: list[list[tuple[int, str]]] = []
    for labels in zip(*clusterings, strict=True):
        places.append([(number, label) for number, label in enumerate(labels) if label])

    most = max(1, int(max_share * min(len(places), limit)))
    for cap in range(most, 0, -1):
        # Keep every value whose clusters are not full yet.
        counts: Counter[tuple[int, str]] = Counter()
        kept: list[int] = []
        for i, of_value in enumerate(places):
            if len(kept) < limit and all(counts[place] < cap for place in of_value):
                kept.append(i)
                counts.update(of_value)
        if cap <= max_share * len(kept) or cap == 1:
            return kept
    return []


def similar_heads(values: np.ndarray, place: tuple[int, int], n: int = 3) -> list[SimilarHead]:
    """Return the `n` other heads whose values [N, L, H] correlate most with those of the head at `place` (Pearson r).

    Ordered by |r|; heads whose values do not vary are left out.
    """
    # Pearson's r of every head with the one at `place`, [L, H].
    centred = values - values.mean(axis=0)
    spread = np.sqrt((centred**2).sum(axis=0))
    product = np.einsum("nlh,n->lh", centred, centred[:, *place])
    scale = spread * spread[place]
    correlation = np.divide(product, scale, out=np.zeros_like(product), where=scale > 0)

    others = [Head(*index) for index in np.ndindex(*scale.shape) if index != place and scale[index] > 0]
    others.sort(key=lambda head: -abs(correlation[head]))
    return [SimilarHead(head.layer, head.head, float(correlation[head])) for head in others[:n]]


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

    # sum (s S - n m)^2, multiplied out: s^2 = 1.
    cross = signs @ (sizes[:, None] * sums)  # sum of s n S
    squares = (sums**2).sum(axis=0) - 2 * mean * cross + mean**2 * (sizes**2).sum()
    variances = squares * len(sizes) / (len(sizes) - 1)
    return totals, np.maximum(variances, _variance_floor(sums))


def _variance_floor(sums: np.ndarray) -> np.ndarray:
    return np.maximum(_ZERO_VARIANCE * (sums**2).sum(axis=0), np.finfo(float).tiny)


def _sign_patterns(n_clusters: int, n_flips: int, seed: int) -> np.ndarray:
    """Return all sign patterns [2^C, C] if there are at most `n_flips`, else `n_flips` random ones [B, C]."""
    if n_clusters < 60 and 2**n_clusters <= n_flips:  # 2^60 still fits a 64-bit integer
        return 1.0 - 2.0 * ((np.arange(2**n_clusters)[:, None] >> np.arange(n_clusters)) & 1)
    return np.random.default_rng(seed).choice((-1.0, 1.0), size=(n_flips, n_clusters))


def share_interval(n_successes: int, n: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share of n independent cases (Clopper & Pearson 1934)."""
    from scipy import stats  # half a second to import, and only tables over seeds need it

    interval = stats.binomtest(n_successes, n).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a share of n independent items in which a tie may count half (Wilson 1927)."""
    z = float(special.ndtri((1 + CONFIDENCE) / 2))  # a quantile of the normal distribution
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2)))
    return max(0.0, centre - half), min(1.0, centre + half)
