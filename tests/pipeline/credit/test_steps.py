from __future__ import annotations

import numpy as np
import pytest

from pipeline.credit.step_advantages import deltas, gae, lambda_returns, outcome_rewards

VALUES = np.array([0.4, 0.7, 0.2, 0.9, 0.55])


def advantages(values: np.ndarray, reward: float, lam: float) -> np.ndarray:
    return gae(outcome_rewards(reward, len(values)), values, gamma=1.0, lam=lam)


@pytest.mark.parametrize("reward", [0.0, 1.0, 0.35])
def test_deltas_sum_to_reward_minus_first_value(reward: float) -> None:
    assert deltas(outcome_rewards(reward, 5), VALUES).sum() == pytest.approx(reward - VALUES[0])


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_lam_one_is_return_minus_value(reward: float) -> None:
    np.testing.assert_allclose(advantages(VALUES, reward, 1.0), reward - VALUES, atol=1e-15)


def test_lam_zero_is_delta() -> None:
    np.testing.assert_array_equal(advantages(VALUES, 1.0, 0.0), deltas(outcome_rewards(1.0, 5), VALUES))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_lambda_return_minus_value_is_the_advantage(lam: float, gamma: float) -> None:
    rewards = np.array([0.1, 0.0, -0.2, 0.0, 1.0])
    expected = gae(rewards, VALUES, gamma=gamma, lam=lam)
    np.testing.assert_allclose(
        lambda_returns(rewards, VALUES, gamma=gamma, lam=lam) - VALUES, expected, atol=1e-15
    )


def test_the_last_state_is_worth_the_reward_whatever_the_critic_says() -> None:
    for last in (0.0, 0.5, 1.0):
        values = np.append(VALUES[:-1], last)
        assert advantages(values, 1.0, 0.95)[-1] == pytest.approx(1.0 - last)


def test_filler_with_unchanged_value_gets_nothing_at_lam_zero() -> None:
    with_filler = np.array([0.4, 0.7, 0.7, 0.2, 0.9, 0.55])
    result = advantages(with_filler, 1.0, 0.0)
    assert result[1] == 0.0
    np.testing.assert_allclose(np.delete(result, 1), advantages(VALUES, 1.0, 0.0))


def test_splitting_a_step_leaves_lam_one_unchanged() -> None:
    split = np.array([0.4, 0.7, 0.31, 0.2, 0.9, 0.55])  # 0.31 inside the second step
    np.testing.assert_allclose(np.delete(advantages(split, 0.0, 1.0), 2), advantages(VALUES, 0.0, 1.0))


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_a_level_error_reaches_step_i_with_lam_to_the_steps_left(lam: float) -> None:
    shift = advantages(VALUES + 0.2, 1.0, lam) - advantages(VALUES, 1.0, lam)
    np.testing.assert_allclose(shift, -0.2 * lam ** np.arange(4.0, -1.0, -1.0), atol=1e-15)


def test_no_advantage_depends_on_an_earlier_value() -> None:
    changed = VALUES.copy()
    changed[0] = 0.99
    np.testing.assert_array_equal(advantages(changed, 1.0, 0.9)[1:], advantages(VALUES, 1.0, 0.9)[1:])


def test_wrong_arguments_are_refused() -> None:
    for rewards, values in (([], []), ([1.0], [0.1, 0.2]), ([1.0], [np.nan]), ([[1.0]], [[0.5]])):
        with pytest.raises(ValueError, match="rewards"):
            deltas(np.array(rewards), np.array(values))
    with pytest.raises(ValueError, match=r"lam = 1\.1"):
        gae(np.ones(1), np.ones(1), gamma=1.0, lam=1.1)
    with pytest.raises(ValueError, match="gamma"):
        gae(np.ones(1), np.ones(1), gamma=-0.1, lam=1.0)
