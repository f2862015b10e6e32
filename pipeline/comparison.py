"""Statistics of a comparison: success along a budget, what a threshold costs, and how sure either is.

A run's curve is its success on one fixed set of tasks, looked at now and then, along all that it had cost by
then. Runs of one seed share tasks and starting policy, so arms are compared in pairs of the same seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.few_seeds import p_value, stretched, stretched_ratio, student_p
from pipeline.statistics import Interval, interval_of_draws, ratio

NUM_RESAMPLES = 2000
"""Of seeds and clusters, behind each interval."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A run's looks: L of them, in order, on the tasks of C clusters."""

    costs: np.ndarray  # [L], never falling: what the run had cost at each look
    won: np.ndarray  # [L, C] sums of the rewards of a cluster's tasks
    tried: np.ndarray  # [L, C] graded tasks

    def success(self, draws: np.ndarray) -> np.ndarray:
        """Returns success [M, L] where each cluster counts as often as in `draws` [M, C]."""
        return (draws @ self.won.T) / (draws @ self.tried.T)

    @property
    def observed(self) -> np.ndarray:
        """Success [1, L] with each cluster once."""
        return self.success(np.ones((1, self.won.shape[1])))

    @property
    def is_rate(self) -> bool:
        """Whether rewards lie in [0, 1], and so any success does."""
        return bool(((self.won >= 0) & (self.won <= self.tried)).all())


def success_at(budgets: np.ndarray, costs: np.ndarray, success: np.ndarray) -> np.ndarray:
    """Returns success [M, G] at G budgets: linear between looks [M, L], then as at the last one.

    NaN below the first look's cost: nobody looked at a cheaper policy. At two looks of one cost it jumps.

    Example:
        >>> costs, success = np.array([0.0, 10.0, 10.0, 20.0]), np.array([[0.1, 0.1, 0.3, 0.5]])
        >>> success_at(np.array([5.0, 10.0, 15.0, 30.0]), costs, success)
        array([[0.1, 0.3, 0.4, 0.5]])
    """
    after = np.searchsorted(costs, budgets, side="right")
    i, j = np.maximum(after - 1, 0), np.minimum(after, len(costs) - 1)
    step = costs[j] - costs[i]
    share = np.where(step > 0, (budgets - costs[i]) / np.where(step > 0, step, 1.0), 0.0)
    found = success[:, i] + share * (success[:, j] - success[:, i])
    return np.where(after > 0, found, np.nan)


def rising(success: np.ndarray) -> np.ndarray:
    """Returns the nearest curves that never fall, of curves [M, L]: least squares, by the max-min formula.

    max_{a <= i} min_{b >= i} mean(success_a .. success_b): Robertson, Wright and Dykstra, Order Restricted
    Statistical Inference, section 1.4. Without it the noise of many looks would reach a threshold too early.

    Example:
        >>> rising(np.array([[0.1, 0.5, 0.3, 0.6]])).round(2)
        array([[0.1, 0.4, 0.4, 0.6]])
    """
    L = success.shape[1]
    sums = np.concatenate([np.zeros((len(success), 1)), np.cumsum(success, axis=1)], axis=1)
    first, last = np.arange(L)[:, None], np.arange(L)[None, :]
    means = (sums[:, 1:][:, None, :] - sums[:, :-1][:, :, None]) / np.maximum(last - first + 1, 1)
    means = np.where(last >= first, means, np.inf)  # [M, a, b]
    least = np.minimum.accumulate(means[:, :, ::-1], axis=2)[:, :, ::-1]  # over b >= i
    least = np.where(last >= first, least, -np.inf)  # only a <= i
    return least.max(axis=1)


def cost_to(threshold: float, costs: np.ndarray, success: np.ndarray) -> np.ndarray:
    """Returns what it cost [M] until success [M, L], made never to fall, reached a threshold; inf: never.

    Example:
        >>> cost_to(0.4, np.array([10.0, 20.0, 30.0]), np.array([[0.1, 0.3, 0.5], [0.1, 0.2, 0.3]]))
        array([25., inf])
    """
    curve = rising(success)
    reached = curve >= threshold - 1e-12
    j = reached.argmax(axis=1)
    i, rows = np.maximum(j - 1, 0), np.arange(len(curve))
    step = curve[rows, j] - curve[rows, i]
    share = np.where(step > 0, (threshold - curve[rows, i]) / np.where(step > 0, step, 1.0), 1.0)
    cost = costs[i] + np.clip(share, 0, 1) * (costs[j] - costs[i])
    return np.where(reached.any(axis=1), cost, np.inf)


def resampled(
    measure: Callable[[int, np.ndarray], np.ndarray], num_clusters: Sequence[int], seed: int
) -> np.ndarray:
    """Returns [B, S, K]: S seeds drawn with replacement, and in each drawn one its clusters drawn anew.

    `measure(s, draws)` returns K numbers [M, K] of seed s, with its clusters as often as in `draws` [M, C_s].
    Arms that are measured by one call see the same seeds and tasks, so what they share drops out.
    """
    rng = np.random.default_rng(seed)
    S = len(num_clusters)
    drawn = rng.integers(S, size=(NUM_RESAMPLES, S))
    found = np.empty(0)
    for s, C in enumerate(num_clusters):
        at = drawn == s
        numbers = measure(s, rng.multinomial(C, np.full(C, 1 / C), size=int(at.sum())))
        if not found.size:
            found = np.empty((NUM_RESAMPLES, S, numbers.shape[1]))
        found[at] = numbers
    return found


