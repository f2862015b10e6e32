"""What an actor samples: the rollouts of an iteration, looks at val, continuations for a drift check."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from env.play.chains import Chained, Group, plan_groups
from env.play.continuations import Continuations
from env.play.shards import in_plan_order
from env.play.stripping import Vocabulary, stripped_successes
from env.play.team import OnTick, Team
from env.play.units import Episodes
from pipeline.artifacts.commit import Shards
from pipeline.credit import Credit, TreeRpo
from pipeline.credit.stripped import Strip
from pipeline.credit.updates import BaselineSets, ValuesOf, scored
from pipeline.ids import seed_of
from pipeline.tables import rollouts_from
from pipeline.types import Rollout, Task
from stages.settings.sampling import Chain
from stages.wiring.refusals import refuse_failing_environment
from stages.wiring.task_order import StartValues, near_half_first

PARTS = {"collect": "sampling", "look_at_val": "evaluation", "continue_all": "drift_checks"}
"""Method -> the part of an iteration that its time belongs to."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an actor samples, whatever its weights."""

    tasks: Sequence[Task]
    val: Sequence[Task]  # looked at
    chain: Chain
    max_feedback_tokens: int
    seed: int
    stage_key: str
    item_done: OnTick  # raises if the stage is to stop
    start_values: StartValues | None = None  # of a critic that says which tasks are visited first
    strip: Strip | None = None  # None: guided rollouts train in the context that they were sampled in

    def collect(
        self,
        team: Team,
        credit: Credit,
        values_of: ValuesOf | None,
        iteration: int,
        *,
        tasks: Sequence[Task],
        wanted: int,
        max_refills: int,
    ) -> BaselineSets:
        """Returns an iteration's rollouts, sampled on until `wanted` tasks count or the refills are used up.

        `credit` says which tasks count; it needs `values_of` if it needs values. `tasks` may be visited, in
        an order that is the iteration's own, or that `start_values` make of it.
        """
        rest = sorted(tasks, key=lambda t: seed_of(self.seed, "actor order", iteration, t.task_id))
        if self.start_values is not None:
            rest = near_half_first(rest, wanted, team, self.start_values)
        rollouts: list[Rollout] = []
        values: dict[str, np.ndarray] | None = None if values_of is None else {}
        batch = BaselineSets.of(rollouts, values, credit, self.strip)
        for _ in range(1 + (max_refills if credit.dynamic_sampling else 0)):
            missing = wanted - batch.num_kept_tasks
            chosen, rest = rest[:missing], rest[missing:]
            if not chosen:
                break
            groups = plan_groups(
                chosen,
                stage_key=self.stage_key,
                seed=self.seed,
                iteration=iteration,
                **self.chain.model_dump(),
            )
            played = self._played(team, groups, "actor", stop_at_success=False)
            if isinstance(credit, TreeRpo):
                played += self._branched(team, played, credit)
            rollouts += played
            if values is not None and values_of is not None:
                values |= scored([r for r in played if self.strip is None or not r.guided], values_of)
            batch = BaselineSets.of(rollouts, values, credit, self.strip)
        refuse_failing_environment(batch.rollouts, iteration)
        return batch

    def look_at_val(self, team: Team, iteration: int) -> list[Rollout]:
        """Returns first tries on the val tasks: a point of the learning curve, no more."""
        groups = plan_groups(
            self.val, stage_key="val", seed=self.seed, iteration=iteration, num_attempts=1, draws=1
        )
        rollouts = self._played(team, groups, "look", stop_at_success=True)
        refuse_failing_environment(rollouts, iteration)  # an outage is no failure of the actor
        return rollouts

    def continue_all(
        self, team: Team, rollouts: Sequence[Rollout], iteration: int, *, each: int
    ) -> list[Rollout]:
        """Returns fresh continuations by the present actor of all states of some rollouts."""
        asked = Continuations(self.stage_key, self.seed, "drift")
        requests = asked.of_all(rollouts, {task.task_id: task for task in self.tasks}, each)
        played = team.play(Episodes(requests), self.item_done).rollouts
        refuse_failing_environment(played, iteration)
        return played

    def _branched(self, team: Team, rollouts: Sequence[Rollout], credit: TreeRpo) -> list[Rollout]:
        """Returns the fresh ends of rollouts from the step at which trees branch."""
        asked = Continuations(self.stage_key, self.seed, "tree")
        by_id, at = {task.task_id: task for task in self.tasks}, credit.branch_step
        requests = [
            request
            for rollout in rollouts
            if rollout.reward is not None and len(rollout.steps) > at
            for request in asked.of(rollout, at, by_id[rollout.task_id], credit.branching - 1, kind="sibling")
        ]
        return team.play(Episodes(requests), self.item_done).rollouts

    def _played(
        self, team: Team, groups: list[Group], purpose: str, *, stop_at_success: bool
    ) -> list[Rollout]:
        chained = Chained(groups, self.seed, purpose, self.max_feedback_tokens, stop_at_success)
        return in_plan_order(team.play(chained, self.item_done).rollouts, chained.rollout_ids)


def first_try(looks: Sequence[Rollout]) -> dict[str, float]:
    """Returns the metric of a look at val; nothing if there was none."""
    rewards = [rollout.reward for rollout in looks if rollout.reward is not None]
    return {"val/first_try": sum(rewards) / len(rewards)} if rewards else {}


def strip_of(
    guided: str, tasks: Sequence[Task], tokenizer: Any, shards: Shards, iterations: int
) -> Strip | None:
    """Returns what strips an iteration's guided successes; None if `actor.guided` is in_context.

    What is language it learns from every iteration. So a start that goes on after `iterations` hears these
    first.
    """
    if guided == "in_context":
        return None
    vocabulary = Vocabulary({task.task_id: task.cluster for task in tasks})
    strip = partial(stripped_successes, vocabulary=vocabulary, decode=tokenizer.decode)
    for number in range(iterations):
        strip(rollouts_from(shards.read(number, "rollouts"), shards.read(number, "steps")))
    return strip
