"""Guided successes on the bare prompt, beside an update's sets: their advantage and their weight."""

from collections import defaultdict
from collections.abc import Callable, Sequence

from pipeline.types import Rollout

Strip = Callable[[Sequence[Rollout]], tuple[list[Rollout], int]]
"""Rollouts -> their guided successes on the bare prompt, and how many more are told by feedback alone."""
Gain = tuple[Rollout, float]
"""A stripped rollout, and the advantage of each of its tokens."""
MAX_SHARE = 0.25
"""Of an update's weight, at most, beside a set: what the policy samples by itself leads (start value; LUFFY,
arXiv:2504.14945, mixes one foreign rollout into seven of the policy's)."""


def gains_over_bare(stripped: Sequence[Rollout], rollouts: Sequence[Rollout]) -> list[Gain]:
    """Returns stripped rollouts with their advantage A = R - m, without those that have none above 0.

    m is the mean reward of the graded bare rollouts of their group among `rollouts`: nothing is gained where
    these succeed anyway, 1 where all fail. Nobody sampled a stripped rollout after the bare prompt, so its
    ratio to a behaviour policy is unknown. To the trainer's own policy it is 1 at first, and the gradient is
    then A times the likelihood's. Stripped rollouts are not in m, nor in any baseline of bare ones: a mean
    over both, as LUFFY takes it, would punish bare failures for what feedback achieved.

    Source: R - mean without a standard deviation: Liu et al., arXiv:2503.20783.
    """
    bare: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if not rollout.guided and rollout.reward is not None:
            bare[rollout.group_id].append(rollout.reward)
    gains = [(r, float(r.reward or 0) - sum(own) / len(own)) for r in stripped if (own := bare[r.group_id])]
    return [(rollout, gain) for rollout, gain in gains if gain > 0]


def total_and_scale(num: float, num_stripped: float) -> tuple[float, float]:
    """Returns n + c s and c, by which n units of sets weigh 1/(n + c s) each, s stripped ones c times that.

    A unit is a token or a rollout of an update. c = min(1, q/(1 - q) n/s) with q = `MAX_SHARE`: stripped
    units weigh what others do until they would have more than q of the whole. Where no set says anything
    they are the whole: nothing is there to lead. All weights sum to 1.

    Example:
        Few of them count in full; of many, all together have a quarter, unless they are alone.

        >>> total_and_scale(90, 10)
        (100.0, 1.0)
        >>> total_and_scale(30, 100)
        (40.0, 0.1)
        >>> total_and_scale(0, 100)
        (100.0, 1.0)
    """
    scale = min(1.0, MAX_SHARE / (1.0 - MAX_SHARE) * num / num_stripped) if num and num_stripped else 1.0
    return num + scale * num_stripped, scale
