from dataclasses import replace

import numpy as np
import pytest

from pipeline.credit import ActorCritic, CreditSet
from pipeline.credit.actor_critic import in_tokens
from pipeline.credit.sets import credit_set
from pipeline.credit.step_advantages import gae
from pipeline.training.rows import on_tokens
from pipeline.types import Step
from tests.rollouts import rollout


def set_of(rewards: list[float], values: list[list[float]], shaping: np.ndarray | None = None) -> CreditSet:
    signs = [np.zeros(len(v), int) for v in values]
    return CreditSet(np.array(rewards), signs, [np.array(v) for v in values], shaping)


def whitened(found: list[np.ndarray]) -> list[np.ndarray]:
    every = np.concatenate(found)
    return [(own - every.mean()) / every.std() for own in found]


def test_lam_one_is_return_minus_value_and_lam_zero_the_difference_whitened_over_the_update() -> None:
    rewards, values = [1.0, 0.0, 1.0], [[0.5, 0.7], [0.4], [0.1, 0.2, 0.9]]
    sets = [set_of(rewards[:2], values[:2]), set_of(rewards[2:], values[2:])]
    returns = [R - np.array(v) for R, v in zip(rewards, values, strict=True)]
    ends = [np.diff([*v, R]) for R, v in zip(rewards, values, strict=True)]
    for lam, expected in ((1.0, returns), (0.0, ends)):
        found, metrics, _ = ActorCritic(lam=lam).credit(sets, {})
        every = np.concatenate(found)
        assert (every.mean(), every.std()) == pytest.approx((0.0, 1.0), abs=1e-5)
        assert metrics["advantage/mean"] == pytest.approx(np.concatenate(expected).mean())
        for own, wanted in zip(found, whitened(expected), strict=True):
            np.testing.assert_allclose(own, wanted, atol=1e-4)


def test_shaping_is_part_of_the_reward() -> None:
    values = [[0.5], [0.4]]
    shaped, plain = set_of([1.0, 0.0], values, np.array([-0.5, -0.1])), set_of([0.5, -0.1], values)
    for own, wanted in zip(*(ActorCritic().credit([s], {})[0] for s in (shaped, plain)), strict=True):
        np.testing.assert_array_equal(own, wanted)


def test_a_lone_rollout_and_equal_rewards_are_trained_on() -> None:
    mode = ActorCritic()
    assert all(mode.trains_on(set_of(rewards, [[0.5]] * len(rewards))) for rewards in ([1.0], [0.0, 0.0]))
    assert mode.credit([], {})[0] == []


def test_tokens_as_units_leave_out_the_environment_s_and_agree_with_steps_where_values_do() -> None:
    """Two steps of 2 and 1 tokens with a reply between; V moves between steps alone."""
    whole = rollout((1, 1, 0, 1), ((0, 2), (3, 4)))
    tokens = in_tokens(whole)
    assert tokens.steps == tuple(Step(i, 0, at, at + 1, "") for i, at in enumerate((0, 1, 3)))
    assert in_tokens(tokens) == tokens
    by_step = gae(1.0, np.array([0.3, 0.6]), gamma=1.0, lam=1.0)
    by_token = gae(1.0, np.array([0.3, 0.3, 0.6]), gamma=1.0, lam=1.0)
    np.testing.assert_allclose(on_tokens(tokens, by_token), on_tokens(whole, by_step))
    # Below 1 a reply of any length changes nothing, since it is no unit.
    longer = rollout((1, 1, 0, 0, 0, 1), ((0, 2), (5, 6)))
    mode = ActorCritic(lam=0.5, unit="token")
    [seen], [also] = mode.view([whole]), mode.view([longer])
    assert len(seen.steps) == len(also.steps) == 3
    values = {"r": np.array([0.2, 0.5, 0.4])}
    found = [mode.credit([credit_set([r], values=values)], {})[0][0] for r in (seen, also)]
    np.testing.assert_array_equal(*found)
    assert ActorCritic().view([replace(whole)]) == [whole]
