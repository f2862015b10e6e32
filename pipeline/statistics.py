"""Intervals for numbers from clustered data: the cluster bootstrap, and Wilson's interval for plain counts.

Rows of one cluster (rollouts of a task, tasks that share hidden rules) are not independent, so whole clusters
are drawn with replacement (Davison and Hinkley, Bootstrap Methods and their Application, section 3.8). Most
measures are functions of sums over rows: each cluster is summed once, and a resample only adds sums up.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

APART = 2.0
"""Standard errors by which two measured values are clearly apart (start value)."""
MIN_CLUSTERS = 10
"""Of fewer clusters percentiles are too narrow: a lower bound is above 0 by chance in 22 % of two."""
Statistic = Callable[..., np.ndarray]
"""The sums of M columns, an argument each, of any one shape -> numbers of that shape; NaN where undefined."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and the bounds of its confidence interval; NaN bounds mean that none can be given."""

    value: float
    low: float
    high: float

    def excludes(self, number: float) -> bool:
        """Returns whether the number lies outside; False without bounds."""
        return number < self.low or number > self.high


UNDEFINED = Interval(math.nan, math.nan, math.nan)


def interval_dict(interval: Interval) -> dict[str, float | None]:
    """Returns value, low, high for JSON; null where undefined."""
    numbers = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: float(x) if math.isfinite(x) else None for name, x in numbers.items()}


def interval_words(interval: Interval, digits: int) -> str:
    """Returns the value with its bounds as text; says so where there is none.

    Example:
        >>> interval_words(Interval(-1e-9, -0.2, 0.1), 2)  # no zero is negative
        '0.00 [-0.20, 0.10]'
    """
    if math.isnan(interval.value):
        return "undefined"
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return f"{interval.value:z.{digits}f} [no bounds]"
    return f"{interval.value:z.{digits}f} [{interval.low:z.{digits}f}, {interval.high:z.{digits}f}]"


def p_words(p: float) -> str:
    """Returns a p value as text; none is 0.

    Example:
        >>> p_words(0.0134), p_words(0.00002)
        ('0.013', '< 0.001')
    """
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


@dataclass(frozen=True, slots=True)
class ClusterBootstrap:
    """N rows, the clusters [N] that they belong to, and how to draw these.

    With fewer than `min_clusters` there are no bounds; at least 2, as one cluster says nothing about spread.
    """

    clusters: Sequence[object] | np.ndarray
    num_resamples: int = 1000
    seed: int = 0
    min_clusters: int = 2

    def interval(
        self, columns: Sequence[np.ndarray], statistic: Statistic, at: np.ndarray | None = None
    ) -> Interval:
        """Returns the statistic of the sums of some columns, each [N] or of the rows `at`.

        The value is NaN without rows; bounds are NaN with too few clusters or an undefined value. Undefined
        resamples count as the worst on either side: never narrower.
        """
        rows = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
        if len(rows) == 0:
            return UNDEFINED
        codes, num_clusters = cluster_codes(self.clusters if at is None else np.asarray(self.clusters)[at])
        sums = np.zeros((num_clusters, rows.shape[1]))
        np.add.at(sums, codes, rows)
        value = float(statistic(*sums.sum(axis=0)))
        if num_clusters < self.min_clusters or not math.isfinite(value):
            return Interval(value, math.nan, math.nan)
        drawn = resample_counts(num_clusters, self.num_resamples, self.seed) @ sums
        return interval_of_draws(value, statistic(*drawn.T))

    def ratio(
        self, numerators: np.ndarray, denominators: np.ndarray, at: np.ndarray | None = None
    ) -> Interval:
        """Returns sum of numerators / sum of denominators; NaN where the latter is 0."""
        return self.interval([numerators, denominators], ratio, at)

    def mean(self, column: np.ndarray, at: np.ndarray | None = None) -> Interval:
        """Returns the mean of a column, [N] or of the rows `at`.

        Example:
            >>> ClusterBootstrap(["a", "a", "b", "b"]).mean(np.array([1.0, 1.0, 0.0, 0.0]))
            Interval(value=0.5, low=0.0, high=1.0)
        """
        return self.ratio(column, np.ones(len(column)), at)

    def weighted(self, statistics: Callable[[np.ndarray], np.ndarray]) -> list[Interval]:
        """Returns intervals of M statistics [B, M] of how often each row is drawn [B, N]."""
        codes, num_clusters = cluster_codes(self.clusters)
        values = statistics(np.ones((1, len(codes))))[0].tolist()
        if num_clusters < self.min_clusters:
            return [Interval(value, math.nan, math.nan) for value in values]
        counts = resample_counts(num_clusters, self.num_resamples, self.seed)
        draws = statistics(counts[:, codes].astype(np.float64))
        return [interval_of_draws(value, draws[:, m]) for m, value in enumerate(values)]