def as_measured(measure: Callable[[int, np.ndarray], np.ndarray], num_clusters: Sequence[int]) -> np.ndarray:
    """Returns [1, S, K]: each seed and each cluster once."""
    return np.stack([measure(s, np.ones((1, C))) for s, C in enumerate(num_clusters)], axis=1)


def ratio_bounds(costs: np.ndarray, spent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the least and the greatest ratio [..] of two arms' median costs, the second's to the first's.

    `costs` [.., S, 2] are inf where a run did not reach the threshold within what it `spent`. Such a run
    would have cost more, nobody knows how much: it counts with what it spent for one bound, and as infinite
    for the other.

    Example:
        >>> bounds = ratio_bounds(np.array([[10.0, 50.0], [10.0, np.inf]]), np.full((2, 2), 80.0))
        >>> [float(bound) for bound in bounds]
        [6.5, inf]
    """
    known = np.minimum(costs, spent)
    first, second = np.median(costs, axis=-2), np.median(known, axis=-2)
    return ratio(second[..., 1], first[..., 0]), ratio(first[..., 1], second[..., 0])


@dataclass(frozen=True, slots=True)
class Compared:
    """What one arm has over another."""

    difference: Interval  # of mean success at equal budget, first minus second
    difference_p: float
    ratio: Interval  # of the second's median cost to the threshold to the first's; value NaN if only bounded
    ratio_at_least: float  # as measured; both are the value where no run that matters is censored
    ratio_at_most: float
    ratio_p: float


def compared(
    first: Sequence[Curve], second: Sequence[Curve], *, budget: float, threshold: float, seed: int
) -> Compared:
    """Returns what the first arm has over the second, whose curves are of the same seeds in the same order.

    Intervals are percentiles of a paired bootstrap over seeds, then clusters, stretched for few seeds; those
    of a difference of rates stay in [-1, 1]. p is two-sided, Student's by the spread of resamples; that of a
    ratio is at least twice the share of stretched resamples on the other side of 1. Of one seed with one
    cluster nothing varies: no bounds, p 1.
    """

    def measure(s: int, draws: np.ndarray) -> np.ndarray:
        numbers = []
        for curve in (first[s], second[s]):
            success = curve.success(draws)
            numbers += [
                success_at(np.array([budget]), curve.costs, success)[:, 0],
                cost_to(threshold, curve.costs, success),
                np.full(len(draws), curve.costs[-1]),
            ]
        return np.stack(numbers, axis=1)

    def judged(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        difference = (numbers[..., 0] - numbers[..., 3]).mean(axis=-1)
        return difference, *ratio_bounds(numbers[..., [1, 4]], numbers[..., [2, 5]])

    num_clusters = [curve.won.shape[1] for curve in first]
    value, least, greatest = (float(x[0]) for x in judged(as_measured(measure, num_clusters)))
    ratio_value = least if least == greatest else float("nan")
    if max(len(first), *num_clusters) < 2:
        return Compared(_unbounded(value), 1.0, _unbounded(ratio_value), least, greatest, 1.0)
    drawn = judged(resampled(measure, num_clusters, seed))
    most = 1.0 if all(curve.is_rate for curve in (*first, *second)) else np.inf
    values = stretched(value, drawn[0], len(first)).clip(-most, most)
    leasts = stretched_ratio(least, drawn[1], len(first))
    greatests = stretched_ratio(greatest, drawn[2], len(first))
    with np.errstate(divide="ignore"):
        near, nears = np.log(least if least > 1 else greatest), np.log(drawn[1 if least > 1 else 2])
    return Compared(
        interval_of_draws(value, values),
        student_p(value, drawn[0], len(first)),
        Interval(
            ratio_value,
            interval_of_draws(least, leasts).low,
            interval_of_draws(greatest, greatests).high,
        ),
        least,
        greatest,
        max(p_value(leasts, greatests, 1.0), student_p(near, nears, len(first))),
    )


def _unbounded(value: float) -> Interval:
    return Interval(value, float("nan"), float("nan"))


def mean_success(curves: Sequence[Curve], budgets: np.ndarray) -> list[Interval]:
    """Returns an arm's mean success over its runs at each of G budgets, with bootstrap intervals."""

    def measure(s: int, draws: np.ndarray) -> np.ndarray:
        return success_at(budgets, curves[s].costs, curves[s].success(draws))

    num_clusters = [curve.won.shape[1] for curve in curves]
    values = as_measured(measure, num_clusters).mean(axis=1)[0]
    if max(len(curves), *num_clusters) < 2:
        return [_unbounded(value) for value in values.tolist()]
    draws = resampled(measure, num_clusters, seed=0).mean(axis=1)
    most = (0.0, 1.0) if all(curve.is_rate for curve in curves) else (-np.inf, np.inf)
    return [
        interval_of_draws(value, stretched(value, draws[:, g], len(curves)).clip(*most))
        for g, value in enumerate(values.tolist())
    ]


def spread_over_training(returns: Sequence[float]) -> float:
    """Returns the standard deviation of a series around its trend, from successive differences.

    sqrt(mean (x_{t+1} - x_t)^2 / 2): von Neumann 1941, Ann. Math. Statist. 12:153. NaN of fewer than two.
    """
    steps = np.diff(np.asarray(returns, float))
    return float(np.sqrt((steps**2).mean() / 2)) if len(steps) else float("nan")
