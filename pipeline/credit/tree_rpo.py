"""Credit between siblings of a tree: each segment against the others that were sampled from its state."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.credit.group import group_advantages, rms, set_metrics
from pipeline.credit.mode import Mode
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet

_LOSS = LossOptions()


def relative(rewards: np.ndarray, shaping: np.ndarray) -> np.ndarray:
    """Returns [N] `group_advantages` of R + P, 0 where the raw rewards are equal or there is but one."""
    if rewards.max() == rewards.min():
        return np.zeros(len(rewards))
    return group_advantages(rewards + shaping)


def tree_advantages(s: CreditSet) -> list[np.ndarray]:
    """Returns G arrays [T_i] of a tree: roots are whole rollouts, branches continue one from a step of its.

    The leaves of a root are itself and its branches; Q, the value of its first segment, is the mean of their
    rewards. First segments are compared by Q with other roots', later ones by R with the leaves beside them.
    So a root's advantage changes where its branches begin, and no token is trained on twice.
    """
    parents = np.arange(len(s.rewards)) if s.parents is None else s.parents
    roots = np.flatnonzero(parents == np.arange(len(parents)))
    leaves = [np.flatnonzero(parents == root) for root in roots]
    means = [[numbers[own].mean() for own in leaves] for numbers in (s.rewards, s.shaping_or_zero)]
    found = [np.zeros(steps) for steps in s.num_steps]
    for root, own, of_first in zip(roots, leaves, relative(*map(np.array, means)), strict=True):
        found[root][:] = of_first
        for leaf, of_rest in zip(own, relative(s.rewards[own], s.shaping_or_zero[own]), strict=True):
            if len(own) > 1:
                found[leaf][s.starts[own[1]] if leaf == root else 0 :] = of_rest
    return found


@dataclass(frozen=True, slots=True)
class TreeRpo(Mode):
    """Group-relative credit on trees of depth 2; the loss and its sampling are decoupled clip's.

    Roots are the rollouts of a baseline set. Each that has a step `branch_step` is continued from there
    `branching` - 1 times, which with its own end are the siblings of one state: chosen by its number, so
    nothing of the outcome is in the choice. With branching 1 it is decoupled clip.

    Attributes:
        branching: leaves of each root.
        branch_step: the step before which branches begin.

    Source: TreeRPO, Yang et al., arXiv:2506.05183: values of nodes from leaves, advantages among siblings.
    Depth, branching at a step and the scale by the siblings' standard deviation are ours.
    """

    loss: LossOptions = _LOSS
    overlong_factor: float = 0.5
    branching: int = 3
    branch_step: int = 2
    needs_values: ClassVar[bool] = False
    dynamic_sampling: ClassVar[bool] = True

    def trains_on(self, credit_set: CreditSet) -> bool:
        """Returns whether the rewards of any two leaves differ."""
        return credit_set.kind == "mixed"

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        advantages = [own for s in sets for own in tree_advantages(s)]
        metrics = set_metrics(sets)
        metrics["advantage/rms"] = rms(np.concatenate(advantages)) if advantages else 0.0
        return advantages, metrics, state
