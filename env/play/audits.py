"""What a critic's audit plays: rollouts of tasks, fresh continuations of their states, sibling sets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from env.play.continuations import SIBLING_SIZE, Continuations, requests_after_siblings, sibling_requests
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.units import Chained, Course
from pipeline.types import Rollout, Task


@dataclass(frozen=True, slots=True)
class Audit:
    """Chains of some tasks; every state of each first draw is continued as soon as its rollout is graded.

    Attributes:
        chained: the chains.
        continuations: makes the requests that follow.
        num_continuations: of each state, and after each sibling.
        with_siblings: ids of the tasks on whose bare first draw a sibling set is played.
    """

    chained: Chained
    continuations: Continuations
    num_continuations: int
    with_siblings: frozenset[str] = frozenset()

    def course(self, player: Player) -> Course:
        """Returns the audit before its first attempts."""
        tasks = {group.task.task_id: group.task for group in self.chained.groups}
        return _Course(self, self.chained.course(player), tasks)

    def parts(self, size: int) -> list[Audit]:
        """Returns whole tasks in parts; they have several continuations for each rollout."""
        parts = self.chained.parts(max(1, size // (1 + self.num_continuations)))
        return [replace(self, chained=part) for part in parts]


@dataclass(slots=True)
class _Course:
    audit: Audit
    chains: Course
    tasks: Mapping[str, Task]
    _parents: dict[str, Rollout] = field(default_factory=dict)
    _siblings: dict[str, list[Rollout]] = field(default_factory=lambda: defaultdict(list))

    @property
    def skipped(self) -> Mapping[str, int]:
        return self.chains.skipped

    def first(self) -> Sequence[EpisodeRequest]:
        return self.chains.first()

    def after(self, rollout: Rollout) -> Sequence[EpisodeRequest]:
        if rollout.kind == "whole":
            return [*self.chains.after(rollout), *self._continued(rollout)]
        if rollout.kind == "sibling":
            return self._after_sibling(rollout)
        return ()

    def _continued(self, rollout: Rollout) -> list[EpisodeRequest]:
        if rollout.draw or rollout.reward is None:
            return []
        audit, task = self.audit, self.tasks[rollout.task_id]
        requests = audit.continuations.of_all([rollout], self.tasks, audit.num_continuations)
        if rollout.task_id in audit.with_siblings and not rollout.guided and rollout.steps:
            self._parents[rollout.rollout_id] = rollout
            requests += sibling_requests(
                rollout, task, audit.continuations, first_draw=audit.num_continuations
            )
        return requests

    def _after_sibling(self, rollout: Rollout) -> list[EpisodeRequest]:
        [name] = rollout.parent_rollout_ids
        siblings = self._siblings[name]
        siblings.append(rollout)
        if len(siblings) < SIBLING_SIZE:
            return []
        audit, parent = self.audit, self._parents[name]
        task = self.tasks[parent.task_id]
        return requests_after_siblings(parent, siblings, task, audit.continuations, audit.num_continuations)
