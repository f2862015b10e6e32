"""How often a critic ranks successes above failures: AUROC and AUPRC, over all states and within tasks."""

from __future__ import annotations

import numpy as np

from critics.audit.data import AuditData
from critics.audit.intervals import BySums, cluster_codes, interval_of_draws, ratio, resample_counts
from pipeline.statistics import Interval

CURVES = ("auroc", "auprc")
RANKINGS = (*CURVES, "auroc_within_task", "auprc_within_task")


def ranking(audit: AuditData, by_sums: BySums, num_resamples: int, seed: int) -> dict[str, Interval]:
    """Returns an interval for each of `RANKINGS`; the curves are made anew for each resample."""
    if not len(audit):
        return dict.fromkeys(RANKINGS, Interval(np.nan, np.nan, np.nan))
    codes, num_clusters = cluster_codes(audit.cluster)
    # Descending p; equal p are one threshold.
    order = np.argsort(-audit.p, kind="stable")
    starts = np.flatnonzero(np.diff(audit.p[order], prepend=np.inf) != 0)

    def curves(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Weights [B, N] -> AUROC [B], AUPRC [B] over samples."""
        wins = np.add.reduceat((weights * audit.k)[:, order], starts, axis=1)
        losses = np.add.reduceat((weights * (audit.K - audit.k))[:, order], starts, axis=1)
        P, N = wins.sum(axis=1), losses.sum(axis=1)
        below = N[:, None] - np.cumsum(losses, axis=1)
        auroc = ratio((wins * (below + 0.5 * losses)).sum(axis=1), P * N)
        precision = ratio(np.cumsum(wins, axis=1), np.cumsum(wins + losses, axis=1))
        auprc = ratio((wins * np.nan_to_num(precision)).sum(axis=1), P)
        return auroc, auprc

    values = curves(np.ones((1, len(audit))))
    if num_clusters < 2:
        measures = {n: Interval(float(v[0]), np.nan, np.nan) for n, v in zip(CURVES, values, strict=True)}
    else:
        draws = curves(resample_counts(num_clusters, num_resamples, seed)[:, codes].astype(float))
        measures = {
            name: interval_of_draws(float(value[0]), draw)
            for name, value, draw in zip(CURVES, values, draws, strict=True)
        }
    won, pairs, precision = _within_tasks(audit)
    measures["auroc_within_task"] = by_sums([won, pairs], lambda s: ratio(s[..., 0], s[..., 1]))
    measures["auprc_within_task"] = by_sums([precision, audit.k], lambda s: ratio(s[..., 0], s[..., 1]))
    return measures


def _within_tasks(audit: AuditData) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns what rankings within a task are made of, [N] each.

    Of a state's successes: their wins over failures of its task's states, the number of these pairs, and the
    sum of their precisions, each the share of success among its task's samples that rank as high or higher.
    A success would vouch for its own precision; k (k - 1) / (K - 1) in place of k^2 / K takes that out.
    """
    won, pairs, precision = np.zeros((3, len(audit)))
    lost = audit.K - audit.k
    own = audit.k * (audit.k - 1) * audit.K / np.maximum(audit.K - 1, 1) - audit.k**2
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
