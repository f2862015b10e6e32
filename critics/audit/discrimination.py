"""How often a critic ranks successes above failures: AUROC over all states and within tasks.

A graded reward counts as that much of a success and the rest of a failure. Same values as scikit-learn's,
which has no way to make a thousand resamples at once.
"""

import numpy as np

from critics.audit.data import AuditData
from pipeline.statistics import UNDEFINED, ClusterBootstrap, Interval, ratio


def discrimination(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns `auroc`, over all states, ranked again for each resample, and `auroc_within_task`."""
    if not len(audit):
        return dict.fromkeys(("auroc", "auroc_within_task"), UNDEFINED)
    # Descending p; equal p are one threshold.
    order = np.argsort(-audit.p, kind="stable")
    starts = np.flatnonzero(np.diff(audit.p[order], prepend=np.inf) != 0)

    def auroc(weights: np.ndarray) -> np.ndarray:
        """Weights [B, N] -> AUROC over samples, [B, 1]."""
        wins = np.add.reduceat((weights * audit.k)[:, order], starts, axis=1)
        losses = np.add.reduceat((weights * (audit.K - audit.k))[:, order], starts, axis=1)
        P, N = wins.sum(axis=1), losses.sum(axis=1)
        below = N[:, None] - np.cumsum(losses, axis=1)
        return ratio((wins * (below + 0.5 * losses)).sum(axis=1), P * N)[:, None]

    return {"auroc": boot.weighted(auroc)[0], "auroc_within_task": boot.ratio(*_within_tasks(audit))}


def _within_tasks(audit: AuditData) -> tuple[np.ndarray, np.ndarray]:
    """Returns [N] wins of a state's successes over failures of its task's states, and how many pairs."""
    won, pairs = np.zeros((2, len(audit)))
    lost = audit.K - audit.k
    _, tasks = np.unique(audit.task_id, return_inverse=True)
    for at in np.split(np.argsort(tasks, kind="stable"), np.cumsum(np.bincount(tasks))[:-1]):
        p, k = audit.p[at], audit.k[at]
        above = (p[:, None] > p[None, :]) + 0.5 * (p[:, None] == p[None, :])
        won[at] = k * (above @ lost[at])
        pairs[at] = k * lost[at].sum()
    return won, pairs
