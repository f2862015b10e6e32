"""Rollouts that the critic was fitted on, continued afresh: does it know them better than unseen tasks?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from critics.splits import split_clusters
from pipeline.errors import ArtifactError
from pipeline.ids import seed_of
from pipeline.tables import labels_from, rollouts_from, tasks_from
from stages.continuing import continuations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pipeline.runner import Start
    from pipeline.types import Rollout, Task
    from stages.backends import Player


def fitted_rollouts(start: Start, number: int) -> list[Rollout]:
    """Returns a bare rollout of each of `number` tasks that moved the critic's weights, chosen by hash.

    Args:
        start: of a stage whose inputs are tasks, rollouts, labels and critic.
        number: of tasks, at most.

    Raises:
        ArtifactError: the critic was split otherwise.
    """
    if not number:
        return []
    cluster = {task.task_id: task.cluster for task in tasks_from(start.inputs["tasks"].table("tasks"))}
    labelled = {label.rollout_id for label in labels_from(start.inputs["labels"].table("labels"))}
    source = start.inputs["rollouts"]
    rollouts = [
        r for r in rollouts_from(source.table("rollouts"), source.table("steps")) if r.rollout_id in labelled
    ]
    critic = start.inputs["critic"]
    settings = critic.manifest["settings"]["critic"]
    part_of = split_clusters(
        {cluster[r.task_id] for r in rollouts},
        fit_share=settings["fit_share"],
        validate_share=settings["validate_share"],
        seed=start.seed,
    )
    num_fit = sum(part == "fit" for part in part_of.values())
    if num_fit != critic.report["clusters"]["fit"]:
        raise ArtifactError(
            f"{critic.folder}: fitted on {critic.report['clusters']['fit']} clusters, its inputs now give "
            f"{num_fit}. Next: make critic SET=--fresh"
        )
    of_task: dict[str, Rollout] = {}
    for rollout in sorted(rollouts, key=lambda r: seed_of(start.seed, "fitted rollout", r.seed)):
        if not rollout.guided and rollout.steps and part_of[cluster[rollout.task_id]] == "fit":
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
