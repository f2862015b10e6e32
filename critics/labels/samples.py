"""Which continuations sample which state."""

from collections import defaultdict
from collections.abc import Container, Iterable

from pipeline.types import Rollout, StateRef


def samples_of(sampled: Iterable[Rollout], parents: Container[str]) -> dict[StateRef, list[Rollout]]:
    """Returns the fresh continuations of each state of some rollouts, which `parents` holds the ids of.

    Siblings in `sampled`, and what follows them, are none.
    """
    samples: dict[StateRef, list[Rollout]] = defaultdict(list)
    for sample in sampled:
        if sample.kind == "continuation" and (parent := sample.parent_rollout_ids[0]) in parents:
            samples[StateRef(parent, sample.start_step_index, sample.context)].append(sample)
    return samples


def rewards_of(sampled: Iterable[Rollout], parents: Container[str]) -> dict[StateRef, list[float]]:
    """Returns the rewards of each state's graded continuations, states without any left out."""
    rewards: dict[StateRef, list[float]] = defaultdict(list)
    for state, own in samples_of(sampled, parents).items():
        for sample in own:
            if sample.reward is not None:
                rewards[state].append(sample.reward)
    return rewards
