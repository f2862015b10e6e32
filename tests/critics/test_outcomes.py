"""A critic of a recorded policy, judged by outcomes: known skills are recovered, useless critics fail."""

import numpy as np
import pytest

from critics.audit.outcomes import outcome_skills
from critics.report.gate import judge_outcomes, passed

N = 400
CLUSTERS = [f"c{i // 10}" for i in range(N)]
CHANCE = np.where(np.arange(N) % 2 == 0, 0.2, 0.8)
REWARD = np.array([float((i // 2) % 5 < round(5 * p)) for i, p in enumerate(CHANCE)])
"""Every ten rollouts, a cluster, five of either chance, win exactly as often as they should."""


def skills(values: list[np.ndarray]) -> dict[str, float]:
    return {name: found.value for name, found in outcome_skills(values, list(REWARD), CLUSTERS).items()}


def test_the_skill_of_the_true_values_is_the_share_of_the_outcomes_variance_that_they_explain() -> None:
    """1 - E V(1 - V)/Var R = 1 - .16/.25."""
    found = skills([np.full(3, p) for p in CHANCE])
    assert found["skill_over_constant"] == pytest.approx(0.36)
    assert found["skill_over_position"] == pytest.approx(0.36)


def test_a_long_rollout_counts_no_more_than_a_short_one() -> None:
    short = skills([np.full(1, p) for p in CHANCE])
    long = skills([np.full(1 if p < 0.5 else 7, p) for p in CHANCE])
    assert long["skill_over_constant"] == pytest.approx(short["skill_over_constant"])


def verdict(values: list[np.ndarray], clusters: list[str] = CLUSTERS, converged: bool = True) -> bool:
    return passed(judge_outcomes(outcome_skills(values, list(REWARD), clusters), converged=converged))


def test_true_values_pass_and_critics_that_know_nothing_fail() -> None:
    true = [np.full(3, p) for p in CHANCE]
    assert verdict(true)
    assert not verdict([np.full(3, 0.5)] * N)
    assert not verdict([1 - V for V in true])
    assert not verdict(true, converged=False)
    assert not verdict(true, ["one"] * N)  # no bounds
    # Failures are short here, so the step number alone tells much: a critic that knows only that is none.
    lengths = np.where(REWARD == 1, 4, 2)
    of_step = [REWARD.mean(), REWARD.mean(), 1.0, 1.0]
    by_step = [np.array(of_step[:n]) for n in lengths]
    found = outcome_skills(by_step, list(REWARD), CLUSTERS)
    assert found["skill_over_constant"].value > 0.2
    assert found["skill_over_position"].value <= 0
    assert not verdict(by_step)
