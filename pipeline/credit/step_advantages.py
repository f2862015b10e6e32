"""Credit inside one rollout: temporal differences, their discounted sums, and lambda-returns.

Everything here sees the steps of one rollout as plain arrays. Tokens of the environment lie between
steps and are absent, and there is no padding, so neither can carry, end or decay credit.
"""

from __future__ import annotations

import numpy as np


def deltas(rewards: np.ndarray, values: np.ndarray, *, gamma: float = 1.0) -> np.ndarray:
    """Returns each step's surprise: delta_i = r_i + gamma * V(s_{i+1}) - V(s_i).

    The last state is graded, so nothing is bootstrapped there: its delta is r_{T-1} - V(s_{T-1}).

    Args:
        rewards: [T] reward after step i; an outcome reward is zero except at the last step.
        values: [T] the critic's V(s_i), in the units of the reward.
        gamma: per-step discount, in [0, 1].

    Returns:
        [T] float64 differences in the units of the reward.

    Raises:
        ValueError: T is 0, lengths differ, a number is not finite, gamma is out of range.

    Source:
        Sutton and Barto, Reinforcement Learning, 2nd edition, eq. 6.5.

    Example:
        >>> deltas(np.array([0.0, 1.0]), np.array([0.5, 0.25]))
        array([-0.25,  0.75])
    """
    rewards, values = _checked(rewards, values, gamma=gamma)
    return rewards + gamma * np.append(values[1:], 0.0) - values


def gae(rewards: np.ndarray, values: np.ndarray, *, gamma: float, lam: float) -> np.ndarray:
    """Returns the advantage of each step of one rollout: A_i = delta_i + gamma * lam * A_{i+1}.

    delta_i = r_i + gamma * V(s_{i+1}) - V(s_i), with s_i the state before step i. The last state
    is graded, so nothing is bootstrapped there: its delta is r_{T-1} - V(s_{T-1}). Tokens of the
    environment lie between steps and are absent here: they cannot end a rollout or decay credit.

    Args:
        rewards: [T] reward after step i; an outcome reward is zero except at the last step.
        values: [T] the critic's V(s_i), in the units of the reward.
        gamma: per-step discount, in [0, 1]. Per step of the rollout, never per token.
        lam: trace decay, in [0, 1]. 0 gives delta_i, 1 gives return minus value.

    Returns:
        [T] float64 advantages in the units of the reward, neither centred nor scaled.

    Raises:
        ValueError: T is 0, lengths differ, a number is not finite, gamma or lam is out of range.

    Source:
        Schulman et al., arXiv:1506.02438, eq. 16 (lam = 0: eq. 17; lam = 1: eq. 18).

    Example:
        A success; the critic lost faith after the first step, and the second step won it back.

        >>> gae(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.25, 0.75]), gamma=1.0, lam=0.5)
        array([0.0625, 0.625 , 0.25  ])
    """
    _check_unit_interval(lam=lam)
    advantages = deltas(rewards, values, gamma=gamma)
    for i in range(len(advantages) - 2, -1, -1):
        advantages[i] += gamma * lam * advantages[i + 1]
    return advantages


def soft_threshold(numbers: np.ndarray, threshold: float) -> np.ndarray:
    """Returns sign(a) * max(|a| - threshold, 0): a dead zone for differences the critic cannot tell apart.

    Example:
        >>> soft_threshold(np.array([-0.3, 0.05, 0.2]), 0.1)
        array([-0.2,  0. ,  0.1])
    """
    numbers = np.asarray(numbers, np.float64)
    return np.sign(numbers) * np.maximum(np.abs(numbers) - threshold, 0.0)


def step_part(reward: float, values: np.ndarray, *, gamma: float, lam: float, adv_rmse: float) -> np.ndarray:
    """Returns [T] A_i(lam) of one rollout; at lam = 0 with a dead zone, adv_rmse / 2, but for the last step.

    adv_rmse is the critic's error on differences of two of its values. Sums of differences (lam > 0) carry
    the outcome's noise, and the last difference has one end without error, so neither is thresholded.

    Args:
        reward: R.
        values: [T] calibrated V(s_i), in the units of the reward.
        gamma: per-step discount.
        lam: trace decay per step.
        adv_rmse: root mean square error of V(s_{i+1}) - V(s_i), from the gate.

    Example:
        >>> step_part(1.0, np.array([0.5, 0.6, 0.9]), gamma=1.0, lam=0.0, adv_rmse=0.3).round(2)
        array([0.  , 0.15, 0.1 ])
    """
    advantages = gae(outcome_rewards(reward, len(values)), values, gamma=gamma, lam=lam)
    if lam == 0:
        advantages[:-1] = soft_threshold(advantages[:-1], adv_rmse / 2)
    return advantages


def lambda_returns(rewards: np.ndarray, values: np.ndarray, *, gamma: float, lam: float) -> np.ndarray:
    """Returns what V(s_i) should have been: y_i = r_i + gamma * ((1 - lam) V(s_{i+1}) + lam * y_{i+1}).

    y_{T-1} = r_{T-1}: the last state is graded. `lambda_returns - values` equals `gae`.

    Args:
        rewards: [T] reward after step i.
        values: [T] V(s_i); for targets, of a slowly moving copy.
        gamma: per-step discount, in [0, 1].
        lam: in [0, 1]. 1 is Monte-Carlo, 0 is TD(0).

    Returns:
        [T] float64 targets in the units of the reward.

    Raises:
        ValueError: as in `gae`.

    Source:
        Sutton and Barto, 2nd edition, eq. 12.2, in its recursive form.

    Example:
        >>> lambda_returns(np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.25, 0.75]), gamma=1.0, lam=0.5)
        array([0.5625, 0.875 , 1.    ])
    """
    rewards, values = _checked(rewards, values, gamma=gamma, lam=lam)
    returns = rewards.copy()
    for i in range(len(returns) - 2, -1, -1):
        returns[i] += gamma * ((1.0 - lam) * values[i + 1] + lam * returns[i + 1])
    return returns


def outcome_rewards(reward: float, num_steps: int) -> np.ndarray:
    """Returns [T] rewards of a rollout graded at its end: zero but for the last step's.

    Example:
        >>> outcome_rewards(1.0, 3)
        array([0., 0., 1.])
    """
    if num_steps < 1:
        raise ValueError(f"num_steps = {num_steps}; a rollout has at least 1 step")
    rewards = np.zeros(num_steps)
    rewards[-1] = reward
    return rewards


def _checked(rewards: np.ndarray, values: np.ndarray, **rates: float) -> tuple[np.ndarray, np.ndarray]:
    """Returns both as float64 [T], or raises ValueError."""
    _check_unit_interval(**rates)
    rewards, values = np.array(rewards, dtype=np.float64), np.array(values, dtype=np.float64)
    if rewards.ndim != 1 or rewards.shape != values.shape or len(rewards) == 0:
        raise ValueError(
            f"rewards have shape {rewards.shape}, values {values.shape}; both must be [T] of the same T >= 1"
        )
    if not (np.isfinite(rewards).all() and np.isfinite(values).all()):
        raise ValueError(f"rewards and values must be finite; got {rewards} and {values}")
    return rewards, values


def _check_unit_interval(**rates: float) -> None:
    for name, rate in rates.items():
        if not 0.0 <= rate <= 1.0:
            raise ValueError(f"{name} = {rate}; must be in [0, 1]")
