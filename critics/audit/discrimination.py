"""How often a critic ranks successes above failures: AUROC and AUPRC, over all states and within tasks.

A graded reward counts as that much of a success and the rest of a failure. Same values as scikit-learn's,
which has no way to make a thousand resamples at once.
"""

import numpy as np

from critics.audit.data import AuditData
from pipeline.statistics import UNDEFINED, ClusterBootstrap, Interval, ratio

NAMES = ("auroc", "auprc", "auroc_within_task", "auprc_within_task")


def discrimination(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns an interval for each of `NAMES`; those over all states are ranked again for each resample."""
    if not len(audit):
        return dict.fromkeys(NAMES, UNDEFINED)
    # Descending p; equal p are one threshold.
    order = np.argsort(-audit.p, kind="stable")
    starts = np.flatnonzero(np.diff(audit.p[order], prepend=np.inf) != 0)

    def curves(weights: np.ndarray) -> np.ndarray:
        """Weights [B, N] -> AUROC and AUPRC over samples, [B, 2]."""
        wins = np.add.reduceat((weights * audit.k)[:, order], starts, axis=1)
        losses = np.add.reduceat((weights * (audit.K - audit.k))[:, order], starts, axis=1)
        P, N = wins.sum(axis=1), losses.sum(axis=1)
        below = N[:, None] - np.cumsum(losses, axis=1)
        auroc = ratio((wins * (below + 0.5 * losses)).sum(axis=1), P * N)
        precision = ratio(np.cumsum(wins, axis=1), np.cumsum(wins + losses, axis=1))
        auprc = ratio((wins * np.nan_to_num(precision)).sum(axis=1), P)
        return np.stack([auroc, auprc], axis=1)

    won, pairs, precision = _within_tasks(audit)
    within = boot.ratio(won, pairs), boot.ratio(precision, audit.k)
    return dict(zip(NAMES, (*boot.weighted(curves), *within), strict=True))


def _within_tasks(audit: AuditData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what rankings within a task are made of, [N] each.

    Of a state's successes: their wins over failures of its task's states, the number of these pairs, and the
    sum of their precisions, each the share of success among its task's samples that rank as high or higher.
    A success would vouch for its own precision; (k^2 - squares) / (K - 1) in place of k^2 / K takes that out.
    """
    won, pairs, precision = np.zeros((3, len(audit)))
    lost = audit.K - audit.k
    own = (audit.k**2 - audit.sum_of_squares) * audit.K / np.maximum(audit.K - 1, 1) - audit.k**2
    _, tasks = np.unique(audit.task_id, return_inverse=True)
    for at in np.split(np.argsort(tasks, kind="stable"), np.cumsum(np.bincount(tasks))[:-1]):
        p, k = audit.p[at], audit.k[at]
        same = p[:, None] == p[None, :]
        above = (p[:, None] > p[None, :]) + 0.5 * same
        won[at] = k * (above @ lost[at])
        pairs[at] = k * lost[at].sum()
        as_high = (p[None, :] > p[:, None]) | same
        precision[at] = (k * (as_high @ k) + own[at]) / (as_high @ audit.K[at])
    return won, pairs, precision
