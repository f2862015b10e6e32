"""Sibling sets of stored rollouts: several next steps of one state, and their advantages among each other."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from pipeline.types import Rollout

MIN_GAP = 0.1
"""Between a set's highest and lowest value: closer ones say less than the critic's error (start value)."""


def sibling_sets(rollouts: Iterable[Rollout]) -> list[list[Rollout]]:
    """Returns sets of continuations of one state whose first steps differ; of equal ones the first counts.

    A state with one next step makes no set.
    """
    sets: dict[tuple[str, int], dict[tuple[int, ...], Rollout]] = defaultdict(dict)
    for r in rollouts:
        if r.kind != "whole":
            step = r.response_token_ids[: r.steps[0].token_end]
            sets[r.parent_rollout_ids[0], r.start_step_index].setdefault(step, r)
    return [list(of_state.values()) for of_state in sets.values() if len(of_state) > 1]


def sibling_advantages(siblings: Sequence[Rollout], values: Sequence[np.ndarray]) -> np.ndarray | None:
    """Returns [M] V(s a_j) - mean_k V(s a_k) of a set; None if its values are too close to tell apart.

    `values` are the critic's [T_j] of each rollout's states; where its first step ends an episode, V is R.
    """
    after = np.array([V[1] if len(V) > 1 else r.reward for r, V in zip(siblings, values, strict=True)])
    return after - after.mean() if np.ptp(after) >= MIN_GAP else None


def first_step(rollout: Rollout) -> Rollout:
    """Returns a rollout cut off after its first step."""
    end = rollout.steps[0].token_end
    return replace(
        rollout,
        steps=rollout.steps[:1],
        response_token_ids=rollout.response_token_ids[:end],
        loss_mask=rollout.loss_mask[:end],
        logprobs=rollout.logprobs[:end],
    )


def first_steps(
    rollouts: Iterable[Rollout], values_of: Callable[[Sequence[Rollout]], Sequence[np.ndarray]]
) -> tuple[list[Rollout], list[np.ndarray], dict[str, int]]:
    """Returns the first steps of siblings that can be told apart, [1] their advantages, and who is not."""
    rollouts = list(rollouts)
    sets = sibling_sets(rollouts)
    values = iter(values_of([r for of in sets for r in of]))
    found = [(of, sibling_advantages(of, [next(values) for _ in of])) for of in sets]
    left_out = {
        "without_a_sibling": len(rollouts) - sum(map(len, sets)),
        "siblings_of_like_value": sum(len(of) for of, A in found if A is None),
    }
    steps = [first_step(r) for of, A in found if A is not None for r in of]
    return steps, [A[[j]] for _, A in found if A is not None for j in range(len(A))], left_out
