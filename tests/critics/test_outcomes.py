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


def test_true_values_beat_the_step_number_where_failures_are_short() -> None:
    """A slip that ends a rollout is seen coming; weighed by 1/T, short failures made V_0 look too high."""
    rng = np.random.default_rng(0)
    values, won = [], []
    for slip in rng.choice([0.1, 0.2], 4000):
        slips = rng.random(4) < slip
        values.append((1 - slip) ** np.arange(4, 0, -1)[: slips.argmax() + 1 if slips.any() else 4])
        won.append(float(not slips.any()))
    clusters = [str(i // 4) for i in range(4000)]
    true = outcome_skills(values, won, clusters)
    assert true["skill_over_position"].low > 0
    low = [np.where(np.arange(len(V)) == 0, V - 0.15, V) for V in values]
    assert outcome_skills(low, won, clusters)["skill_over_position"].value < true["skill_over_position"].value


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
