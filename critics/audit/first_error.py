"""Where a critic sees the first error of a rollout, against where the verifiers see it: not its purpose."""

from collections.abc import Sequence

import numpy as np

from critics.audit.data import AuditRollout
from pipeline.statistics import ClusterBootstrap, Interval, ratio

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
    """Returns how often the first error is found, over bare graded rollouts with values.

    `f1` is 2 ab / (a + b) of `exact` and `none` (arXiv:2412.06559). Intervals resample clusters.
    """
    rows: list[tuple[float, ...]] = []
    clusters: list[str] = []
    for rollout in rollouts:
        if rollout.context != "bare" or rollout.reward is None or not rollout.values:
            continue
        place = predicted_error(rollout.values, rollout.reward)
        wrong = [i for i, status in enumerate(rollout.statuses) if status == "wrong"]
        off = abs(place - wrong[0]) if wrong and place is not None else np.inf
        rows.append((bool(wrong), off == 0, off <= 1, not wrong, not wrong and place is None))
        clusters.append(rollout.cluster or rollout.task_id)
    wrong_, exact, near, right, none = np.array(rows, np.float64).reshape(len(rows), 5).T
    boot = ClusterBootstrap(clusters, num_resamples, seed)

    def f1(wrong: np.ndarray, exact: np.ndarray, right: np.ndarray, none: np.ndarray) -> np.ndarray:
        a, b = ratio(exact, wrong), ratio(none, right)
        return np.where(a + b == 0, 0.0, ratio(2 * a * b, a + b))

    return {
        "exact": boot.ratio(exact, wrong_),
        "within_one": boot.ratio(near, wrong_),
        "none": boot.ratio(none, right),
        "f1": boot.interval([wrong_, exact, right, none], f1),
        "num_wrong": int(wrong_.sum()),
        "num_right": int(right.sum()),
    }
