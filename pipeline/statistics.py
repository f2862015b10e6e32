"""Intervals for numbers from clustered data: bootstrap by cluster, and exact ones for counts.

Rows of one cluster (a task, a company) are not independent, so whole clusters are resampled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True, slots=True)
class Interval:
    """A number and the bounds of its confidence interval; NaN bounds mean that none can be given."""

    value: float
    low: float
    high: float

    def excludes(self, number: float) -> bool:
        """Returns whether the number lies outside; False without bounds."""
        return number < self.low or number > self.high


def interval_dict(interval: Interval) -> dict[str, float | None]:
    """Returns value, low, high for JSON; null where undefined."""
    numbers = {"value": interval.value, "low": interval.low, "high": interval.high}
    return {name: float(x) if math.isfinite(x) else None for name, x in numbers.items()}


def interval_words(interval: Interval, digits: int) -> str:
    """Returns the value with its bounds as text; says so where there is none."""
    if math.isnan(interval.value):
        return "undefined"
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return f"{interval.value:.{digits}f} [no bounds]"
    return f"{interval.value:.{digits}f} [{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def cluster_bootstrap(
    statistic: Callable[[np.ndarray], float],
    clusters: Sequence[object] | np.ndarray,
    *,
    num_resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Returns any statistic of N rows with its percentile interval over resampled clusters.

    Args:
        statistic: row indices [n] (a resample repeats rows) -> the number; NaN where it is undefined.
        clusters: [N] the cluster of each row, of any hashable kind.
        num_resamples: draws of as many clusters as there are.
        seed: of the draws.
        level: coverage, in (0, 1).

    Returns:
        The statistic of all rows; bounds NaN with a single cluster, as one cluster says nothing about spread.
        An undefined resample counts as -inf for the lower and +inf for the upper bound: never narrower.

    Raises:
        ValueError: there are no rows.

    Source:
        Davison and Hinkley, Bootstrap Methods and their Application, section 3.8 and eq. 5.6.
    """
    codes, num_clusters = _codes(clusters)
    value = float(statistic(np.arange(len(codes))))
    if num_clusters < 2 or math.isnan(value):
        return Interval(value, math.nan, math.nan)
    order = np.argsort(codes, kind="stable")
    members = np.split(order, np.cumsum(np.bincount(codes))[:-1])
    rng = np.random.default_rng(seed)
    draws = [
        float(statistic(np.concatenate([members[c] for c in rng.integers(num_clusters, size=num_clusters)])))
        for _ in range(num_resamples)
    ]
    return _percentiles(value, np.array(draws), level)


def clustered_mean(
    numbers: np.ndarray,
    clusters: Sequence[object] | np.ndarray,
    *,
    num_resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Returns the mean of [N] numbers with its interval by cluster; as `cluster_bootstrap`, but vectorised.

    Example:
        >>> clustered_mean(np.array([1.0, 1.0, 0.0, 0.0]), ["a", "a", "b", "b"])
        Interval(value=0.5, low=0.0, high=1.0)
    """
    ones = np.ones(len(numbers))
    return clustered_ratio(numbers, ones, clusters, num_resamples=num_resamples, seed=seed, level=level)


def clustered_ratio(
    numerators: np.ndarray,
    denominators: np.ndarray,
    clusters: Sequence[object] | np.ndarray,
    *,
    num_resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Returns sum of numerators / sum of denominators over [N] rows with its interval by cluster.

    A sum of denominators of 0 is undefined (NaN), as in `cluster_bootstrap`.
    """
    codes, num_clusters = _codes(clusters)
    numerators, denominators = np.asarray(numerators, np.float64), np.asarray(denominators, np.float64)
    if not len(numerators) == len(denominators) == len(codes):
        raise ValueError(
            f"{len(numerators)} numerators, {len(denominators)} denominators, {len(codes)} clusters"
        )
    sums = np.stack([np.bincount(codes, weights=w) for w in (numerators, denominators)])
    value = float(_ratio(*sums.sum(axis=1)))
    if num_clusters < 2 or math.isnan(value):
        return Interval(value, math.nan, math.nan)
    drawn = np.random.default_rng(seed).integers(num_clusters, size=(num_resamples, num_clusters))
    return _percentiles(value, _ratio(*sums[:, drawn].sum(axis=2)), level)


def paired_difference(
    ours: np.ndarray,
    theirs: np.ndarray,
    clusters: Sequence[object] | np.ndarray,
    *,
    num_resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Returns mean(ours - theirs) over [N] pairs (same task, two policies) with its interval by cluster.

    Example:
        >>> paired_difference(np.array([1.0, 1.0]), np.array([0.0, 1.0]), ["a", "b"])
        Interval(value=0.5, low=0.0, high=1.0)
    """
    difference = np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)
    return clustered_mean(difference, clusters, num_resamples=num_resamples, seed=seed, level=level)


def wilson(num_successes: int, num_trials: int, *, level: float = 0.95) -> Interval:
    """Returns a success rate with Wilson's score interval; for independent trials.

    Source:
        Wilson (1927), JASA 22:209.

    Example:
        >>> wilson(8, 10)
        Interval(value=0.8, low=0.49016..., high=0.94331...)
    """
    _check_counts(num_successes, num_trials)
    z = NormalDist().inv_cdf((1 + level) / 2)
    rate, n = num_successes / num_trials, num_trials
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    low = 0.0 if num_successes == 0 else centre - half
    high = 1.0 if num_successes == n else centre + half
    return Interval(rate, low, high)


def clopper_pearson(num_successes: int, num_trials: int, *, level: float = 0.95) -> Interval:
    """Returns a success rate with the exact interval, which covers at least `level`; for independent trials.

    Source:
        Clopper and Pearson (1934), Biometrika 26:404, through the beta distribution.

    Example:
        >>> clopper_pearson(8, 10)
        Interval(value=0.8, low=0.44390..., high=0.97478...)
    """
    from scipy.special import betaincinv  # type: ignore[import-untyped]

    _check_counts(num_successes, num_trials)
    k, n, tail = num_successes, num_trials, (1 - level) / 2
    low = 0.0 if k == 0 else float(betaincinv(k, n - k + 1, tail))
    high = 1.0 if k == n else float(betaincinv(k + 1, n - k, 1 - tail))
    return Interval(k / n, low, high)


def _codes(clusters: Sequence[object] | np.ndarray) -> tuple[np.ndarray, int]:
    """Returns [N] cluster numbers in order of first appearance, and how many there are."""
    if len(clusters) == 0:
        raise ValueError("no rows; an interval needs at least one")
    numbers: dict[object, int] = {}
    codes = np.array([numbers.setdefault(cluster, len(numbers)) for cluster in clusters])
    return codes, len(numbers)


def _ratio(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    safe = np.where(denominators == 0, 1.0, denominators)
    return np.where(denominators == 0, np.nan, numerators / safe)


def _percentiles(value: float, draws: np.ndarray, level: float) -> Interval:
    """Returns the percentile interval, undefined draws being the worst on both sides."""
    if not 0 < level < 1:
        raise ValueError(f"level = {level}; must be in (0, 1)")
    tail = (1 - level) / 2
    low = np.quantile(np.where(np.isnan(draws), -np.inf, draws), tail, method="lower")
    high = np.quantile(np.where(np.isnan(draws), np.inf, draws), 1 - tail, method="higher")
    return Interval(value, float(low), float(high))


def _check_counts(num_successes: int, num_trials: int) -> None:
    if not 0 <= num_successes <= num_trials or num_trials < 1:
        raise ValueError(
            f"{num_successes} successes of {num_trials} trials; want 0 <= successes <= trials >= 1"
        )
