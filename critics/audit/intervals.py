"""Bootstrap intervals by cluster for statistics of sums: one matrix product instead of a loop.

Most quality measures are functions of sums over states, so each cluster is summed once and resamples only
add up clusters. `pipeline.statistics.cluster_bootstrap` does the same for arbitrary statistics, by a loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pipeline.statistics import Interval

APART = 2.0
"""Standard errors by which two measured values are clearly apart (start value)."""
MIN_CLUSTERS = 10
"""Resamples of fewer tell bounds of few rare things, as sets and probes are, too narrow (start value)."""
Statistic = Callable[[np.ndarray], np.ndarray]
"""Of sums of rows."""


def standard_errors_apart(
    k: np.ndarray, n: np.ndarray, other_k: np.ndarray, other_n: np.ndarray
) -> np.ndarray:
    """Returns by how many standard errors k of n successes are more than the others, elementwise.

    One success and one failure are added to each (Agresti and Caffo 2000): the plain standard error of 2 of 2
    is 0, and would call it better than 0 of 2 for certain.

    Example:
        >>> n = np.array([2, 8])
        >>> standard_errors_apart(np.array([2, 8]), n, np.array([0, 1]), n).round(1)
        array([1.6, 4.4])
    """
    p, other = (k + 1) / (n + 2), (other_k + 1) / (other_n + 2)
    return (p - other) / np.sqrt(p * (1 - p) / (n + 2) + other * (1 - other) / (other_n + 2))


def cluster_codes(clusters: Sequence[object] | np.ndarray) -> tuple[np.ndarray, int]:
    """Returns [N] cluster numbers in order of first appearance, and how many there are."""
    numbers: dict[object, int] = {}
    codes = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters], dtype=np.int64)
    return codes, len(numbers)


def resample_counts(num_clusters: int, num_resamples: int, seed: int) -> np.ndarray:
    """Returns [num_resamples, num_clusters] how often each cluster is drawn; rows sum to num_clusters."""
    rng = np.random.default_rng(seed)
    return rng.multinomial(num_clusters, np.full(num_clusters, 1.0 / num_clusters), size=num_resamples)


def interval_of_sums(
    rows: np.ndarray,
    clusters: Sequence[object] | np.ndarray,
    statistic: Statistic,
    *,
    num_resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
    min_clusters: int = 2,
) -> Interval:
    """Returns statistic(sum of rows) with its interval over resampled clusters.

    Args:
        rows: [N, M] what is summed over states.
        clusters: [N] the cluster of each row.
        statistic: sums [..., M] -> numbers [...]; NaN where undefined.
        num_resamples: draws of as many clusters as there are.
        seed: of the draws.
        level: coverage.
        min_clusters: with fewer there are no bounds; at least 2.

    Returns:
        NaN value without rows; NaN bounds with too few clusters or an undefined value. Undefined resamples
        count as the worst on either side.
    """
    if len(rows) == 0:
        return Interval(math.nan, math.nan, math.nan)
    codes, num_clusters = cluster_codes(clusters)
    sums = np.zeros((num_clusters, rows.shape[1]))
    np.add.at(sums, codes, rows)
    value = float(statistic(sums.sum(axis=0)))
    if num_clusters < min_clusters or not math.isfinite(value):
        return Interval(value, math.nan, math.nan)
    draws = statistic(resample_counts(num_clusters, num_resamples, seed) @ sums)
    return interval_of_draws(value, draws, level=level)


def interval_of_draws(value: float, draws: np.ndarray, *, level: float = 0.95) -> Interval:
    """Returns the interval of a value from its resamples [B], NaN draws being the worst on both sides."""
    tail = (1 - level) / 2
    low = float(np.quantile(np.where(np.isnan(draws), -np.inf, draws), tail, method="lower"))
    high = float(np.quantile(np.where(np.isnan(draws), np.inf, draws), 1 - tail, method="higher"))
    return Interval(value, low, high)


def ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Returns numerator / denominator; NaN where the denominator is 0."""
    safe = np.where(denominator == 0, 1.0, denominator)
    return np.where(denominator == 0, np.nan, numerator / safe)


def positive(x: np.ndarray) -> np.ndarray:
    """Returns x where it is clearly positive, else NaN: a debiased variance that says nothing."""
    return np.where(x > 1e-12, x, np.nan)


def columns_of(sums: np.ndarray) -> tuple[np.ndarray, ...]:
    """Returns the sums [..., C] apart: C arrays, as statistics name them."""
    return tuple(np.moveaxis(sums, -1, 0))


class BySums:
    """Rows of one audit and how to put intervals on statistics of their sums."""

    def __init__(self, clusters: np.ndarray, num_resamples: int, seed: int) -> None:
        self._clusters, self._num_resamples, self._seed = clusters, num_resamples, seed

    def __call__(
        self,
        columns: list[np.ndarray],
        statistic: Statistic,
        at: np.ndarray | None = None,
    ) -> Interval:
        """Returns the statistic of the sums of columns, each [N] or of the rows `at`."""
        rows = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
        clusters = self._clusters if at is None else self._clusters[at]
        return interval_of_sums(rows, clusters, statistic, num_resamples=self._num_resamples, seed=self._seed)

    @property
    def draws(self) -> dict[str, int]:
        """How often and from which seed to resample."""
        return {"num_resamples": self._num_resamples, "seed": self._seed}

    def mean(self, column: np.ndarray, at: np.ndarray | None = None) -> Interval:
        """Returns the mean of a column, [N] or of the rows `at`."""
        return self([np.ones(len(column)), column], lambda s: ratio(s[..., 1], s[..., 0]), at)
