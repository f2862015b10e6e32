"""Fresh continuations of rollouts from their states, and sibling sets: several next steps from one state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from env.play.requests import EpisodeRequest
from pipeline.ids import continuation_id, seed_of
from pipeline.steps import joined
from pipeline.types import Rollout, RolloutKind, Task

SIBLING_SIZE = 5
"""Next steps drawn from a state; equal ones are one sibling (start value)."""


@dataclass(frozen=True, slots=True)
class Continuations:
    """Requests for fresh continuations of rollouts from their states.

    Their seeds follow from the parent's seed, never from its id: an id changes with every digest upstream
    (a new version of a library is enough), and where the rollouts stay as they were, so must these.

    Attributes:
        stage_key: of the stage that plays them.
        seed: of the run.
        purpose: tells the random numbers of stages apart.
    """

    stage_key: str
    seed: int
    purpose: str

    def of(
        self,
        parent: Rollout,
        step_index: int,
        task: Task,
        num: int,
        *,
        kind: RolloutKind = "continuation",
        first_draw: int = 0,
    ) -> list[EpisodeRequest]:
        """Returns requests for `num` continuations of a whole rollout from the state before a step.

        Args:
            parent: from its first step on.
            step_index: of the state.
            task: the parent's.
            num: how many.
            kind: what they are played for.
            first_draw: number of the first one.
        """
        return [
            EpisodeRequest(
                rollout_id=continuation_id(
                    self.stage_key, parent.rollout_id, step_index, parent.context, draw
                ),
                kind=kind,
                task=task,
                group_id=parent.group_id,
                iteration=parent.iteration,
                attempt=parent.attempt,
                draw=draw,
                seed=seed_of(self.seed, self.purpose, parent.seed, step_index, parent.context, draw),
                parent_rollout_ids=(parent.rollout_id,),
                feedback_in_context=parent.feedback_in_context,
                parent=parent,
                start_step_index=step_index,
            )
            for draw in range(first_draw, first_draw + num)
        ]

    def of_all(
        self, rollouts: Iterable[Rollout], tasks: Mapping[str, Task], num: int
    ) -> list[EpisodeRequest]:
        """Returns requests for `num` continuations from every state of the rollouts."""
        return [
            request
            for rollout in rollouts
            for step in rollout.steps
            for request in self.of(rollout, step.step_index, tasks[rollout.task_id], num)
        ]


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
        if rollout.kind == "whole" and rollout.reward is not None and rollout.steps and not rollout.guided:
            of_task.setdefault(rollout.task_id, rollout)
    chosen = sorted(of_task, key=lambda task_id: seed_of(seed, f"{purpose} task", task_id))
    return [of_task[task_id] for task_id in chosen[:number]]


def sibling_requests(
    parent: Rollout, task: Task, continuations: Continuations, *, first_draw: int
) -> list[EpisodeRequest]:
    """Returns requests for next steps from one state of a rollout, each played to its end.

    Args:
        parent: of the set.
        task: the parent's.
        continuations: makes the requests.
        first_draw: number of the first sibling, past the continuations that measure the state itself.
    """
    return replace(continuations, purpose=f"{continuations.purpose} siblings").of(
        parent,
        sibling_state(parent, continuations.seed),
        task,
        SIBLING_SIZE,
        kind="sibling",
        first_draw=first_draw,
    )


def requests_after_siblings(
    parent: Rollout, siblings: Iterable[Rollout], task: Task, continuations: Continuations, num: int
) -> list[EpisodeRequest]:
    """Returns requests for `num` continuations after each distinct sibling of a set; none if it has one."""
    distinct = distinct_steps(sorted(siblings, key=lambda sibling: sibling.draw))
    return [
        request
        for sibling in (distinct if len(distinct) > 1 else [])
        # The whole episode has its parent's seed, so the draw tells siblings apart.
        for request in replace(continuations, purpose=f"{continuations.purpose} sibling {sibling.draw}").of(
            joined(parent, sibling), sibling.start_step_index + 1, task, num, kind="after_sibling"
        )
    ]


def sibling_state(rollout: Rollout, seed: int) -> int:
    """Returns the step before which a rollout's sibling set is played; it follows from the rollout's seed."""
    return rollout.steps[seed_of(seed, "sibling state", rollout.seed) % len(rollout.steps)].step_index


def distinct_steps(siblings: Iterable[Rollout]) -> list[Rollout]:
    """Returns the siblings with a first step that differs from all earlier ones' and has a step after it."""
    distinct: dict[tuple[int, ...], Rollout] = {}
    for sibling in siblings:
        if len(sibling.steps) > 1:
            distinct.setdefault(sibling.response_token_ids[: sibling.steps[0].token_end], sibling)
    return list(distinct.values())
