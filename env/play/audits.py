"""What a critic's audit plays: rollouts of tasks, fresh continuations of their states, sibling sets."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from env.play.chains import Chained
from env.play.continuations import SIBLING_SIZE, Continuations
from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.units import Course
from pipeline.types import Rollout


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

        return Course(chains.first, after, chains.skipped)
