"""Whether a candidate takes the place of the policy that is served: a rule over Beta posteriors.

An arm's success rate has the posterior Beta(1 + s, 1 + n - s) after n rollouts whose rewards add up to s,
from a uniform prior (Gelman et al., Bayesian Data Analysis, section 2.1; two of them compared: Scott 2010, A
modern Bayesian look at the multi-armed bandit, section 3). Rewards between 0 and 1 vary less than outcomes
of 0 or 1 with the same mean, so with graded ones the posterior is too wide, never too narrow.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np

ONE_IN = 5
"""One request in so many goes to the candidate, the others to the policy that is served."""
MIN_ROLLOUTS = 100
"""Of the candidate, before anything is decided; four times as many of the baseline."""
LOOK = ONE_IN * MIN_ROLLOUTS
"""Rollouts of both arms together after which one may decide, and again after as many more."""
LOOKS = 2
"""Then the baseline stays. Each look adds to the chance that luck decides: at a baseline of 70 % an equal
candidate is promoted in 7.4 % of rounds, one that is 5 points worse in 0.5 % (docs/rounds.md)."""
PROMOTE_AT = 0.95
"""P(candidate better than baseline) from which it is promoted."""
WORSE, ROLL_BACK_AT = 0.95, 0.9
"""P(candidate below .95 of the baseline) from which it is rolled back."""
SIMULATIONS = 20_000
"""Behind each simulated rate r, whose standard error is sqrt(r (1 - r) / SIMULATIONS), .0035 at most."""
ANGLES = np.linspace(0.0, np.pi / 2, 2001)
"""Success rates are held as angles, p = sin^2(angle), in which the posterior of n rollouts has the standard
deviation 1 / (2 sqrt(n)) whatever the rate (Anscombe 1948): three angles for 40,000 rollouts."""
RATES = np.sin(ANGLES) ** 2

Verdict = Literal["promote", "roll_back", "continue"]


@dataclass(frozen=True, slots=True)
class Arm:
    """What an arm's share of the traffic came to."""

    rewards: float  # their sum, 0 <= rewards <= rollouts
    rollouts: int  # graded ones
    ungraded: int = 0

    def with_ungraded(self, reward: int) -> "Arm":
        """Returns the arm as if each of its ungraded rollouts had this reward."""
        return Arm(self.rewards + reward * self.ungraded, self.rollouts + self.ungraded)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done, and the two probabilities that it hangs on."""

    verdict: Verdict
    better: float  # P(candidate > baseline) at least, whatever the ungraded rollouts would have been
    worse: float  # P(candidate < WORSE x baseline) at least


def decide(candidate: Arm, baseline: Arm) -> Decision:
    """Returns the decision on a candidate; without a clear word, continue.

    What nobody could grade counts against either verdict: as failed of the candidate and as a success of the
    baseline where it would be promoted, the other way round where it would be rolled back. So nobody is
    served for making a verifier give up, or refused for its outage, and no outage adds to the errors.

    Example:
        >>> decide(Arm(85, 100), Arm(280, 400)).verdict
        'promote'
        >>> decide(Arm(70, 100), Arm(280, 400)).verdict
        'continue'
        >>> decide(Arm(50, 100), Arm(280, 400)).verdict
        'roll_back'
    """
    better = 1 - probability_below(candidate.with_ungraded(0), baseline.with_ungraded(1))
    worse = probability_below(candidate.with_ungraded(1), baseline.with_ungraded(0), WORSE)
    verdict: Verdict = "continue"
    if better >= PROMOTE_AT:
        verdict = "promote"
    elif worse >= ROLL_BACK_AT:
        verdict = "roll_back"
    return Decision(verdict, better, worse)


def probability_below(arm: Arm, other: Arm, factor: float = 1.0) -> float:
    """Returns P(p < factor p_other) = integral of f_other(q) F(factor q) dq, for 0 < factor <= 1.

    By sums over RATES: within 1e-4 of the integral.

    Example:
        >>> round(probability_below(Arm(7, 10), Arm(7, 10)), 6)
        0.5
    """
    of_arm = _posteriors(np.array([arm.rewards]), arm.rollouts)
    of_other = _posteriors(np.array([other.rewards]), other.rollouts)
    return float(_below(of_arm, of_other, factor)[0, 0])


def _posteriors(rewards: np.ndarray, rollouts: int) -> np.ndarray:
    """Returns [len(rewards), len(RATES)] weights of the rates, which add up to 1.

    The density of the angle is p^(s + 1/2) (1 - p)^(n - s + 1/2), up to a factor: that of p times dp/dangle.
    """
    with np.errstate(divide="ignore"):
        logs = np.outer(rewards + 0.5, np.log(RATES)) + np.outer(rollouts - rewards + 0.5, np.log1p(-RATES))
    weights = np.exp(logs - logs.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _below(of_arms: np.ndarray, of_others: np.ndarray, factor: float) -> np.ndarray:
    """Returns [arms, others] P(p < factor p_other) of weights of RATES."""
    cumulated = np.cumsum(of_arms, axis=1) - of_arms / 2  # half of a rate's own weight lies below it
    angles = np.arcsin(np.sqrt(factor * RATES))
    return np.stack([np.interp(angles, ANGLES, row) for row in cumulated]) @ of_others.T


@cache
def verdicts(candidate_rollouts: int, baseline_rollouts: int) -> np.ndarray:
    """Returns [n_candidate + 1, n_baseline + 1]: verdicts by successes; 1 promote, -1 roll back."""
    of_candidate = _posteriors(np.arange(candidate_rollouts + 1.0), candidate_rollouts)
    of_baseline = _posteriors(np.arange(baseline_rollouts + 1.0), baseline_rollouts)
    promoted = 1 - _below(of_candidate, of_baseline, 1.0) >= PROMOTE_AT
    rolled_back = _below(of_candidate, of_baseline, WORSE) >= ROLL_BACK_AT
    return promoted.astype(np.int8) - (rolled_back & ~promoted)


def simulated_rates(candidate: float, baseline: float) -> dict[Verdict, float]:
    """Returns how often each verdict comes out, of arms whose true success rates are these.

    Each simulation draws LOOK more rollouts for a look until one of LOOKS decides; the seed is fixed.
    """
    rng = np.random.default_rng(0)
    sizes = MIN_ROLLOUTS, LOOK - MIN_ROLLOUTS
    won, won_by_baseline = (
        np.cumsum(rng.binomial(n, rate, (LOOKS, SIMULATIONS)), axis=0)
        for n, rate in zip(sizes, (candidate, baseline), strict=True)
    )
    found = np.zeros(SIMULATIONS, np.int8)
    for look in range(LOOKS):
        said = verdicts(*((look + 1) * n for n in sizes))[won[look], won_by_baseline[look]]
        found = np.where(found == 0, said, found)
    return {
        "promote": float(np.mean(found == 1)),
        "roll_back": float(np.mean(found == -1)),
        "continue": float(np.mean(found == 0)),
    }
