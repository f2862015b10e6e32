"""Credit between the rollouts of one baseline set: grpo and decoupled_clip."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from pipeline.credit.mode import Mode
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet, SetKind

_LOSS = LossOptions()


def group_advantages(rewards: np.ndarray, std: float | None = None) -> np.ndarray:
    """Returns [G >= 2] each rollout's advantage over its set: (R - mean) / (std + 1e-6), unbiased std.

    `std` is the set's own unless another is given.

    Source: Shao et al., arXiv:2402.03300, section 4.1.2.

    Example:
        >>> group_advantages(np.array([1.0, 0.0, 0.0, 1.0])).round(3)
        array([ 0.866, -0.866, -0.866,  0.866])
    """
    return (rewards - rewards.mean()) / ((rewards.std(ddof=1) if std is None else std) + 1e-6)


def leave_one_out_mean(numbers: np.ndarray) -> np.ndarray:
    """Returns for each of [G >= 2] numbers the mean of the others.

    Example:
        >>> leave_one_out_mean(np.array([1.0, 0.0, 0.5]))
        array([0.25, 0.75, 0.5 ])
    """
    # A sum over the others, not total minus own: so the own number cannot leak in through rounding.
    return np.array([np.delete(numbers, i).mean() for i in range(len(numbers))])


def broadcast(advantages: np.ndarray, credit_set: CreditSet) -> list[np.ndarray]:
    """Returns G arrays [T_i]: every step carries its rollout's advantage."""
    return list(map(np.full, credit_set.num_steps, advantages))


def set_metrics(sets: Sequence[CreditSet]) -> dict[str, float]:
    """Returns how many sets of each kind an update has, and its mean shaping per rollout."""
    kinds = Counter(s.kind for s in sets)
    metrics = {f"sets/{kind}": float(kinds[kind]) for kind in get_args(SetKind)}
    if sets:
        metrics["shaping/mean"] = float(np.concatenate([s.shaping_or_zero for s in sets]).mean())
    return metrics


def rms(numbers: np.ndarray) -> float:
    """Returns the root mean square of at least one number."""
    return float(np.sqrt(np.mean(np.square(numbers))))


@dataclass(frozen=True, slots=True)
class GroupRelative(Mode):
    """Group-relative credit; the defaults are decoupled clip's, `GRPO` has its own.

    Attributes:
        dynamic_sampling: trains on sets with *raw* rewards that differ and samples on until there are enough.
            Raw, because shaping makes every set vary (eq. 11). Without it only sets of one are left out, and
            those of equal rewards get advantage 0 unless shaping tells them apart.
        scale_rewards: group divides by the standard deviation of a set's rewards, batch by that of all in the
            update (TRL's words). Where rewards differ by a price alone, group makes it weigh as much as
            success does elsewhere. batch: Liu et al., arXiv:2508.08221.

    Source: Yu et al., arXiv:2503.14476 (Decoupled Clip and Dynamic sAmpling), eq. 8-13.
    """

    loss: LossOptions = _LOSS
    overlong_factor: float = 0.5
    dynamic_sampling: bool = True
    scale_rewards: Literal["group", "batch"] = "group"
    needs_values: ClassVar[bool] = False

    def trains_on(self, credit_set: CreditSet) -> bool:
        """Returns whether the rewards differ; without dynamic sampling, whether there are two to compare."""
        return credit_set.kind == "mixed" if self.dynamic_sampling else credit_set.kind != "single"

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        totals = [s.rewards + s.shaping_or_zero for s in sets]
        of_all = self.scale_rewards == "batch" and bool(totals)
        std = float(np.concatenate(totals).std(ddof=1)) if of_all else None
        advantages = [group_advantages(total, std) for total in totals]
        metrics = set_metrics(sets)
        metrics["advantage/rms"] = rms(np.concatenate(advantages)) if advantages else 0.0
        return [own for of_set in map(broadcast, advantages, sets) for own in of_set], metrics, state


DECOUPLED_CLIP = GroupRelative()
GRPO = GroupRelative(
    loss=LossOptions(clip_high=0.2, dual_clip=None, kl=1e-3, aggregation="rollout"),
    overlong_factor=0.0,
    dynamic_sampling=False,
)
"""Shao et al., arXiv:2402.03300, eq. 3 and section 4.1.2: symmetric clip, mean per rollout; KL 1e-3 is our
start value."""
