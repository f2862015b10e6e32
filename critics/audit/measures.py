"""How good a critic is, from audited states: measures debiased for the finite K, with intervals.

With Vhat = k/K, v = Vhat (1 - Vhat) / (K - 1) and x^c = x minus its mean over the rollout's n states:

    MSE = mean[(p - Vhat)^2 - v];  Var = Var(Vhat) - mean v;  EV = 1 - MSE/Var
    MSEw = mean[(p^c - Vhat^c)^2 - (1 - 1/n) v];  Varw = mean[(Vhat^c)^2 - (1 - 1/n) v]
    EV_within = 1 - MSEw/Varw
    A = p_{i+1} - p_i;  Ahat likewise;  noise = v_i + v_{i+1};  adv_rmse^2 = mean[(A - Ahat)^2 - noise]
    rho_A = Cov(A, Ahat) / sqrt(Var(A) (Var(Ahat) - mean noise))

A denominator that is not positive makes a measure undefined (NaN), which passes no gate. Intervals
resample clusters. Without the debiasing a finite K makes critics look worse than they are.
"""

from collections.abc import Callable

import numpy as np

from critics.audit.baselines import BASELINES
from critics.audit.calibration_error import calibration
from critics.audit.data import AuditData
from critics.audit.discrimination import discrimination
from pipeline.statistics import (
    APART,
    UNDEFINED,
    ClusterBootstrap,
    Interval,
    positive,
    ratio,
    standard_errors_apart,
)

SOLVER_TOLERANCE = 0.05
"""p counts as above V* by more than this: a probability is never exactly 0 (start value)."""


def measure(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns every measure of all audited states by name, NaN where undefined.

    `critics.report.sections` says how to read each.
    """
    boot = ClusterBootstrap(audit.cluster, num_resamples, seed)
    measures = errors(audit, boot) | steps(audit, boot) | skills(audit, boot)
    measures |= calibration(audit, num_resamples=num_resamples, seed=seed)
    return measures | discrimination(audit, boot) | _solver(audit, boot)


def sizes(audit: AuditData) -> dict[str, int]:
    """Returns counts behind the measures."""
    first, _ = audit.pairs()
    return {
        "num_states": len(audit),
        "num_rollouts": len(set(audit.rollout_id.tolist())),
        "num_tasks": len(set(audit.task_id.tolist())),
        "num_clusters": len(set(audit.cluster.tolist())),
        "num_pairs": len(first),
        "num_continuations": int(audit.K.sum()),
    }


def errors(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns how far values are from the truth, and what share of its differences they explain."""
    error = audit.p - audit.v_hat
    return {
        "rmse": boot.interval([error**2 - audit.noise, np.ones(len(error))], _root_mean),
        "mae": boot.mean(np.abs(error)),
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
    sizes = np.bincount(groups)
    noise = (1 - 1 / sizes[groups]) * v
    p, V = (x - (np.bincount(groups, weights=x) / np.maximum(sizes, 1))[groups] for x in (p, V))
    # A rollout with one audited state contributes exact zeros.
    columns = [(p - V) ** 2 - noise, V**2 - noise]
    return boot.interval(columns, lambda error, variance: 1 - error / positive(variance))


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

    clear = np.abs(standard_errors_apart(audit.k[j], audit.K[j], audit.k[i], audit.K[i])) > APART
    agree = (np.sign(A) == np.sign(A_hat)) & clear
    return {
        "rho_a": of_moments(lambda ours, true, both: both / np.sqrt(positive(ours) * true)),
        "cov_a": of_moments(lambda ours, true, both: both),
        "spearman_a": _spearman(A, A_hat, boot, i),
        "adv_rmse": boot.interval([(A - A_hat) ** 2 - noise, np.ones(len(i))], _root_mean, i),
        "sign_agreement": boot.ratio(agree, clear, i),
        "flattening": of_moments(lambda ours, true, both: np.sqrt(np.maximum(ours, 0.0) / true)),
        "slope_a": of_moments(lambda ours, true, both: both / true),
    }


def _ranks(x: np.ndarray) -> np.ndarray:
    """Returns mid-ranks [N]."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _spearman(A: np.ndarray, A_hat: np.ndarray, boot: ClusterBootstrap, at: np.ndarray) -> Interval:
    """Returns the rank correlation; resamples keep the ranks of all pairs. Not debiased."""
    a, b = _ranks(A), _ranks(A_hat)

    def statistic(n: np.ndarray, *sums: np.ndarray) -> np.ndarray:
        x, y, xx, yy, xy = (ratio(total, n) for total in sums)
        return (xy - x * y) / np.sqrt(positive(xx - x**2) * positive(yy - y**2))

    return boot.interval([np.ones(len(a)), a, b, a**2, b**2, a * b], statistic, at)


def skills(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    """Returns Brier, log-likelihood, and the share of the Brier of each of `BASELINES` that is gained."""
    V = audit.v_hat
    ours = brier_terms(audit.p, V)
    inside = np.clip(audit.p, 1e-12, 1 - 1e-12)
    measures = {
        "brier": boot.mean(ours),
        "nll": boot.mean(-(V * np.log(inside) + (1 - V) * np.log1p(-inside))),
    }
    for name, baseline in BASELINES.items():
        theirs = brier_terms(baseline(audit), V)
        # Where the reference makes no error (few states, all alike), no share of it can be gained.
        measures[f"skill_over_{name}"] = boot.interval([ours, theirs], lambda a, b: 1 - a / positive(b))
    return measures


def brier_terms(p: np.ndarray, v_hat: np.ndarray) -> np.ndarray:
    """Returns [N] (p - Vhat)^2 + Vhat (1 - Vhat): the mean squared error of p against a state's samples."""
    return (p - v_hat) ** 2 + v_hat * (1 - v_hat)


def _solver(audit: AuditData, boot: ClusterBootstrap) -> dict[str, Interval]:
    known = np.flatnonzero(np.isfinite(audit.v_star))
    dead = np.flatnonzero(audit.v_star == 0)
    return {
        "p_where_lost": boot.mean(audit.p[dead], dead),
        "share_above_solver": boot.mean(audit.p[known] > audit.v_star[known] + SOLVER_TOLERANCE, known),
    }
