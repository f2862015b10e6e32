"""Rollouts that the critic was fitted on, continued afresh: does it know them better than unseen tasks?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from critics.labels.splits import parts_of
from env.play.continuations import Continuations, one_bare_per_task
from pipeline.tables import rollouts_from, tasks_from
from stages.settings import Critic

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from env.play.player import Player
    from pipeline.artifacts.runner import Start
    from pipeline.types import Rollout, Task


def fitted_rollouts(start: Start, number: int) -> list[Rollout]:
    """Returns a bare rollout of each of `number` tasks that moved the critic's weights, chosen by hash.

    Args:
        start: of a stage with the inputs tasks, rollouts and critic.
        number: of tasks, at most.
    """
    if not number:
        return []
    tasks = {task.task_id: task for task in tasks_from(start.inputs["tasks"].table("tasks"))}
    source = start.inputs["rollouts"]
    rollouts = rollouts_from(source.table("rollouts"), source.table("steps"))
    shares = Critic(**start.inputs["critic"].manifest["settings"]["critic"])
    part_of = parts_of(rollouts, tasks, shares, seed=start.seed)
    fitted = [r for r in rollouts if part_of.get(r.rollout_id) == "fit"]
    return one_bare_per_task(fitted, number, purpose="fitted", seed=start.seed)


def play_fitted(
    start: Start, player: Player, rollouts: Sequence[Rollout], tasks: Mapping[str, Task]
) -> list[Rollout]:
    """Returns fresh continuations of all states of some rollouts, in a fixed order."""
    requests = Continuations(start.stage_key, start.seed, "fitted").of_all(
        rollouts, tasks, start.config.critic_report.num_continuations
    )
    return player.play(requests, on_finish=lambda _: start.stop_if_asked())
