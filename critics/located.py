"""Where a critic sees the first error of a rollout, against where the verifiers see it: not its purpose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from critics.audit import AuditRollout
from pipeline.statistics import Interval, clustered_mean

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

    `exact` and `within_one`: rollouts with a step that the verifiers call wrong, found at the step or at
    most one off; `none`: rollouts without one in which none is seen; `f1`: 2 ab / (a + b) of exact and none
    (arXiv:2412.06559), without bounds; `num_wrong` and `num_right`. Intervals resample clusters.
    """
    hits: dict[str, list[float]] = {"exact": [], "within_one": [], "none": []}
    clusters: dict[str, list[str]] = {name: [] for name in hits}
    for rollout in rollouts:
        if rollout.context != "bare" or rollout.reward is None or not rollout.values:
            continue
        place, cluster = predicted_error(rollout.values, rollout.reward), rollout.cluster or rollout.task_id
        wrong = [i for i, status in enumerate(rollout.statuses) if status == "wrong"]
        if wrong:
            hits["exact"].append(float(place == wrong[0]))
            hits["within_one"].append(float(place is not None and abs(place - wrong[0]) <= 1))
            for name in ("exact", "within_one"):
                clusters[name].append(cluster)
        else:
            hits["none"].append(float(place is None))
            clusters["none"].append(cluster)
    found: dict[str, Interval | int] = {
        name: clustered_mean(np.array(hits[name]), clusters[name], num_resamples=num_resamples, seed=seed)
        if hits[name]
        else Interval(np.nan, np.nan, np.nan)
        for name in hits
    }
    a, b = (float(np.mean(hits[name])) if hits[name] else np.nan for name in ("exact", "none"))
    f1 = 2 * a * b / (a + b) if a + b > 0 else (0.0 if a + b == 0 else np.nan)
    return found | {
        "f1": Interval(f1, np.nan, np.nan),
        "num_wrong": len(hits["exact"]),
        "num_right": len(hits["none"]),
    }
