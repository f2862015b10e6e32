"""Whether a frozen critic still fits an actor that moves away from the policy it was made for.

Free checks compare values with the outcomes of rollouts that training samples anyway; paid ones measure step
advantages by fresh continuations of the present actor.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from critics.audit.data import AuditData
from critics.audit.measures import explained_variance_within, steps
from critics.logit import binomial_regression, logit, sigmoid
from pipeline.statistics import UNDEFINED, ClusterBootstrap, Interval, cluster_codes

MIN_ROLLOUTS = 50
"""Fewer graded rollouts say too little of level and slope to act on (start value)."""
MIN_CLUSTERS = 20
"""Fewer clusters are not enough either: rollouts of one cluster share what it hides."""
MAX_BIAS, MIN_SLOPE, MAX_SLOPE = 0.1, 0.7, 1.4
"""Limits of mean V - R, and of the slope of log-odds of R on those of V, but for chance (start values)."""
MIN_SIGN_AGREEMENT = 0.6
"""Share of clear steps with the right sign; with an upper bound below it steps are off (start value)."""
NUM_RESAMPLES, NUM_SLOPES = 500, 200
"""Resamples of clusters; fewer of a slope, where each is a fit."""


@dataclass(frozen=True, slots=True)
class Correction:
    """Recalibration of a frozen critic: p' = sigmoid(slope logit(p) + shift), slope > 0.

    Strictly monotone, so it moves levels and never the order of two values.
    """

    slope: float = 1.0
    shift: float = 0.0

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Returns the corrected values, the same ones bit for bit where nothing is corrected."""
        if self == Correction():
            return values
        return sigmoid(self.slope * logit(values, floor=1e-9) + self.shift)

    def undo(self, values: np.ndarray) -> np.ndarray:
        """Returns the values that were corrected to these, up to rounding and to values next to 0 or 1."""
        if self == Correction():
            return values
        return sigmoid((logit(values, floor=1e-9) - self.shift) / self.slope)


def _columns(
    values: Sequence[np.ndarray], rewards: Sequence[float]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns value, reward and weight of every state: alike, and as much as the rollouts together.

    Never 1 per rollout: how long one is depends on R, so the start of a failure that ends early would count
    for more than that of a success, and a critic that is right would look wrong.
    """
    v = np.concatenate([np.asarray(x, np.float64) for x in values])
    r = np.concatenate([np.full(len(x), float(reward)) for x, reward in zip(values, rewards, strict=True)])
    return v, r, np.full(len(v), len(values) / len(v))


@dataclass(frozen=True, slots=True)
class FreeCheck:
    """What outcomes that training samples anyway say of the values."""

    num_rollouts: int  # graded
    num_clusters: int
    bias: Interval  # mean V - R, each state weighing the same
    slope: Interval  # of log-odds of R on those of V, 1 if right; undefined where outcomes are all equal


def free_check(
    values: Sequence[np.ndarray], rewards: Sequence[float], clusters: Sequence[str], *, seed: int = 0
) -> FreeCheck:
    """Returns the free check of graded bare rollouts, one at least, of values [T_i]; resamples clusters."""
    v, r, w = _columns(values, rewards)
    of = np.repeat(np.asarray(clusters), [len(x) for x in values])
    bias = ClusterBootstrap(of, NUM_RESAMPLES, seed).ratio(w * (v - r), w)
    features = np.stack([logit(v), np.ones(len(v))], axis=1)

    def slopes(counts: np.ndarray) -> np.ndarray:
        """How often each state is drawn, [B, N] -> slopes [B, 1]."""
        drawn = w * counts
        fits = [binomial_regression(features, r * n, n, ridge=1e-4, max_steps=25) for n in drawn]
        return np.stack(fits)[:, :1]

    slope = UNDEFINED
    if r.min() < r.max():
        [slope] = ClusterBootstrap(of, NUM_SLOPES, seed).weighted(slopes)
    return FreeCheck(len(rewards), cluster_codes(clusters)[1], bias, slope)


def fit_correction(values: Sequence[np.ndarray], rewards: Sequence[float]) -> Correction:
    """Returns the likeliest correction of these values; its slope is never below .1.

    Slope and shift are pulled to no correction by a normal prior of standard deviation 2 each; outcomes that
    are all equal correct nothing.
    """
    if min(rewards) == max(rewards):
        return Correction()
    v, r, w = _columns(values, rewards)
    x = logit(v, floor=1e-9)
    features = np.stack([x, np.ones(len(v))], axis=1)
    slope, shift = binomial_regression(features, r * w, w, ridge=0.25, centre=np.array([1.0, 0.0]))
    if slope < 0.1:
        slope = 0.1
        shift = binomial_regression(features[:, 1:], r * w, w, ridge=0.25, offset=slope * x)[0]
    return Correction(float(slope), float(shift))


def level_is_off(check: FreeCheck) -> bool:
    """Returns whether bias or slope of a free check clearly lies outside its limits.

    Clearly: its interval excludes a right critic's 0 or 1 as well, on enough rollouts of enough clusters.
    """
    few = check.num_rollouts < MIN_ROLLOUTS or check.num_clusters < MIN_CLUSTERS
    if few or math.isnan(check.slope.value):
        return False
    too_far = abs(check.bias.value) > MAX_BIAS and check.bias.excludes(0)
    return too_far or (not MIN_SLOPE <= check.slope.value <= MAX_SLOPE and check.slope.excludes(1))


def paid_check(audit: AuditData, *, num_resamples: int = NUM_RESAMPLES, seed: int = 0) -> dict[str, Interval]:
    """Returns `rho_a`, `cov_a`, `sign_agreement`, `ev_within` on states that the present actor continued."""
    boot = ClusterBootstrap(audit.cluster, num_resamples, seed)
    found = steps(audit, boot)
    chosen = {name: found[name] for name in ("rho_a", "cov_a", "sign_agreement")}
    return chosen | {"ev_within": explained_variance_within(audit, boot)}


def is_measured(check: Mapping[str, Interval]) -> bool:
    """Returns whether a paid check says anything: it has states that follow one another, of two clusters.

    And a step that clearly changed the chance: where all succeed or fail anyway, the covariance with a critic
    that is right touches 0 as well.
    """
    return math.isfinite(check["cov_a"].low) and math.isfinite(check["sign_agreement"].value)


def steps_are_off(check: Mapping[str, Interval]) -> bool:
    """Returns whether step advantages are no longer to be trusted, for a check that `is_measured`.

    The covariance has rho_A's sign and needs no variance of true advantages, which a few hundred states often
    leave undefined: rho_A's interval would then touch 0 whatever the critic.
    """
    return not check["cov_a"].low > 0 or check["sign_agreement"].high < MIN_SIGN_AGREEMENT
