"""Fresh continuations of a rollout from one of its states: requests for them, and what came of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from critics.labels.choose_states import StateRef
from pipeline.ids import continuation_id, rollout_id, seed_of

if TYPE_CHECKING:
    from env.play.requests import EpisodeRequest
    from pipeline.artifacts.runner import Start
    from pipeline.types import Rollout, Task


def continuations(
    start: Start, parent: Rollout, step_index: int, task: Task, num: int, *, purpose: str, first_draw: int = 0
) -> list[EpisodeRequest]:
    """Returns requests for `num` fresh continuations of `parent` from the state before a step.

    Their seeds follow from the parent's seed, never from its id: an id changes with every digest upstream
    (a new version of a library is enough), and where the rollouts stay as they were, so must these.

    Args:
        start: the stage's.
        parent: from its first step on.
        step_index: of the state.
        task: the parent's.
        num: how many.
        purpose: tells the random numbers of stages apart.
        first_draw: number of the first one.
    """
    from env.play.requests import EpisodeRequest

    return [
        EpisodeRequest(
            rollout_id=continuation_id(start.stage_key, parent.rollout_id, step_index, parent.context, draw),
            task=task,
            group_id=parent.group_id,
            iteration=parent.iteration,
            attempt=parent.attempt,
            draw=draw,
            seed=seed_of(start.seed, purpose, parent.seed, step_index, parent.context, draw),
            parent_rollout_ids=(parent.rollout_id,),
            feedback_in_context=parent.feedback_in_context,
            parent=parent,
            start_step_index=step_index,
        )
        for draw in range(first_draw, first_draw + num)
    ]


def samples_of(
    sampled: Iterable[Rollout], rollouts: Container[str], num_continuations: int
) -> dict[StateRef, list[Rollout]]:
    """Returns the fresh continuations of each chosen state, sibling sets left out.

    Args:
        sampled: everything that the labels stage sampled.
        rollouts: ids of the rollouts that the states lie in.
        num_continuations: n; siblings have draws from n on.
    """
    samples: dict[StateRef, list[Rollout]] = defaultdict(list)
    for sample in sampled:
        parent = sample.parent_rollout_ids[0]
        if parent in rollouts and sample.draw < num_continuations:
            samples[StateRef(parent, sample.start_step_index, sample.context)].append(sample)
    return samples


def graded(samples: Mapping[StateRef, Sequence[Rollout]], policy: str) -> list[Rollout]:
    """Returns the graded continuations by a policy."""
    return [
        sample
        for own in samples.values()
        for sample in own
        if sample.reward is not None and sample.policy_digest == policy
    ]


def is_whole(rollout: Rollout) -> bool:
    """Returns whether a rollout was played from its prompt, rather than continued from a state."""
    return rollout.rollout_id == rollout_id(rollout.group_id, rollout.attempt, rollout.draw)


def one_bare_per_task(rollouts: Iterable[Rollout], number: int, *, purpose: str, seed: int) -> list[Rollout]:
    """Returns a whole, graded, bare rollout of each of `number` tasks at most, both chosen by hash.

    Args:
        rollouts: that may be chosen.
        number: of tasks.
        purpose: tells the choices of stages apart.
        seed: of the run.
    """
    of_task: dict[str, Rollout] = {}
    for rollout in sorted(rollouts, key=lambda r: seed_of(seed, f"{purpose} rollout", r.seed)):
        if is_whole(rollout) and rollout.reward is not None and rollout.steps and not rollout.guided:
            of_task.setdefault(rollout.task_id, rollout)
    chosen = sorted(of_task, key=lambda task_id: seed_of(seed, f"{purpose} task", task_id))
    return [of_task[task_id] for task_id in chosen[:number]]
