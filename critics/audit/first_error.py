"""Where a critic sees the first error of a rollout, against where the verifiers see it: not its purpose."""

from collections.abc import Sequence

import numpy as np

from critics.audit.data import AuditRollout
from pipeline.statistics import MIN_CLUSTERS, ClusterBootstrap, Interval, ratio

LARGE_FALL = 0.15
"""A step is taken for an error if it lowers the value by more than this (start value)."""


def predicted_error(values: Sequence[float], reward: float) -> int | None:
    """Returns the first step that lowers the value by more than `LARGE_FALL`, or None.

    After the last step the value is the reward.

    Example:
        >>> predicted_error([0.6, 0.7, 0.2, 0.3], 0.0)
        1
    """
    falls = np.flatnonzero(np.diff([*values, reward]) < -LARGE_FALL)
    return int(falls[0]) if len(falls) else None


def first_error(
    rollouts: Sequence[AuditRollout], *, num_resamples: int = 500, seed: int = 0
) -> dict[str, Interval | int]:
    """Returns how often the first error is found, over bare graded rollouts with values; see `located`."""
    judged = [r for r in rollouts if r.context == "bare" and r.reward is not None and r.values]
    return located(
        [first_wrong(r.statuses) for r in judged],
        [predicted_error(r.values, float(r.reward or 0.0)) for r in judged],
        [r.cluster or r.task_id for r in judged],
        num_resamples=num_resamples,
        seed=seed,
    )


def first_wrong(statuses: Sequence[str]) -> int | None:
    """Returns the first step with the verdict `wrong`, or None."""
    return next((i for i, status in enumerate(statuses) if status == "wrong"), None)


def located(
    wrong: Sequence[int | None],
    found: Sequence[int | None],
    clusters: Sequence[str],
    *,
    num_resamples: int = 500,
    seed: int = 0,
) -> dict[str, Interval | int]:
    """Returns how often `found` names the first wrong step of solutions, None standing for no error.

    `exact` and `within_one` are shares of the solutions with an error, `none` of those without one; `f1` is
    2 ab / (a + b) of `exact` and `none` (arXiv:2412.06559). Intervals resample clusters,
    none of fewer than ten.
    """
    rows: list[tuple[float, ...]] = []
    for true, place in zip(wrong, found, strict=True):
        off = abs(place - true) if true is not None and place is not None else np.inf
        right = true is None
        rows.append((not right, off == 0, off <= 1, right, right and place is None))
    wrong_, exact, near, right_, none = np.array(rows, np.float64).reshape(len(rows), 5).T
    boot = ClusterBootstrap(clusters, num_resamples, seed, MIN_CLUSTERS)

    def f1(wrong: np.ndarray, exact: np.ndarray, right: np.ndarray, none: np.ndarray) -> np.ndarray:
        a, b = ratio(exact, wrong), ratio(none, right)
        return np.where(a + b == 0, 0.0, ratio(2 * a * b, a + b))

    return {
        "exact": boot.ratio(exact, wrong_),
        "within_one": boot.ratio(near, wrong_),
        "none": boot.ratio(none, right_),
        "f1": boot.interval([wrong_, exact, right_, none], f1),
        "num_wrong": int(wrong_.sum()),
        "num_right": int(right_.sum()),
    }
