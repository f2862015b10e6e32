"""How sure a figure of few seeds is: resamples stretched as Student asks, p values, and Holm's of several."""

from collections.abc import Sequence

import numpy as np

ROUNDING = 1e-9
"""Of a value: a spread below it is what arithmetic leaves of none."""


def stretch(num_seeds: int) -> float:
    """Returns by how much resamples of so few seeds must lie further from the value; 1 for a single seed.

    sqrt(S/(S-1)) t / z: of S values resamples vary less than samples do, and how much these vary is itself
    uncertain (Hesterberg 2015, The American Statistician 69:371). Of two values the outermost resamples are
    these themselves, as far from their mean as its standard error: t. A single seed says nothing of others.

    Example:
        >>> [round(stretch(seeds), 2) for seeds in (1, 2, 4, 5, 10)]
        [1.0, 12.71, 1.87, 1.58, 1.22]
    """
    if num_seeds < 2:
        return 1.0
    from scipy.stats import norm, t  # scikit-learn's; half a second

    quantile = float(t.ppf(0.975, num_seeds - 1))
    return quantile if num_seeds == 2 else standard_error(quantile / norm.ppf(0.975), num_seeds)


def standard_error(spread: float, num_seeds: int) -> float:
    """Returns the standard error of a mean over S seeds, of the spread of its resamples: sqrt(S/(S-1)) times.

    Example:
        >>> standard_error(0.4, 5) == 0.4 * np.sqrt(1.25)
        np.True_
    """
    return float(spread * np.sqrt(num_seeds / max(num_seeds - 1, 1)))


def stretched(value: float, draws: np.ndarray, num_seeds: int) -> np.ndarray:
    """Returns resamples [B] as far from the value as few seeds ask for; bounds that are infinite stay."""
    return value + stretch(num_seeds) * (draws - value) if np.isfinite(value) else draws


def stretched_ratio(value: float, draws: np.ndarray, num_seeds: int) -> np.ndarray:
    """Returns the same of ratios [B], whose logarithms are stretched; 0 and infinity stay."""
    if not (np.isfinite(value) and value > 0):
        return draws
    with np.errstate(divide="ignore", over="ignore"):
        return np.exp(stretched(np.log(value), np.log(draws), num_seeds))


def p_value(least: np.ndarray, greatest: np.ndarray, null: float) -> float:
    """Returns the two-sided p of resamples [B] that are known to lie between two bounds.

    A resample that is not surely on one side of `null` counts on both; one more is added to each side, so
    no p is 0.
    """
    below, above = (1 + int((~side).sum()) for side in (least > null, greatest < null))
    return min(1.0, 2 * min(below, above) / (len(least) + 1))


def student_p(value: float, draws: np.ndarray, num_seeds: int) -> float:
    """Returns the two-sided p of a mean over seeds by the spread of its resamples [B], Student's t.

    Resamples of few seeds have no tails: where all seeds agree none lies on the other side, by chance, too.
    One seed's vary with its clusters alone. Infinite ones, of censored runs, are left to `p_value`. Resamples
    without spread, of two seeds that happen to agree to the task, do not say how sure a value is: p is 1.

    Example:
        >>> round(student_p(1.0, np.array([0.5, 1.5]), 2), 3)  # of seeds .29 and 1.71: t is sqrt(2)
        0.392
    """
    finite = draws[np.isfinite(draws)]
    if not (np.isfinite(value) and value != 0 and len(finite)):
        return 1.0
    from scipy.stats import t

    error = standard_error(float(finite.std()), num_seeds)
    sure = error > ROUNDING * abs(value)
    return float(2 * t.sf(abs(value) / error, num_seeds - 1 or np.inf)) if sure else 1.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns the p values adjusted for all of them being looked at (Holm 1979, Scand. J. Statist. 6:65).

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    scaled = np.asarray(p_values, float)[order] * np.arange(len(order), 0, -1)
    adjusted = np.empty(len(order))
    adjusted[order] = np.minimum(np.maximum.accumulate(scaled), 1.0)
    return adjusted.tolist()
