"""How good a critic is, from audited states: measures debiased for the finite K, with intervals.

With Vhat = k/K, v = Vhat (1 - Vhat) / (K - 1) and x^c = x minus its mean over the rollout's n states:

    MSE = mean[(p - Vhat)^2 - v];  Var = Var(Vhat) - mean v;  EV = 1 - MSE/Var
    MSEw = mean[(p^c - Vhat^c)^2 - (1 - 1/n) v];  Varw = mean[(Vhat^c)^2 - (1 - 1/n) v]
    EV_within = 1 - MSEw/Varw
    A = p_{i+1} - p_i;  Ahat of Vhat;  noise = v_i + v_{i+1};  adv_rmse^2 = mean[(A - Ahat)^2 - noise]
    rho_A = Cov(A, Ahat) / sqrt(Var(A) (Var(Ahat) - mean noise))

A denominator that is not positive makes a measure undefined (NaN), which passes no gate. Intervals
resample clusters. Without the debiasing a finite K makes critics look worse than they are.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from critics.audit.baselines import BASELINES
from critics.audit.calibration_error import calibration
from critics.audit.data import AuditData
from pipeline.statistics import (
    APART,
    MIN_CLUSTERS,
    UNDEFINED,
    ClusterBootstrap,
    Interval,
    positive,
    ratio,
    standard_errors_apart,
)

NUM_POSITIONS = 5
SLICE_METRICS = ("ev", "ev_within", "rho_a", "bias", "rmse", "auroc")


def measure(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns every measure of all audited states by name, NaN where undefined; no bounds of few clusters.

    `critics.report.sections` says how to read each.
    """
    boot = ClusterBootstrap(audit.cluster, num_resamples, seed, MIN_CLUSTERS)
    measures = errors(audit, boot) | steps(audit, boot) | skills(audit, boot)
    measures |= calibration(audit, num_resamples=num_resamples, seed=seed)
    return measures | discrimination(audit, boot)


