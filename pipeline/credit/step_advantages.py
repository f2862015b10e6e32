"""Credit inside one rollout: sums of temporal differences.

Everything here sees the steps of one rollout as plain arrays. Tokens of the environment lie between
steps and are absent, and there is no padding, so neither can carry, end or decay credit.
"""

import numpy as np


def gae(reward: float, values: np.ndarray, *, gamma: float, lam: float) -> np.ndarray:
    """Returns [T] the advantage of each step of one rollout: A_i = delta_i + gamma * lam * A_{i+1}.

    delta_i = gamma * V(s_{i+1}) - V(s_i), with s_i the state before step i. A rollout is graded at its end
    and nothing is bootstrapped there: the last delta is R - V(s_{T-1}).

    Args:
        reward: R.
        values: [T >= 1] the critic's V(s_i), in the units of the reward.
        gamma: discount per step of the rollout, never per token, in [0, 1].
        lam: trace decay, in [0, 1]. 0 gives delta_i, 1 gives return minus value.

    Source: Schulman et al., arXiv:1506.02438, eq. 16 (lam = 0: eq. 17; lam = 1: eq. 18).

    Example:
        A success; the critic lost faith after the first step, and the second step won it back.

        >>> gae(1.0, np.array([0.5, 0.25, 0.75]), gamma=1.0, lam=0.5)
        array([0.0625, 0.625 , 0.25  ])
    """
    if not (0.0 <= gamma <= 1.0 and 0.0 <= lam <= 1.0):
        raise ValueError(f"gamma = {gamma}, lam = {lam}; both must be in [0, 1]")
    if not len(values) or not np.isfinite([reward, *values]).all():
        raise ValueError(f"reward {reward}, values {values}; there must be a step, and all must be finite")
    advantages = np.append(gamma * values[1:], reward) - values
    for i in range(len(advantages) - 2, -1, -1):
        advantages[i] += gamma * lam * advantages[i + 1]
    return advantages


def soft_threshold(numbers: np.ndarray, threshold: float) -> np.ndarray:
    """Returns sign(a) * max(|a| - threshold, 0): a dead zone for differences the critic cannot tell apart.

    Example:
        >>> soft_threshold(np.array([-0.3, 0.05, 0.2]), 0.1)
        array([-0.2,  0. ,  0.1])
    """
    return np.sign(numbers) * np.maximum(np.abs(numbers) - threshold, 0.0)


def step_part(reward: float, values: np.ndarray, *, gamma: float, lam: float, adv_rmse: float) -> np.ndarray:
    """Returns [T] A_i(lam) of one rollout; at lam = 0 with a dead zone, adv_rmse / 2, but for the last step.

    adv_rmse is the critic's root mean square error on V(s_{i+1}) - V(s_i). Sums of differences (lam > 0)
    carry the outcome's noise, and the last difference has one end without error, so neither is thresholded.

    Example:
        >>> step_part(1.0, np.array([0.5, 0.6, 0.9]), gamma=1.0, lam=0.0, adv_rmse=0.3).round(2)
        array([0.  , 0.15, 0.1 ])
    """
    advantages = gae(reward, values, gamma=gamma, lam=lam)
    if lam == 0:
        advantages[:-1] = soft_threshold(advantages[:-1], adv_rmse / 2)
    return advantages
