"""Whether a frozen critic still fits an actor that moves away from the policy it was made for.

Free checks compare values with the outcomes of rollouts that training samples anyway; paid ones measure step
advantages by fresh continuations of the present actor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from critics.audit import AuditData
from critics.logistic import binomial_regression, logit, sigmoid
from critics.quality import explained_variance_within, step_measures
from pipeline.statistics import Interval

MIN_ROLLOUTS = 50
"""Fewer graded rollouts say too little of level and slope to act on (start value)."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Recalibration of a frozen critic: p' = sigmoid(slope logit(p) + shift), slope > 0.

    Strictly monotone, so it moves levels and never the order of two values.
    """

    slope: float = 1.0
    shift: float = 0.0

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Returns the corrected values, the same ones bit for bit where nothing is corrected."""
        if self.slope == 1.0 and self.shift == 0.0:
            return values
        return sigmoid(self.slope * logit(values, floor=1e-9) + self.shift)


def _columns(
    values: Sequence[np.ndarray], rewards: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns value, reward and weight of every state: alike, and as much as the rollouts together.

    Never 1 per rollout: how long one is depends on R, so the start of a failure that ends early would count
    for more than that of a success, and a critic that is right would look wrong.
    """
    v = np.concatenate([np.asarray(x, np.float64) for x in values])
    r = np.concatenate([np.full(len(x), float(reward)) for x, reward in zip(values, rewards, strict=True)])
    w = np.full(len(v), len(values) / len(v))
    return v, r, w


def free_check(values: Sequence[np.ndarray], rewards: Sequence[float]) -> dict[str, float]:
    """Returns bias, slope, skill and AUROC of (V_i, R) over the states of graded bare rollouts.

    `bias`: mean V - R; `slope`: of log-odds of R on those of V, 1 if right; `skill`: Brier gained over the
    best constant; `auroc`. Each state weighs the same. Of outcomes that are all equal only the bias is
    known.

    Args:
        values: [T_i] values of each rollout.
        rewards: R of each.
    """
    if not len(rewards):
        return {}
    v, r, w = _columns(values, rewards)
    found = {"bias": float(np.average(v - r, weights=w)), "rollouts": float(len(rewards))}
    if r.min() == r.max():
        return found
    features = np.stack([logit(v), np.ones(len(v))], axis=1)
    slope, _ = binomial_regression(features, r * w, w, ridge=1e-4)
    mean = np.average(r, weights=w)
    brier, base = np.average((v - r) ** 2, weights=w), np.average((mean - r) ** 2, weights=w)
    return found | {"slope": float(slope), "skill": float(1 - brier / base), "auroc": _auroc(v, r, w)}


def _auroc(v: np.ndarray, r: np.ndarray, w: np.ndarray) -> float:
    order = np.argsort(v, kind="stable")
    v, win, lose = v[order], (w * r)[order], (w * (1 - r))[order]
    starts = np.flatnonzero(np.diff(v, prepend=-np.inf) != 0)
    wins, losses = np.add.reduceat(win, starts), np.add.reduceat(lose, starts)
    below = np.cumsum(losses) - losses
    return float((wins * (below + 0.5 * losses)).sum() / (wins.sum() * losses.sum()))


def fit_correction(values: Sequence[np.ndarray], rewards: Sequence[float]) -> Correction:
    """Returns the maximum-likelihood correction of these values; its slope is never below .1.

    A faint pull to no correction decides where the outcomes say nothing.
    """
    v, r, w = _columns(values, rewards)
    x = logit(v, floor=1e-9)
    features = np.stack([x, np.ones(len(v))], axis=1)
    slope, shift = binomial_regression(features, r * w, w, ridge=1e-2, centre=np.array([1.0, 0.0]))
    if slope < 0.1:
        slope = 0.1
        shift = binomial_regression(features[:, 1:], r * w, w, ridge=1e-2, offset=slope * x)[0]
    return Correction(float(slope), float(shift))


def level_is_off(check: dict[str, float], *, max_bias: float, min_slope: float, max_slope: float) -> bool:
    """Returns whether bias or slope of a free check on enough rollouts lies outside its limits."""
    if check.get("rollouts", 0) < MIN_ROLLOUTS:
        return False
    slope = check.get("slope", 1.0)
    return abs(check["bias"]) > max_bias or not min_slope <= slope <= max_slope


def paid_check(audit: AuditData, *, num_resamples: int = 500, seed: int = 0) -> dict[str, Interval]:
    """Returns `rho_a`, `cov_a`, `sign_agreement`, `ev_within` on states that the present actor continued."""
    steps = step_measures(audit, num_resamples=num_resamples, seed=seed)
    return {
        "rho_a": steps["rho_a"],
        "cov_a": steps["cov_a"],
        "sign_agreement": steps["sign_agreement"],
        "ev_within": explained_variance_within(audit, num_resamples=num_resamples, seed=seed),
    }


def steps_are_off(check: dict[str, Interval], *, min_sign_agreement: float) -> bool:
    """Returns whether step advantages are no longer to be trusted.

    So it is if the interval of Cov(A, Ahat) touches 0, or if too few clear steps have the right sign. The
    covariance has rho_A's sign and needs no variance of true advantages, which a few hundred states often
    leave undefined: rho_A's interval would then touch 0 whatever the critic.
    """
    signs = check["sign_agreement"].value
    return not check["cov_a"].low > 0 or (math.isfinite(signs) and signs < min_sign_agreement)
