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

from __future__ import annotations

import numpy as np

from critics.audit.baselines import BASELINES
from critics.audit.calibration_error import calibration
from critics.audit.data import AuditData
from critics.audit.discrimination import ranking
from critics.audit.intervals import (
    APART,
    BySums,
    columns_of,
    positive,
    ratio,
    standard_errors_apart,
)
from pipeline.statistics import Interval

SOLVER_TOLERANCE = 0.05
"""p counts as above V* by more than this: a probability is never exactly 0 (start value)."""


def measure(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns every measure of all audited states by name; NaN where undefined.

    Error: `rmse`, `mae` (not debiased), `bias`. Explained variance: `ev`, `ev_within`. Steps: `rho_a`,
    `cov_a`, `spearman_a` (not debiased), `adv_rmse`, `sign_agreement`, `flattening` (SD(A)/SD(Ahat)),
    `slope_a` (of A on Ahat). Skill: `brier`, `nll`, `skill_over_constant`, `skill_over_task_rate`,
    `skill_over_position`. Calibration: `ece`, `ece_floor` (no bounds), `ece_excess`, `reliability`,
    `resolution`, `uncertainty`, `logit_slope`, `logit_intercept`. Ranking: `auroc`, `auprc`,
    `auroc_within_task`, `auprc_within_task`. Solver: `p_where_lost` (mean p where V* = 0),
    `share_above_solver` (p > V* + `SOLVER_TOLERANCE`). Counts come from `sizes`.
    """
    by_sums = BySums(audit.cluster, num_resamples, seed)
    measures = errors(audit, by_sums) | steps(audit, by_sums) | skills(audit, by_sums)
    measures |= calibration(audit, num_resamples=num_resamples, seed=seed)
    measures |= ranking(audit, by_sums, num_resamples, seed) | _solver(audit, by_sums)
    return measures


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


def errors(audit: AuditData, by_sums: BySums) -> dict[str, Interval]:
    """Returns how far values are from the truth, and what share of its differences they explain."""
    p, V, v = audit.p, audit.v_hat, audit.noise

    def rmse(s: np.ndarray) -> np.ndarray:
        return np.sqrt(np.maximum(ratio(s[..., 1], s[..., 0]), 0.0))

    error = p - V
    return {
        "rmse": by_sums([np.ones(len(p)), error**2 - v], rmse),
        "mae": by_sums.mean(np.abs(error)),
        "bias": by_sums.mean(error),
        "ev": explained_variance(audit, **by_sums.draws),
        "ev_within": explained_variance_within(audit, **by_sums.draws),
    }


def explained_variance(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> Interval:
    """Returns EV, the share of the differences between states that the critic explains."""
    by_sums = BySums(audit.cluster, num_resamples, seed)
    p, V, v = audit.p, audit.v_hat, audit.noise

    def statistic(sums: np.ndarray) -> np.ndarray:
        n, error, total, square, noise = columns_of(sums)
        variance = ratio(square, n) - ratio(total, n) ** 2 - ratio(noise, n)
        return 1 - ratio(error, n) / positive(variance)

    return by_sums([np.ones(len(p)), (p - V) ** 2 - v, V, V**2, v], statistic)


def explained_variance_within(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> Interval:
    """Returns EV_within: the same inside single rollouts; at most 0 is useless for steps."""
    by_sums = BySums(audit.cluster, num_resamples, seed)
    if not len(audit):
        return Interval(np.nan, np.nan, np.nan)
    groups = audit.groups()
    n = np.bincount(groups)[groups]
    noise = (1 - 1 / n) * audit.noise
    p, V = _centred(audit.p, groups), _centred(audit.v_hat, groups)
    rows = [(p - V) ** 2 - noise, V**2 - noise]
    # A rollout with one audited state contributes exact zeros.
    return by_sums(rows, lambda s: 1 - s[..., 0] / positive(s[..., 1]))


def _centred(x: np.ndarray, groups: np.ndarray) -> np.ndarray:
    sizes_ = np.bincount(groups)
    return x - (np.bincount(groups, weights=x) / np.maximum(sizes_, 1))[groups]


def steps(audit: AuditData, by_sums: BySums) -> dict[str, Interval]:
    """Returns what the critic's step advantages have to do with the true ones."""
    i, j = audit.pairs()
    A, A_hat = audit.p[j] - audit.p[i], audit.v_hat[j] - audit.v_hat[i]
    noise = audit.noise[i] + audit.noise[j]
    columns = [np.ones(len(i)), A, A_hat, A**2, A_hat**2, A * A_hat, noise, (A - A_hat) ** 2 - noise]

    def moments(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n, a, b, aa, bb, ab, e, _ = columns_of(sums)
        covariance = ratio(ab, n) - ratio(a, n) * ratio(b, n)
        return (
            positive(ratio(aa, n) - ratio(a, n) ** 2),
            positive(ratio(bb, n) - ratio(b, n) ** 2 - ratio(e, n)),
            covariance,
        )

    def rho(sums: np.ndarray) -> np.ndarray:
        var_a, var_b, covariance = moments(sums)
        return covariance / np.sqrt(var_a * var_b)

    def flattening(sums: np.ndarray) -> np.ndarray:
        n, a, _, aa, *_ = columns_of(sums)
        return np.sqrt(np.maximum(ratio(aa, n) - ratio(a, n) ** 2, 0.0) / moments(sums)[1])

    def slope(sums: np.ndarray) -> np.ndarray:
        _, var_b, covariance = moments(sums)
        return covariance / var_b

    clear = np.abs(standard_errors_apart(audit.k[j], audit.K[j], audit.k[i], audit.K[i])) > APART
    agree = (np.sign(A) == np.sign(A_hat)) & clear
    return {
        "rho_a": by_sums(columns, rho, i),
        "cov_a": by_sums(columns, lambda s: moments(s)[2], i),
        "spearman_a": _spearman(A, A_hat, by_sums, i),
        "adv_rmse": by_sums(columns, lambda s: np.sqrt(np.maximum(ratio(s[..., 7], s[..., 0]), 0.0)), i),
        "sign_agreement": by_sums([agree, clear], lambda s: ratio(s[..., 0], s[..., 1]), i),
        "flattening": by_sums(columns, flattening, i),
        "slope_a": by_sums(columns, slope, i),
    }


def step_measures(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns the measures of step advantages alone, as in `measure`."""
    return steps(audit, BySums(audit.cluster, num_resamples, seed))


def _ranks(x: np.ndarray) -> np.ndarray:
    """Returns mid-ranks [N]."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _spearman(A: np.ndarray, A_hat: np.ndarray, by_sums: BySums, at: np.ndarray) -> Interval:
    """Returns the rank correlation; resamples keep the ranks of all pairs. Not debiased."""
    a, b = _ranks(A), _ranks(A_hat)

    def statistic(sums: np.ndarray) -> np.ndarray:
        n, x, y, xx, yy, xy = columns_of(sums)
        var_x, var_y = ratio(xx, n) - ratio(x, n) ** 2, ratio(yy, n) - ratio(y, n) ** 2
        return (ratio(xy, n) - ratio(x, n) * ratio(y, n)) / np.sqrt(positive(var_x) * positive(var_y))

    return by_sums([np.ones(len(a)), a, b, a**2, b**2, a * b], statistic, at)


def skills(audit: AuditData, by_sums: BySums) -> dict[str, Interval]:
    """Returns Brier, log-likelihood, and the share of the Brier of each of `BASELINES` that is gained."""
    V = audit.v_hat
    ours = brier_terms(audit.p, V)
    inside = np.clip(audit.p, 1e-12, 1 - 1e-12)
    measures = {
        "brier": by_sums.mean(ours),
        "nll": by_sums.mean(-(V * np.log(inside) + (1 - V) * np.log1p(-inside))),
    }
    for name, baseline in BASELINES.items():
        theirs = brier_terms(baseline(audit), V)
        # Where the reference makes no error (few states, all alike), no share of it can be gained.
        measures[f"skill_over_{name}"] = by_sums(
            [ours, theirs], lambda s: 1 - s[..., 0] / positive(s[..., 1])
        )
    return measures


def brier_terms(p: np.ndarray, v_hat: np.ndarray) -> np.ndarray:
    """Returns [N] (p - Vhat)^2 + Vhat (1 - Vhat): the mean squared error of p against a state's samples."""
    return (p - v_hat) ** 2 + v_hat * (1 - v_hat)


def _solver(audit: AuditData, by_sums: BySums) -> dict[str, Interval]:
    known = np.flatnonzero(np.isfinite(audit.v_star))
    dead = np.flatnonzero(audit.v_star == 0)
    return {
        "p_where_lost": by_sums.mean(audit.p[dead], dead),
        "share_above_solver": by_sums.mean(
            (audit.p[known] > audit.v_star[known] + SOLVER_TOLERANCE).astype(float), known
        ),
    }
