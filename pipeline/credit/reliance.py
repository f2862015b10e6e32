"""How much better a policy does with feedback than without, on the same tasks."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np

from pipeline.types import Rollout


def reliance(rollouts: Iterable[Rollout]) -> dict[str, float]:
    """Returns success of bare and of guided rollouts on tasks that were tried again, and guided minus bare.

    A task is tried again *because* a bare rollout failed, so the bare ones of such tasks look worse than the
    policy is, and any second try would look like help. Hence a bare rollout counts only if another bare one
    of its group failed, which alone would have led to the guided attempts, and stands beside their mean.
    Nothing where no group has guided rollouts and two bare ones.
    """
    of_group: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for rollout in rollouts:
        if rollout.reward is not None and rollout.kind == "whole":
            of_group[rollout.group_id][rollout.guided].append(rollout.reward)
    pairs = [
        (reward, float(np.mean(guided)))
        for bare, guided in of_group.values()
        for i, reward in enumerate(bare if guided else ())
        if any(other < 1.0 for other in (*bare[:i], *bare[i + 1 :]))
    ]
    if not pairs:
        return {}
    bare, guided = (float(number) for number in np.mean(pairs, axis=0))
    return {"retried/first_try": bare, "retried/with_feedback": guided, "retried/reliance": guided - bare}
