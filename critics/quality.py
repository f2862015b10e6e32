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

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from critics.audit import AuditData
from critics.baselines import BASELINES
from critics.intervals import (
    APART,
    cluster_codes,
    interval_of_draws,
    interval_of_sums,
    positive,
    ratio,
    resample_counts,
    standard_errors_apart,
)
from critics.logistic import binomial_regression, logit
from pipeline.statistics import Interval

NUM_BINS = 15
NUM_FLOOR_DRAWS = 200
NUM_POSITIONS = 5
LONG_ROLLOUT = 8
SOLVER_TOLERANCE = 0.05
"""p counts as above V* by more than this: a probability is never exactly 0 (start value)."""
Statistic = Callable[[np.ndarray], np.ndarray]


def _part(sums: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.moveaxis(sums, -1, 0))


class _Measured:
    """Rows of one audit and how to put intervals on statistics of their sums."""

    def __init__(self, clusters: np.ndarray, num_resamples: int, seed: int) -> None:
        self._clusters, self._num_resamples, self._seed = clusters, num_resamples, seed

    def __call__(
        self,
        columns: list[np.ndarray],
        statistic: Statistic,
        at: np.ndarray | None = None,
    ) -> Interval:
        rows = np.stack([np.asarray(column, np.float64) for column in columns], axis=1)
        clusters = self._clusters if at is None else self._clusters[at]
        return interval_of_sums(rows, clusters, statistic, num_resamples=self._num_resamples, seed=self._seed)

    @property
    def draws(self) -> dict[str, int]:
        """How often and from which seed to resample."""
        return {"num_resamples": self._num_resamples, "seed": self._seed}

    def mean(self, column: np.ndarray, at: np.ndarray | None = None) -> Interval:
        return self([np.ones(len(column)), column], lambda s: ratio(s[..., 1], s[..., 0]), at)


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
    by_sums = _Measured(audit.cluster, num_resamples, seed)
    measures = _errors(audit, by_sums) | _steps(audit, by_sums) | _skills(audit, by_sums)
    measures |= calibration(audit, num_resamples=num_resamples, seed=seed)
    measures |= _ranking(audit, by_sums, num_resamples, seed) | _solver(audit, by_sums)
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


def _errors(audit: AuditData, by_sums: _Measured) -> dict[str, Interval]:
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
    by_sums = _Measured(audit.cluster, num_resamples, seed)
    p, V, v = audit.p, audit.v_hat, audit.noise

    def statistic(sums: np.ndarray) -> np.ndarray:
        n, error, total, square, noise = _part(sums)
        variance = ratio(square, n) - ratio(total, n) ** 2 - ratio(noise, n)
        return 1 - ratio(error, n) / positive(variance)

    return by_sums([np.ones(len(p)), (p - V) ** 2 - v, V, V**2, v], statistic)


def _centred(x: np.ndarray, groups: np.ndarray) -> np.ndarray:
    sizes_ = np.bincount(groups)
    return x - (np.bincount(groups, weights=x) / np.maximum(sizes_, 1))[groups]


