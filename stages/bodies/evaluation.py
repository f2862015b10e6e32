"""Plays both policies on the held-out tasks and compares them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from env.play.chains import Chained, Group
from env.play.player import settings_of
from env.play.shards import counts_of, in_plan_order, play_shards
from env.play.team import Job, Team
from pipeline.artifacts.runner import Start
from pipeline.statistics import ClusterBootstrap, interval_dict
from pipeline.tables import rollouts_from, rollouts_table, steps_table
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.inputs import policy_folder, tasks_of_split

POLICIES = {"start": ("sft", "policy"), "actor": ("actor", "actor")}
MEASURES = ("first_try", "greedy", "with_feedback")
NUM_RESAMPLES = 2000
"""Of clusters, behind each interval."""


def successes(
    rollouts: Sequence[Rollout], groups: Mapping[str, Sequence[Group]]
) -> dict[str, dict[str, list[float]]]:
    """Returns measure -> task_id -> rewards in [0, 1] of one policy on the given groups.

    An ungraded rollout counts nowhere, nor does a chain that it leaves without an answer.
    """
    found: dict[str, dict[str, list[float]]] = {measure: defaultdict(list) for measure in MEASURES}
    chains: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        chains[rollout.group_id].append(rollout)
    for group in groups["greedy"]:
        found["greedy"][group.task.task_id] += [
            rollout.reward for rollout in chains[group.group_id] if rollout.reward is not None
        ]
    for group in groups["sampled"]:
        task_id, chain = group.task.task_id, chains[group.group_id]
        found["first_try"][task_id] += [
            rollout.reward for rollout in chain if rollout.attempt == 0 and rollout.reward is not None
        ]
        rewards = [rollout.reward for rollout in chain]
        if 1.0 in rewards or (rewards and None not in rewards):
            found["with_feedback"][task_id].append(max(reward or 0.0 for reward in rewards))
    return {
        measure: {task_id: rewards for task_id, rewards in by_task.items() if rewards}
        for measure, by_task in found.items()
    }


def compare(
    start_success: dict[str, list[float]],
    actor_success: dict[str, list[float]],
    tasks: Sequence[Task],
    *,
    seed: int,
) -> dict[str, Any]:
    """Returns both policies' mean success and the gain, with intervals by cluster, over tasks both played."""
    both = [task for task in tasks if task.task_id in start_success and task.task_id in actor_success]
    if not both:
        undefined = {"value": None, "low": None, "high": None}
        return {"tasks": 0, "rollouts": 0, "start": undefined, "actor": undefined, "gain": undefined}
    boot = ClusterBootstrap([task.cluster for task in both], NUM_RESAMPLES, seed)
    start_means = np.array([np.mean(start_success[task.task_id]) for task in both])
    actor_means = np.array([np.mean(actor_success[task.task_id]) for task in both])
    return {
        "tasks": len(both),
        "rollouts": sum(len(start_success[task.task_id]) for task in both),
        "start": interval_dict(boot.mean(start_means)),
        "actor": interval_dict(boot.mean(actor_means)),
        "gain": interval_dict(boot.mean(actor_means - start_means)),
    }


def report_of(
    rollouts: Sequence[Rollout],
    groups: Mapping[str, Mapping[str, Sequence[Group]]],
    tasks: Sequence[Task],
    splits: Sequence[str],
    *,
    seed: int,
) -> dict[str, Any]:
    """Returns measure -> slice -> comparison: over all held-out tasks, by split, by level.

    Args:
        rollouts: of both policies.
        groups: policy -> "sampled" or "greedy" -> what it played.
        tasks: that both played.
        splits: of the tasks.
        seed: of the bootstrap over clusters.
    """
    # By group, not by weights: an actor that learned nothing has the weights of its start.
    found = {name: successes(rollouts, groups[name]) for name in POLICIES}
    slices: dict[str, Callable[[Task], bool]] = {"all": lambda task: True}
    slices |= {split: lambda task, split=split: task.split == split for split in splits}  # type: ignore[misc]
    for level in sorted({task.level for task in tasks}):
        slices[f"level {level}"] = lambda task, level=level: task.level == level  # type: ignore[misc]
    return {
        measure: {
            name: compare(
                found["start"][measure],
                found["actor"][measure],
                [task for task in tasks if belongs(task)],
                seed=seed,
            )
            for name, belongs in slices.items()
        }
        for measure in MEASURES
    }


def make(start: Start[Config], work: list[tuple[str, str, Sequence[Group]]]) -> None:
    """Plays every policy on every split, then compares."""
    splits = start.config.held_out
    tasks = [task for split in splits for task in tasks_of_split(start, split)]
    recipes = {name: Recipe(start.config, policy_folder(start, *place)) for name, place in POLICIES.items()}

    def job_of(index: int) -> Job:
        name, kind, groups = work[index]
        return replace(recipes[name], temperature=0.0 if kind == "greedy" else 1.0), Chained(
            groups,
            seed=start.seed,
            purpose="evaluation",
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            stop_at_success=True,
        )

    with closing(make_hands(start.config, start.log_folder)) as hands:
        for shard, played in play_shards(hands, start.shards, job_of, start.shards.item_done):
            rollouts = in_plan_order(played.rollouts, shard.item_ids)
            done, failed = counts_of(rollouts)
            tables = {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)}
            start.shards.commit(shard.index, tables, done=done, failed=failed, skipped=played.skipped)
        players = {name: Team(hands, recipe).ask(settings_of) for name, recipe in recipes.items()}
    rollouts = rollouts_from(start.shards.table("rollouts"), start.shards.table("steps"))
    by_policy: dict[str, dict[str, list[Group]]] = {name: defaultdict(list) for name in POLICIES}
    for name, kind, groups in work:
        by_policy[name][kind] += groups
    measures = report_of(rollouts, by_policy, tasks, splits, seed=start.seed)
    start.finish(report={"policies": {n: p.policy_digest for n, p in players.items()}, "measures": measures})
