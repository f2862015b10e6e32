"""Credit between rollouts of one baseline set: grpo and decoupled_clip, and dynamic sampling's keep rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet

_EPSILON = 1e-6
_GRPO_LOSS = LossOptions(clip_high=0.2, dual_clip=None, kl=1e-3, aggregation="rollout")
_DECOUPLED_CLIP_LOSS = LossOptions()


def group_advantages(rewards: np.ndarray) -> np.ndarray:
    """Returns each rollout's advantage over its set: (R - mean) / (std + 1e-6), unbiased std.

    Args:
        rewards: [G] of one baseline set, shaping included.

    Returns:
        [G] float64, without unit; zeros where all rewards are equal.

    Raises:
        ValueError: G < 2: one rollout has nobody to be compared with.

    Source:
        Shao et al., arXiv:2402.03300, section 4.1.2.

    Example:
        >>> group_advantages(np.array([1.0, 0.0, 0.0, 1.0])).round(3)
        array([ 0.866, -0.866, -0.866,  0.866])
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    if len(rewards) < 2:
        raise ValueError(
            f"a group advantage needs at least 2 rollouts, got {len(rewards)}; leave sets of one out"
        )
    return (rewards - rewards.mean()) / (rewards.std(ddof=1) + _EPSILON)


def leave_one_out_mean(numbers: np.ndarray) -> np.ndarray:
    """Returns for each of [G >= 2] numbers the mean of the others.

    Example:
        >>> leave_one_out_mean(np.array([1.0, 0.0, 0.5]))
        array([0.25, 0.75, 0.5 ])
    """
    numbers = np.asarray(numbers, dtype=np.float64)
    others = len(numbers) - 1
    if others < 1:
        raise ValueError(f"leave-one-out needs at least 2 numbers, got {len(numbers)}")
    # A sum over the others, not total minus own: so the own number cannot leak in through rounding.
    return np.array([np.delete(numbers, i).mean() for i in range(others + 1)])


def reward_varies(rewards: np.ndarray) -> bool:
    """Returns dynamic sampling's keep rule: whether the *raw* rewards of a set differ at all.

    Raw, because shaping makes every set vary and would keep sets without a signal (arXiv:2503.14476, eq. 11).

    Example:
        >>> reward_varies(np.array([1.0, 0.0, 0.0, 0.0])), reward_varies(np.array([1.0, 1.0]))
        (True, False)
    """
    return bool(np.max(rewards) > np.min(rewards))


def broadcast(advantages: np.ndarray, credit_set: CreditSet) -> list[np.ndarray]:
    """Returns G arrays [T_i]: every step carries its rollout's advantage."""
    return [np.full(steps, a) for a, steps in zip(advantages, credit_set.num_steps, strict=True)]


def set_metrics(sets: Sequence[CreditSet]) -> dict[str, float]:
    """Returns how many sets of each kind an update has, and its mean raw reward and shaping per rollout."""
    kinds = Counter(s.kind for s in sets)
    metrics = {f"sets/{kind}": float(kinds[kind]) for kind in ("mixed", "all_right", "all_wrong", "single")}
    if sets:
        metrics["reward/mean"] = float(np.concatenate([s.rewards for s in sets]).mean())
        metrics["shaping/mean"] = float(np.concatenate([s.shaping_or_zero for s in sets]).mean())
    return metrics


def rms(numbers: np.ndarray) -> float:
    """Returns the root mean square, 0.0 of nothing.

    Example:
        >>> rms(np.array([3.0, -3.0]))
        3.0
    """
    return float(np.sqrt(np.mean(np.square(numbers)))) if len(numbers) else 0.0


@dataclass(frozen=True, slots=True)
class Grpo:
    """Group-relative credit as published: no dynamic sampling, symmetric clip, mean per rollout, KL.

    Attributes:
        loss: what it asks of the loss.

    Source:
        Shao et al., arXiv:2402.03300, eq. 3 and section 4.1.2. KL 1e-3 is our start value.
    """

    loss: LossOptions = _GRPO_LOSS

    @property
    def needs_critic(self) -> bool:
        """False."""
        return False

    @property
    def dynamic_sampling(self) -> bool:
        """False: uniform sets are trained on, with advantage 0."""
        return False

    def initial_state(self) -> dict[str, float]:
        """Returns an empty state: nothing runs from update to update."""
        return {}

    def keep(self, sets: Sequence[CreditSet]) -> list[bool]:
        """Returns which sets are trained on: all but sets of one."""
        return [s.kind != "single" for s in sets]

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        advantages = [group_advantages(s.rewards + s.shaping_or_zero) for s in sets]
        metrics = set_metrics(sets)
        metrics["advantage/rms"] = rms(np.concatenate(advantages)) if advantages else 0.0
        steps = [a for s, group in zip(sets, advantages, strict=True) for a in broadcast(group, s)]
        return steps, metrics, state


@dataclass(frozen=True, slots=True)
class DecoupledClip:
    """Group-relative credit with clip-higher, token mean, dual clip and dynamic sampling.

    Attributes:
        loss: what it asks of the loss.

    Source:
        Yu et al., arXiv:2503.14476 (Decoupled Clip and Dynamic sAmpling), eq. 8-11. Dual clip:
        arXiv:1912.09729.
    """

    loss: LossOptions = _DECOUPLED_CLIP_LOSS

    @property
    def needs_critic(self) -> bool:
        """False."""
        return False

    @property
    def dynamic_sampling(self) -> bool:
        """True: sample on until enough sets are kept."""
        return True

    def initial_state(self) -> dict[str, float]:
        """Returns an empty state: nothing runs from update to update."""
        return {}

    def keep(self, sets: Sequence[CreditSet]) -> list[bool]:
        """Returns which sets are trained on: whole sets whose raw reward varies."""
        return [reward_varies(s.rewards) for s in sets]

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        return Grpo().credit(sets, state)