def explained_variance_within(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> Interval:
    """Returns EV_within: the same inside single rollouts; at most 0 is useless for steps."""
    by_sums = _Measured(audit.cluster, num_resamples, seed)
    if not len(audit):
        return Interval(np.nan, np.nan, np.nan)
    groups = audit.groups()
    n = np.bincount(groups)[groups]
    noise = (1 - 1 / n) * audit.noise
    p, V = _centred(audit.p, groups), _centred(audit.v_hat, groups)
    rows = [(p - V) ** 2 - noise, V**2 - noise]
    # A rollout with one audited state contributes exact zeros.
    return by_sums(rows, lambda s: 1 - s[..., 0] / positive(s[..., 1]))


def _steps(audit: AuditData, by_sums: _Measured) -> dict[str, Interval]:
    i, j = audit.pairs()
    A, A_hat = audit.p[j] - audit.p[i], audit.v_hat[j] - audit.v_hat[i]
    noise = audit.noise[i] + audit.noise[j]
    columns = [np.ones(len(i)), A, A_hat, A**2, A_hat**2, A * A_hat, noise, (A - A_hat) ** 2 - noise]

    def moments(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n, a, b, aa, bb, ab, e, _ = _part(sums)
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
        n, a, _, aa, *_ = _part(sums)
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
    return _steps(audit, _Measured(audit.cluster, num_resamples, seed))


def _ranks(x: np.ndarray) -> np.ndarray:
    """Returns mid-ranks [N]."""
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]


def _spearman(A: np.ndarray, A_hat: np.ndarray, by_sums: _Measured, at: np.ndarray) -> Interval:
    """Returns the rank correlation; resamples keep the ranks of all pairs. Not debiased."""
    a, b = _ranks(A), _ranks(A_hat)

    def statistic(sums: np.ndarray) -> np.ndarray:
        n, x, y, xx, yy, xy = _part(sums)
        var_x, var_y = ratio(xx, n) - ratio(x, n) ** 2, ratio(yy, n) - ratio(y, n) ** 2
        return (ratio(xy, n) - ratio(x, n) * ratio(y, n)) / np.sqrt(positive(var_x) * positive(var_y))

    return by_sums([np.ones(len(a)), a, b, a**2, b**2, a * b], statistic, at)


def brier_terms(p: np.ndarray, v_hat: np.ndarray) -> np.ndarray:
    """Returns [N] (p - Vhat)^2 + Vhat (1 - Vhat): the mean squared error of p against a state's samples."""
    return (p - v_hat) ** 2 + v_hat * (1 - v_hat)


def _skills(audit: AuditData, by_sums: _Measured) -> dict[str, Interval]:
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


def equal_mass_bins(p: np.ndarray, num_bins: int = NUM_BINS) -> np.ndarray:
    """Returns [N] bin numbers, 0-based and without gaps; equal p share a bin, so there may be fewer."""
    if not len(p):
        return np.zeros(0, dtype=np.int64)
    edges = np.unique(np.quantile(p, np.linspace(0, 1, num_bins + 1)[1:-1]))
    return np.unique(np.searchsorted(edges, p, side="left"), return_inverse=True)[1]


def calibration_error(
    p: np.ndarray, v_hat: np.ndarray, clusters: np.ndarray, *, num_resamples: int = 1000, seed: int = 0
) -> Interval:
    """Returns the ECE over equal-mass bins, with bounds of the *true* binned calibration error.

    Noise adds to an ECE, and the less the more there is to see; an ECE minus any floor is therefore too low
    for a miscalibrated critic, and resampling inherits that. The bounds ask instead which true errors could
    have shown this ECE. Noise: companies (clusters) resampled after each bin's gap is taken out of its
    states, so it holds continuations' noise, the critic's errors in single states and their likeness within a
    company. Low: what even the 97.5 % quantile of these draws leaves unexplained. High: the largest T that
    shows so low an ECE in 2.5 % of draws if every bin is off by T the same way, which is how equally noisy
    bins hide it best.

    Args:
        p: [N] predictions.
        v_hat: [N] k / K.
        clusters: [N] what is resampled.
        num_resamples: draws.
        seed: of the draws.

    Returns:
        NaN bounds with a single cluster.
    """
    bins = equal_mass_bins(p)
    member = np.eye(int(bins.max()) + 1)[bins]
    gaps = (p - v_hat) @ member / len(p)
    ece = float(np.abs(gaps).sum())
    codes, num_clusters = cluster_codes(clusters)
    if num_clusters < 2:
        return Interval(ece, np.nan, np.nan)
    sizes_ = np.zeros((num_clusters, member.shape[1]))
    np.add.at(sizes_, codes, member)
    share = sizes_ / sizes_.sum(axis=0)
    # Taking out the bin's own mean takes noise out too, the more the fewer clusters it has. A bin that lies
    # in one cluster keeps its gap: it may all be chance.
    alone = 1 - (share**2).sum(axis=0) < 1e-9
    loss = np.where(alone, 1.0, 1 - (share**2).sum(axis=0))
    sums = np.zeros_like(sizes_)
    np.add.at(sums, codes, member * (p - v_hat)[:, None] / len(p))
    sums -= np.where(alone, 0.0, gaps) * share
    counts = resample_counts(num_clusters, num_resamples, seed)
    noise = ((counts - 1) @ sums) / np.sqrt(loss)
    low = ece - float(np.quantile(np.abs(noise).sum(axis=1), 0.975, method="higher"))
    high = _largest_error(ece, noise, member.mean(axis=0))
    return Interval(ece, max(0.0, low), max(high, ece))


def _largest_error(ece: float, noise: np.ndarray, mass: np.ndarray, tail: float = 0.025) -> float:
    """Returns the largest T in [0, 1] for which an ECE at most this low is not rarer than `tail`.

    Args:
        ece: observed.
        noise: [B, bins] draws of the bins' gaps, times their mass, of a calibrated critic.
        mass: [bins] shares of states, summing to 1.
        tail: of the draws.
    """
    largest = 0.0
    for direction in (1.0, -1.0):
        low, high = 0.0, 1.0
        for _ in range(14):
            middle = (low + high) / 2
            shown = np.abs(noise + direction * middle * mass).sum(axis=1)
            low, high = (middle, high) if np.quantile(shown, tail) < ece else (low, middle)
        largest = max(largest, high)
    return largest


def calibration_excess(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns `ece_floor`, what a perfect critic would show, and `ece_excess`, ECE minus this floor.

    The floor is the mean ECE of `NUM_FLOOR_DRAWS` draws k ~ Bin(K, p). The excess has percentile bounds
    over clusters, moved by the mean that resampling adds to a sum of absolute values.
    """
    p, V = audit.p, audit.v_hat
    bins = equal_mass_bins(p)
    member = np.eye(int(bins.max()) + 1)[bins]
    rng = np.random.default_rng([seed, 15])
    draws = rng.binomial(audit.K.astype(np.int64), p, size=(NUM_FLOOR_DRAWS, len(p))) / audit.K
    floor = float((np.abs((p - draws) @ member).sum(axis=1) / len(p)).mean())
    excess = float(np.abs((p - V) @ member).sum() / len(p)) - floor
    codes, num_clusters = cluster_codes(audit.cluster)
    bounds = (np.nan, np.nan)
    if num_clusters >= 2:
        sums = np.zeros((num_clusters, member.shape[1] + 1))
        np.add.at(sums, codes, np.c_[member * (p - V)[:, None], np.ones(len(p))])
        drawn = resample_counts(num_clusters, num_resamples, seed) @ sums
        errors = ratio(np.abs(drawn[:, :-1]).sum(axis=1), drawn[:, -1])
        bounds = tuple(excess + np.quantile(errors, (0.025, 0.975)) - errors.mean())
    return {"ece_floor": Interval(floor, np.nan, np.nan), "ece_excess": Interval(excess, *map(float, bounds))}


def calibration(audit: AuditData, *, num_resamples: int = 1000, seed: int = 0) -> dict[str, Interval]:
    """Returns ECE with bounds of the true error, its floor and excess, Brier decomposition, logit line."""
    p, V = audit.p, audit.v_hat
    if not len(p):
        undefined = Interval(np.nan, np.nan, np.nan)
        empty = ["ece", "ece_floor", "ece_excess", "reliability", "resolution", "uncertainty"]
        return dict.fromkeys([*empty, "logit_slope", "logit_intercept"], undefined)
    bins = equal_mass_bins(p)
    num_bins = int(bins.max()) + 1
    member = np.eye(num_bins)[bins]
    by_sums = _Measured(audit.cluster, num_resamples, seed)

    def decomposition(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        size, gap, total = (sums[..., b * num_bins : (b + 1) * num_bins] for b in range(3))
        n = size.sum(-1)
        mean = ratio(total.sum(-1), n)
        inner = np.where(size > 0, size, 1.0)
        reliability = ratio((gap**2 / inner).sum(-1), n)
        resolution = ratio((size * (total / inner - mean[..., None]) ** 2).sum(-1), n)
        return reliability, resolution, mean * (1 - mean)

    columns = [*member.T, *(member * (p - V)[:, None]).T, *(member * V[:, None]).T]
    parts = {
        "reliability": by_sums(columns, lambda s: decomposition(s)[0]),
        "resolution": by_sums(columns, lambda s: decomposition(s)[1]),
        "uncertainty": by_sums(columns, lambda s: decomposition(s)[2]),
    }
    slope, intercept = logit_line(
        p, audit.k, audit.K, audit.cluster, num_resamples=min(num_resamples, 200), seed=seed
    )
    return {
        "ece": calibration_error(p, V, audit.cluster, num_resamples=num_resamples, seed=seed),
        **calibration_excess(audit, num_resamples=num_resamples, seed=seed),
        **parts,
        "logit_slope": slope,
        "logit_intercept": intercept,
    }


def logit_line(
    p: np.ndarray, k: np.ndarray, K: np.ndarray, clusters: np.ndarray, *, num_resamples: int, seed: int
) -> tuple[Interval, Interval]:
    """Returns slope and intercept of logit V on logit p: 1 and 0 if p is calibrated.

    Args:
        p: [N] values.
        k: [N] successes, weighted.
        K: [N] samples, weighted alike.
        clusters: [N] what is resampled.
        num_resamples: each of them is a fit.
        seed: of the resamples.
    """
    features = np.stack([logit(p), np.ones(len(p))], axis=1)
    codes, num_clusters = cluster_codes(clusters)

    def fit(weights: np.ndarray) -> np.ndarray:
        return binomial_regression(features, k * weights, K * weights, ridge=1e-4, max_steps=25)

    values = fit(np.ones(len(p))).tolist()
    if num_clusters < 2:
        return Interval(values[0], np.nan, np.nan), Interval(values[1], np.nan, np.nan)
    draws = np.stack(
        [fit(c[codes].astype(float)) for c in resample_counts(num_clusters, num_resamples, seed)]
    )
    return interval_of_draws(values[0], draws[:, 0]), interval_of_draws(values[1], draws[:, 1])


CURVES = ("auroc", "auprc")
RANKINGS = (*CURVES, "auroc_within_task", "auprc_within_task")


def _ranking(audit: AuditData, by_sums: _Measured, num_resamples: int, seed: int) -> dict[str, Interval]:
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


def _solver(audit: AuditData, by_sums: _Measured) -> dict[str, Interval]:
    known = np.flatnonzero(np.isfinite(audit.v_star))
    dead = np.flatnonzero(audit.v_star == 0)
    return {
        "p_where_lost": by_sums.mean(audit.p[dead], dead),
        "share_above_solver": by_sums.mean(
            (audit.p[known] > audit.v_star[known] + SOLVER_TOLERANCE).astype(float), known
        ),
    }


def position_bins(audit: AuditData, num_bins: int = NUM_POSITIONS) -> np.ndarray:
    """Returns [N] the fifth of the budget that a state lies in, 0-based."""
    return np.minimum((audit.position * num_bins).astype(np.int64), num_bins - 1)


def length_bins(audit: AuditData) -> np.ndarray:
    """Returns [N] the audited states of each state's rollout, in words; long rollouts share a name."""
    groups = audit.groups()
    names = [
        f"{n} states" if n < LONG_ROLLOUT else f"{LONG_ROLLOUT} states or more"
        for n in np.bincount(groups)[groups]
    ]
    return np.array(names, dtype=str)


SLICE_KINDS = ("level", "position", "length", "split", "context")
SLICE_METRICS = ("ev", "ev_within", "rho_a", "bias", "rmse", "skill_over_task_rate", "auroc", "auprc")


def slices(
    audit: AuditData, *, kinds: Sequence[str] = SLICE_KINDS, num_resamples: int = 500, seed: int = 0
) -> list[dict[str, Any]]:
    """Returns one row per slice: kind, name, num_states, num_tasks, and an Interval per measure.

    Measures: `SLICE_METRICS`, see `measure`.
    """
    keys: dict[str, np.ndarray] = {
        "level": audit.level,
        "position": position_bins(audit),
        "length": length_bins(audit),
        "split": audit.split,
        "context": audit.context,
    }
    rows = []
    for kind in kinds:
        key = keys[kind]
        for name in sorted(set(key.tolist())):
            part = audit.where(key == name)
            by_sums = _Measured(part.cluster, num_resamples, seed)
            found = _errors(part, by_sums) | _steps(part, by_sums)
            found |= _skills(part, by_sums) | _ranking(part, by_sums, num_resamples, seed)
            label = f"{name * 20}-{name * 20 + 20} %" if kind == "position" else str(name)
            rows.append(
                {
                    "kind": kind,
                    "name": label,
                    "num_states": len(part),
                    "num_tasks": len(set(part.task_id.tolist())),
                }
                | {metric: found[metric] for metric in SLICE_METRICS}
            )
    return rows
