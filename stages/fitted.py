"""Rollouts that the critic was fitted on, continued afresh: does it know them better than unseen tasks?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from critics.splits import parts_of
from pipeline.ids import seed_of
from pipeline.tables import rollouts_from, tasks_from
from stages.continuing import continuations
from stages.settings import Critic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.runner import Start
    from pipeline.types import Rollout, Task
    from stages.backends import Player


def fitted_rollouts(start: Start, number: int) -> list[Rollout]:
    """Returns a bare rollout of each of `number` tasks that moved the critic's weights, chosen by hash.

    Args:
        start: of a stage whose inputs are tasks, rollouts and critic.
        number: of tasks, at most.
    """
    if not number:
        return []
    tasks = {task.task_id: task for task in tasks_from(start.inputs["tasks"].table("tasks"))}
    source = start.inputs["rollouts"]
    rollouts = rollouts_from(source.table("rollouts"), source.table("steps"))
    shares = Critic(**start.inputs["critic"].manifest["settings"]["critic"])
    part_of = parts_of(rollouts, tasks, shares, seed=start.seed)
    of_task: dict[str, Rollout] = {}
    for rollout in sorted(rollouts, key=lambda r: seed_of(start.seed, "fitted rollout", r.seed)):
        graded = rollout.reward is not None and rollout.steps
        if graded and not rollout.guided and part_of.get(rollout.rollout_id) == "fit":
            of_task.setdefault(rollout.task_id, rollout)
    chosen = sorted(of_task, key=lambda task_id: seed_of(start.seed, "fitted task", task_id))
    return [of_task[task_id] for task_id in chosen[:number]]


def play_fitted(
    start: Start, player: Player, rollouts: Sequence[Rollout], tasks: Mapping[str, Task]
) -> list[Rollout]:
    """Returns fresh continuations of all states of some rollouts, in a fixed order."""
    requests = [
        request
        for rollout in rollouts
        for step in rollout.steps
        for request in continuations(
            start,
            rollout,
            step.step_index,
            tasks[rollout.task_id],
            start.config.critic_report.num_continuations,
            purpose="fitted",
        )
    ]
    return player.play(requests, on_finish=lambda _: start.stop_if_asked())