def errors(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns how far values are from the truth, and what share of its differences they explain."""
    error = audit.p - audit.v_hat
    return {
        "rmse": boot.interval([error**2 - audit.noise, np.ones(len(error))], _root_mean),
        "bias": boot.mean(error),
        "ev": explained_variance(audit, boot),
        "ev_within": explained_variance_within(audit, boot),
    }


def _root_mean(total: np.ndarray, n: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(ratio(total, n), 0.0))


def explained_variance(audit: AuditData, boot: ClusterBootstrap) -> Interval:
    """Returns EV, the share of the differences between states that the critic explains."""
    p, V, v = audit.p, audit.v_hat, audit.noise

    def statistic(n: np.ndarray, error: np.ndarray, *sums: np.ndarray) -> np.ndarray:
        total, square, noise = (ratio(column, n) for column in sums)
        return 1 - ratio(error, n) / positive(square - total**2 - noise)

    return boot.interval([np.ones(len(p)), (p - V) ** 2 - v, V, V**2, v], statistic)


def explained_variance_within(audit: AuditData, boot: ClusterBootstrap) -> Interval:
    """Returns EV_within: the same inside single rollouts; at most 0 is useless for steps."""
    if not len(audit):
        return UNDEFINED
    return explained_within(audit.p, audit.v_hat, audit.noise, audit.groups(), boot)


def explained_within(
    p: np.ndarray, V: np.ndarray, v: np.ndarray, groups: np.ndarray, boot: ClusterBootstrap
) -> Interval:
    """Returns EV_within of p, Vhat, its noise and the numbers of the states' rollouts, [N >= 1] each."""
    p, V, noise = centred(p, groups), centred(V, groups), (1 - 1 / np.bincount(groups)[groups]) * v
    # A rollout with one audited state contributes exact zeros.
    columns = [(p - V) ** 2 - noise, V**2 - noise]
    return boot.interval(columns, lambda error, variance: 1 - error / positive(variance))


def gained_within(audit: AuditData, other: np.ndarray, boot: ClusterBootstrap) -> Interval:
    """Returns by how much EV_within exceeds that of other values [N] of the same states, paired."""
    if not len(audit):
        return UNDEFINED
    groups = audit.groups()
    p, q, V = (centred(x, groups) for x in (audit.p, other, audit.v_hat))
    noise = (1 - 1 / np.bincount(groups)[groups]) * audit.noise
    columns = [(q - V) ** 2 - (p - V) ** 2, V**2 - noise]
    return boot.interval(columns, lambda gain, variance: gain / positive(variance))


def centred(x: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Returns [N] x minus its mean over each group."""
    return x - (np.bincount(groups, weights=x) / np.maximum(np.bincount(groups), 1))[groups]


def steps(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns what the critic's step advantages have to do with the true ones."""
    i, j = audit.pairs()
    A, A_hat = audit.p[j] - audit.p[i], audit.v_hat[j] - audit.v_hat[i]
    noise = audit.noise[i] + audit.noise[j]
    columns = [np.ones(len(i)), A, A_hat, A**2, A_hat**2, A * A_hat, noise]

    def of_moments(statistic: Callable[..., np.ndarray]) -> Interval:
        """Puts an interval on a function of Var A, Var Ahat (debiased) and their covariance."""

        def of_sums(n: np.ndarray, *sums: np.ndarray) -> np.ndarray:
            a, b, aa, bb, ab, e = (ratio(total, n) for total in sums)
            return statistic(aa - a**2, positive(bb - b**2 - e), ab - a * b)

        return boot.interval(columns, of_sums, i)

    squares = audit.k if audit.squares is None else audit.squares
    now, before = ((audit.k[at], audit.K[at], squares[at]) for at in (j, i))
    clear = np.abs(standard_errors_apart(now, before)) > APART
    agree = (np.sign(A) == np.sign(A_hat)) & clear
    return {
        "rho_a": of_moments(lambda ours, true, both: both / np.sqrt(positive(ours) * true)),
        "cov_a": of_moments(lambda ours, true, both: both),
        "adv_rmse": boot.interval([(A - A_hat) ** 2 - noise, np.ones(len(i))], _root_mean, i),
        "sign_agreement": boot.ratio(agree, clear, i),
        "flattening": of_moments(lambda ours, true, both: np.sqrt(np.maximum(ours, 0.0) / true)),
    }


def skills(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns the Brier score against single samples, and the gained share of each of `BASELINES`'."""
    V, spread = audit.v_hat, audit.spread
    ours = (audit.p - V) ** 2 + spread
    measures = {"brier": boot.mean(ours)}
    values = {name: baseline(audit) for name, baseline in BASELINES.items()}
    for name, p in values.items():
        theirs = (p - V) ** 2 + spread
        # Where the reference makes no error (few states, all alike), no share of it can be gained.
        measures[f"skill_over_{name}"] = boot.interval([ours, theirs], lambda a, b: 1 - a / positive(b))
    measures["ev_within_over_errors_so_far"] = gained_within(audit, values["errors_so_far"], boot)
    return measures


def discrimination(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns `auroc`, over all states, ranked again for each resample, and `auroc_within_task`.

    Same values as scikit-learn's, which has no way to make a thousand resamples at once.
    """
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


def slices(audit: AuditData, *, num_resamples: int = 500, seed: int = 0) -> list[dict[str, Any]]:
    """Returns one row per level, fifth of the budget and split: its sizes and `SLICE_METRICS`."""
    rows = []
    for kind, keys in (("level", audit.level), ("position", position_bins(audit)), ("split", audit.split)):
        for name in sorted(set(keys.tolist())):
            part = audit.where(keys == name)
            boot = ClusterBootstrap(part.cluster, num_resamples, seed, MIN_CLUSTERS)
            found = errors(part, boot) | steps(part, boot) | discrimination(part, boot)
            row = {
                "kind": kind,
                "name": f"{name * 20}-{name * 20 + 20} %" if kind == "position" else str(name),
                "num_states": len(part),
                "num_tasks": len(set(part.task_id.tolist())),
            }
            rows.append(row | {metric: found[metric] for metric in SLICE_METRICS})
    return rows


def position_bins(audit: AuditData) -> np.ndarray:
    """Returns [N] the fifth of the budget that a state lies in, 0-based."""
    return np.minimum((audit.position * NUM_POSITIONS).astype(np.int64), NUM_POSITIONS - 1)