def cluster_codes(clusters: Sequence[object] | np.ndarray) -> tuple[np.ndarray, int]:
    """Returns [N] cluster numbers in order of first appearance, and how many there are."""
    numbers: dict[object, int] = {}
    codes = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)
    return codes, len(numbers)


def resample_counts(num_clusters: int, num_resamples: int, seed: int) -> np.ndarray:
    """Returns [num_resamples, num_clusters] how often each cluster is drawn; rows sum to num_clusters."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(num_clusters, np.full(num_clusters, 1.0 / num_clusters), size=num_resamples)


def interval_of_draws(value: float, draws: np.ndarray, *, level: float = 0.95) -> Interval:
    """Returns the percentile interval of a value's resamples [B], NaN draws being the worst on both sides."""
    tail = (1 - level) / 2
    low = np.quantile(np.where(np.isnan(draws), -np.inf, draws), tail, method="lower")
    high = np.quantile(np.where(np.isnan(draws), np.inf, draws), 1 - tail, method="higher")
    return Interval(value, float(low), float(high))


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Returns numerator / denominator; NaN where the denominator is 0."""
    return np.where(denominator == 0, np.nan, numerator / np.where(denominator == 0, 1.0, denominator))


def positive(x: np.ndarray) -> np.ndarray:
    """Returns x where it is clearly positive, else NaN: a debiased variance that says nothing."""
    return np.where(x > 1e-12, x, np.nan)


Samples = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Sums of rewards in [0, 1], how many there are, and sums of their squares, which are the sums of 0 and 1."""


def standard_errors_apart(samples: Samples, others: Samples) -> np.ndarray:
    """Returns by how many standard errors the mean of samples is above that of others, elementwise.

    One success and one failure are added to each (Agresti and Caffo 2000): the plain standard error of 2 of 2
    is 0, and would call it better than 0 of 2 for certain.

    Example:
        >>> n, k, other = np.array([2, 8]), np.array([2, 8]), np.array([0, 1])
        >>> standard_errors_apart((k, n, k), (other, n, other)).round(1)
        array([1.6, 4.4])
    """
    (p, variance), (other, other_variance) = (
        (mean, (mean * (1 - mean) - (k - squares) / (n + 2)) / (n + 2))
        for k, n, squares in (samples, others)
        for mean in [(k + 1) / (n + 2)]
    )
    return (p - other) / np.sqrt(variance + other_variance)


def wilson(num_successes: float, num_trials: int) -> Interval:
    """Returns a success rate of independent trials with its 95 % score interval (Wilson 1927, JASA 22:209).

    Example:
        >>> wilson(8, 10)
        Interval(value=0.8, low=0.49016..., high=0.94331...)
    """
    z = NormalDist().inv_cdf(0.975)
    rate, n = num_successes / num_trials, num_trials
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if num_successes == 0 else centre - half
    high = 1.0 if num_successes == n else centre + half
    return Interval(rate, low, high)
