"""Fresh continuations of rollouts from their states, sibling sets, and what an audit plays of both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from env.play.chains import Chained
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.units import Course
from pipeline.ids import continuation_id, seed_of
from pipeline.steps import joined
from pipeline.types import Rollout, RolloutKind, Task

SIBLING_SIZE = 5
"""Next steps drawn from a state; equal ones are one sibling (start value)."""


@dataclass(frozen=True, slots=True)
class Continuations:
    """Requests for fresh continuations of rollouts from their states, each played to its end.

    Their seeds follow from the parent's seed, never from its id: an id changes with every digest upstream
    (a new version of a library is enough), and where the rollouts stay as they were, so must these.
    """

    stage_key: str
    seed: int  # of the run
    purpose: str  # tells the random numbers of stages apart

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
        """Returns requests for `num` continuations of a whole rollout from the state before a step."""
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

    def siblings(self, parent: Rollout, task: Task, *, first_draw: int) -> list[EpisodeRequest]:
        """Returns requests for next steps from one state of a rollout, which follows from its seed.

        `first_draw` lies past the continuations that measure the state itself.
        """
        step = parent.steps[seed_of(self.seed, "sibling state", parent.seed) % len(parent.steps)]
        return replace(self, purpose=f"{self.purpose} siblings").of(
            parent, step.step_index, task, SIBLING_SIZE, kind="sibling", first_draw=first_draw
        )

    def after_siblings(
        self, parent: Rollout, siblings: Iterable[Rollout], task: Task, num: int
    ) -> list[EpisodeRequest]:
        """Returns requests for `num` continuations after each distinct sibling of a set; none if it has one.

        A sibling counts if its first step has a step after it.
        """
        distinct: dict[tuple[int, ...], Rollout] = {}
        for sibling in sorted(siblings, key=lambda sibling: sibling.draw):
            if len(sibling.steps) > 1:
                distinct.setdefault(sibling.response_token_ids[: sibling.steps[0].token_end], sibling)
        if len(distinct) < 2:
            return []
        return [
            request
            for sibling in distinct.values()
            # The whole episode has its parent's seed, so the draw tells siblings apart.
            for request in replace(self, purpose=f"{self.purpose} sibling {sibling.draw}").of(
                joined(parent, sibling), sibling.start_step_index + 1, task, num, kind="after_sibling"
            )
        ]


@dataclass(frozen=True, slots=True)
class Audit:
    """A `Unit`: chains; every state of each first draw is continued as soon as its rollout is graded."""

    chained: Chained
    continuations: Continuations
    num_continuations: int  # of each state, and after each sibling
    with_siblings: frozenset[str] = frozenset()  # tasks on whose bare first draw a sibling set is played

    def parts(self, size: int) -> list[Audit]:
        """Returns whole tasks in parts; they have several continuations for each rollout."""
        parts = self.chained.parts(max(1, size // (1 + self.num_continuations)))
        return [replace(self, chained=part) for part in parts]

    def course(self, player: Player) -> Course:
        """Returns the first attempts, and what follows them."""
        chains, num = self.chained.course(player), self.num_continuations
        tasks = {group.task.task_id: group.task for group in self.chained.groups}
        parents: dict[str, Rollout] = {}
        siblings: dict[str, list[Rollout]] = defaultdict(list)

        def after(rollout: Rollout) -> list[EpisodeRequest]:
            task = tasks[rollout.task_id]
            if rollout.kind == "sibling":
                [name] = rollout.parent_rollout_ids
                siblings[name].append(rollout)
                if len(siblings[name]) < SIBLING_SIZE:
                    return []
                return self.continuations.after_siblings(parents[name], siblings[name], task, num)
            if rollout.kind != "whole":
                return []
            requests = list(chains.after(rollout))
            if rollout.draw > 0 or rollout.reward is None:
                return requests
            requests += self.continuations.of_all([rollout], tasks, num)
            if task.task_id in self.with_siblings and not rollout.guided and rollout.steps:
                parents[rollout.rollout_id] = rollout
                requests += self.continuations.siblings(rollout, task, first_draw=num)
            return requests

        def lessons(rollout: Rollout) -> Sequence[tuple[Task, Rollout]]:
            return chains.lessons(rollout) if rollout.kind == "whole" else ()

        return Course(chains.first, after, chains.skipped, chains.failed, lessons, chains.learn)


def one_bare_per_task(rollouts: Iterable[Rollout], number: int, *, purpose: str, seed: int) -> list[Rollout]:
    """Returns a whole, graded, bare rollout of each of `number` tasks at most, both chosen by hash."""
    of_task: dict[str, Rollout] = {}
    for rollout in sorted(rollouts, key=lambda r: seed_of(seed, f"{purpose} rollout", r.seed)):
        if rollout.kind == "whole" and rollout.reward is not None and rollout.steps and not rollout.guided:
            of_task.setdefault(rollout.task_id, rollout)
    chosen = sorted(of_task, key=lambda task_id: seed_of(seed, f"{purpose} task", task_id))
    return [of_task[task_id] for task_id in chosen[:number]]
