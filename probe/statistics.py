"""Statistics of clustered scores: bootstrap intervals, sign-flip tests corrected for many heads, exact intervals.

Stories share frames (sentences with gaps) and words, so blocks of stories are not independent. Special in this file:

- Intervals and tests of scores take whole clusters as their unit, frames and words crossed.
- Both variances enter the test: signs of frames alone called 170 of 200 untrained models significant.
- The search for the best head is part of the test (max-T): p is corrected for all heads.
- Intervals are expanded: with six clusters plain percentiles cover 87 % instead of 95 %.
- A noun is one cluster wherever it stands: as two, 95 % intervals covered .71 to .80 (research/results/places.md).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce

import numpy as np
from scipy import special

from data.pairs import Items
from probe.config import ProbeConfig
from probe.results import NOT_KNOWN, Estimate, Values

CONFIDENCE = 0.95  # coverage of every interval
MIN_SEEDS = 5  # fewer training seeds give no interval for "models trained this way"
N_CHOICES = 200  # resamplings of the choice of a head
# Clusterings that are resampled independently: [N], or [N, 2] if each value is in two clusters of one kind (nouns)
Design = Sequence[np.ndarray]
_ZERO_VARIANCE = 1e-12  # share of a sum of squares below which a variance counts as zero


def ratio_interval(
    numerator: np.ndarray, denominator: np.ndarray, designs: Sequence[Design], n_bootstrap: int, seed: int
) -> np.ndarray:
    """Return the 95 % bootstrap intervals [2, C] of ratios of sums: numerators [N, C] over a denominator [N].

    With a denominator of ones they are the intervals of means. A design with one clustering is the cluster bootstrap. A
    design with two is the pigeonhole bootstrap (Owen 2007): both clusterings are resampled independently, and a value's
    weight is the product of its counts; in a clustering [N, 2] it has the counts of both of its clusters (Davezies,
    D'Haultfœuille & Guyonvarch 2021). With several designs a column gets the widest interval. The quantiles are those
    of the expanded percentile interval (Hesterberg 2015, section 4.3), because with few clusters the plain percentile
    interval is too narrow. nan if a clustering has a single cluster.
    """
    intervals = []
    for design in designs:
        n_clusters = min(map(len, map(np.unique, design)))
        if n_clusters < 2:
            return np.full((2, numerator.shape[1]), np.nan)

        weights = design_weights(design, n_bootstrap, seed)
        above = weights @ numerator.astype(float)
        below = np.broadcast_to((weights @ denominator)[:, None], above.shape)  # 0 if a crossed draw is empty
        drawn = np.divide(above, below, out=np.full_like(above, np.nan), where=below != 0)

        # Expanded percentiles: Student's t instead of the normal quantile, and n / (n - 1) for the variance.
        t = special.stdtrit(n_clusters - 1, (1 + CONFIDENCE) / 2)
        tail = special.ndtr(-np.sqrt(n_clusters / (n_clusters - 1)) * t)
        intervals.append(np.nanquantile(drawn, (tail, 1 - tail), axis=0))
    stacked = np.stack(intervals)  # [designs, 2, C]
    widest = np.argmax(stacked[:, 1] - stacked[:, 0], axis=0)  # nan counts as widest
    chosen: np.ndarray = np.take_along_axis(stacked, widest[None, None], axis=0)[0]
    return chosen


def design_weights(design: Design, n_drawn: int, seed: int) -> np.ndarray:
    """Return the weights [B, N] of N values: the product of how often each cluster of a value is drawn.

    As many clusters are drawn as each clustering has.
    """
    indices = [(index.tobytes(), index.shape[1]) for index in map(_numbered, design)]
    return _drawn_weights(tuple(indices), n_drawn, seed)


# All measures of a question use the same draws; to draw for each took a tenth of the time of a probe. A question
# has up to nine designs, three each of pairs, blocks and parts.
@lru_cache(maxsize=16)
def _drawn_weights(indices: tuple[tuple[bytes, int], ...], n_drawn: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    columns = list[np.ndarray]()
    for index, n_columns in indices:
        table = np.frombuffer(index, int).reshape(-1, n_columns)
        n = table.max() + 1
        counts = rng.multinomial(n, np.full(n, 1 / n), size=n_drawn).astype(float)  # [B, n]
        columns += [counts.take(column, axis=1) for column in table.T]
    return reduce(np.multiply, columns)


def _numbered(clusters: np.ndarray) -> np.ndarray:
    """Return labels [N] or [N, 2] as numbers from 0 on, [N, 1] or [N, 2]."""
    _, index = np.unique(clusters, return_inverse=True)
    return np.asarray(index).reshape(len(clusters), -1)


def chosen_again(keys: Sequence[np.ndarray], design: Design, seed: int) -> float:
    """Return the share of resampled items whose best head is that of all items; 1: the choice does not depend on them.

    `keys` [N, ...] are of N items by head; the head with the largest mean of the last one is best, and the others break
    ties; of equal heads each counts its share. Whole clusters of a design are drawn, as for intervals (after Méloux et
    al. 2026, of circuits).
    """
    columns = [key.reshape(len(key), -1).astype(float) for key in keys]
    weights = design_weights(design, N_CHOICES, seed)
    weights = weights[weights.sum(axis=1) > 0]  # a crossed draw can be empty
    chosen = np.lexsort([column.sum(axis=0).round(9) for column in columns])[-1]
    means = np.stack([weights @ column for column in columns]).round(9)  # [keys, B, heads]
    best = np.lexsort(means, axis=-1)[:, -1]
    is_best = (means == np.take_along_axis(means, best[None, :, None], axis=2)).all(axis=0)  # [B, heads]
    return float((is_best[:, chosen] / is_best.sum(axis=1)).mean())


@dataclass(frozen=True)
class MaxT:
    """The result of the max-T sign-flip test."""

    p: np.ndarray  # [...] of each head, corrected for the search over all heads
    smallest_p: float  # the smallest p that is possible with so few clusters
    t: np.ndarray  # [...] the studentised mean of each head


@dataclass(frozen=True)
class Sample:
    """A number of every head for each of N items or blocks, and which of them depend on each other."""

    values: np.ndarray  # [N, ...]; nan: no head, which is not tested
    clusterings: Sequence[np.ndarray]  # each [N] or [N, 2], for the test
    designs: Sequence[Design]  # for the intervals

    def test(self, config: ProbeConfig, *, centre: float = 0.0, two_sided: bool = False) -> MaxT:
        """Test for each head whether its mean is above `centre`, corrected for the search over all heads.

        1. T of a head is the sum of its values minus `centre`, divided by its standard error. Blocks share frames and
           words, so the variances under all clusterings are added. The sum counts the overlap of two clusterings twice
           and is conservative (Cameron, Gelbach & Miller 2011, without the subtraction, which can be negative).
        2. For each clustering, the signs of whole clusters are flipped at random, B times. T* is the flipped sum,
           divided by its standard error under this clustering; its maximum over heads is kept (Westfall & Young 1993).
        3. p_h = (1 + #{max T* >= T_h}) / (B + 1). If there are at most B sign patterns, all of them are used and
           p_h = #{max T* >= T_h} / 2^n. The largest p over the clusterings is returned.

        Dividing by standard errors keeps a head with large, erratic scores from setting the threshold for the others.
        In a clustering [N, 2] a value is in the sums of both of its clusters, and its flip is the sum of two signs; the
        variance then counts a value twice and is conservative (Aronow, Samii & Assenova 2015, without the subtraction).

        With one clustering [N] and cluster sums that are symmetric about 0, the test is exact. With `two_sided` the
        test is whether the mean differs from `centre`: |T| and |T*| take the place of T and T*.
        """
        shape = self.values.shape[1:]
        known, centred = self._centred(centre)
        tables = [_cluster_sums(centred, clusters) for clusters in self.clusterings]
        if min(len(sizes) for _, sizes in tables) < 2:
            return MaxT(np.ones(shape), 1.0, np.zeros(shape))

        # 1. The variance of a head's sum is that under all clusterings together, [heads].
        unflipped = [_flipped_totals(sums, sizes, np.ones((1, len(sizes)))) for sums, sizes in tables]
        variance = sum(variances[0] for _, variances in unflipped)

        p = np.zeros(centred.shape[1])
        smallest_p = 0.0
        for sums, sizes in tables:
            t = centred.sum(axis=0) / np.sqrt(np.maximum(variance, _variance_floor(sums)))

            # 2. T* of every head under every sign pattern, and its maximum over heads.
            signs = _sign_patterns(len(sizes), config.n_bootstrap, config.seed)  # [B, C]
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
            smallest_p = max(smallest_p, (1 + two_sided) * 2.0 ** -len(sizes), 1 / (config.n_bootstrap + 1))
        of_all = np.full((2, len(known)), np.nan)
        of_all[:, known] = p, t
        return MaxT(of_all[0].reshape(shape), smallest_p, of_all[1].reshape(shape))

    def chance_level(self, n_flips: int, seed: int, centre: float = 0.5) -> float:
        """Return the 95th percentile of the best head's mean under the hypothesis that no head is above `centre`.

        Then a cluster's mean lies above or below it with equal probability. So the signs of whole clusters are
        flipped at random, and the maximum over heads is taken (max-T, Westfall & Young 1993). The flips of the
        clusterings are added, so that their variances add as in `test`; this is conservative.
        """
        _, centred = self._centred(centre)
        rng = np.random.default_rng(seed)
        totals = np.zeros((n_flips, centred.shape[1]))  # sums of all flips, [B, heads]
        for clusters in self.clusterings:
            sums, sizes = _cluster_sums(centred, clusters)
            totals += rng.choice((-1.0, 1.0), size=(n_flips, len(sizes))) @ sums
        best = totals.max(axis=1) / len(centred)  # mean of the best head, [B]
        level = centre + float(np.percentile(best, 95))
        if centre == 0.5 and np.abs(centred).max() <= 0.5:  # a share of right answers is at most 1
            return min(level, 1.0)
        return level

    def _centred(self, centre: float) -> tuple[np.ndarray, np.ndarray]:
        """Return which columns have heads, a layer without attention has none, and their values, [N_b, heads]."""
        values = self.values.reshape(len(self.values), -1).astype(float)
        known = ~np.isnan(values).any(axis=0)
        return known, values[:, known] - centre

    def means(self, config: ProbeConfig) -> list[Estimate]:
        """Return the mean of each column of values [N, C], or of values [N], with its interval."""
        return self.ratios(np.ones(len(self.values)), config)

    def mean(self, config: ProbeConfig) -> Estimate:
        return self.means(config)[0]

    def ratios(self, denominator: np.ndarray, config: ProbeConfig) -> list[Estimate]:
        """Return the mean of each column over that of the denominator [N]; nan if this is 0 everywhere.

        All columns are resampled together.
        """
        columns = self.values[:, None] if self.values.ndim == 1 else self.values
        if not denominator.any():
            return [NOT_KNOWN] * columns.shape[1]
        intervals = ratio_interval(columns, denominator, self.designs, config.n_bootstrap, config.seed)
        ratios = columns.sum(axis=0) / denominator.sum()
        return list(map(Estimate, ratios.tolist(), *intervals.tolist()))


def sample_of(items: Items, values: np.ndarray) -> Sample:
    """Return values [N, ...], one for each pair of the items or for each block, as a sample."""
    return Sample(values, items.clusterings(len(values)), items.designs(len(values)))


def estimate_ratios(
    numerators: Mapping[str, np.ndarray], denominator: np.ndarray, items: Items, config: ProbeConfig
) -> Values:
    """Return the ratio of the means of values of the pairs, each [N]; nan if the denominator is 0 everywhere."""
    columns = np.stack(list(numerators.values()), axis=1)
    return dict(zip(numerators, sample_of(items, columns).ratios(denominator, config), strict=True))


def mean_and_range(values: Sequence[float]) -> Estimate:
    """Return the mean of some values with the smallest and the largest of them."""
    return Estimate(float(np.mean(values)), float(min(values)), float(max(values)))


def _cluster_sums(values: np.ndarray, clusters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the sum [C, heads] and the size [C] of each cluster of values [N_b, heads]."""
    index = _numbered(clusters)
    sums = np.zeros((index.max() + 1, values.shape[1]))
    for of_role in index.T:
        np.add.at(sums, of_role, values)
    return sums, np.bincount(index.ravel()).astype(float)


def _flipped_totals(sums: np.ndarray, sizes: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the total and its variance, both [B, heads], under each sign pattern [B, C]."""
    totals = signs @ sums
    mean = totals / sizes.sum()

    # That of C independent clusters about their mean m: C / (C - 1) sum (s S - n m)^2, multiplied out with s^2 = 1.
    cross = signs @ (sizes[:, None] * sums)  # sum of s n S
    squares = (sums**2).sum(axis=0) - 2 * mean * cross + mean**2 * (sizes**2).sum()
    variances = squares * len(sizes) / (len(sizes) - 1)
    return totals, np.maximum(variances, _variance_floor(sums))


def _variance_floor(sums: np.ndarray) -> np.ndarray:
    return np.asarray(np.maximum(_ZERO_VARIANCE * (sums**2).sum(axis=0), np.finfo(float).tiny))


def _sign_patterns(n_clusters: int, n_flips: int, seed: int) -> np.ndarray:
    """Return all sign patterns [2^C, C] if there are at most `n_flips`, else `n_flips` random ones [B, C]."""
    if n_clusters < 60 and 2**n_clusters <= n_flips:  # 2^60 still fits a 64-bit integer
        return 1.0 - 2.0 * ((np.arange(2**n_clusters)[:, None] >> np.arange(n_clusters)) & 1)
    return np.random.default_rng(seed).choice((-1.0, 1.0), size=(n_flips, n_clusters))


def t_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Return Student's 95 % interval of the mean of independent values, such as those of training seeds."""
    n = len(values)
    mean = float(np.mean(values))
    half = float(special.stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.std(values, ddof=1) / np.sqrt(n))
    return mean - half, mean + half


def share_interval(n_successes: int, n: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share of n independent cases (Clopper & Pearson 1934)."""
    from scipy import stats  # half a second to import, and only tables over seeds need it

    interval = stats.binomtest(n_successes, n).proportion_ci(CONFIDENCE, method="exact")
    return float(interval.low), float(interval.high)
