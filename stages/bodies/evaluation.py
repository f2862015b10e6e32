"""Plays both policies on the held-out tasks and compares them."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np

from env.catalog import offer_of
from env.feedback_tool.measures import call_measures, unpriced
from env.play.chains import Chained, Group
from env.play.shards import commit_rollouts, play_shards
from env.play.team import Job, Team
from pipeline.artifacts.runner import Start
from pipeline.statistics import ClusterBootstrap, interval_dict
from pipeline.types import Rollout, Task
from stages.evaluation import Work, policies_of
from stages.settings import Config
from stages.wiring.feedback import feedback_counts
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.inputs import rollouts_of

NUM_RESAMPLES = 2000
"""Of clusters, behind each interval."""


def successes(
    rollouts: Sequence[Rollout], groups: Mapping[str, Sequence[Group]]
) -> dict[str, dict[str, list[float]]]:
    """Returns measure -> task_id -> rewards in [0, 1] of one policy on its "sampled" and "greedy" groups.

    An ungraded rollout counts nowhere, nor does a chain that it, or feedback that failed, leaves without an
    answer.
    """
    chains: dict[str, list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        chains[rollout.group_id].append(rollout)
    found: dict[str, dict[str, list[float]]] = {}
    for measure, kind in (("first_try", "sampled"), ("greedy", "greedy")):
        found[measure] = defaultdict(list)
        for group in groups[kind]:
            for rollout in chains[group.group_id]:
                if rollout.attempt == 0 and rollout.reward is not None:
                    found[measure][group.task.task_id].append(rollout.reward)
    found["with_feedback"] = defaultdict(list)
    for group in groups["sampled"]:
        failed = any(rollout.feedback_failed for rollout in chains[group.group_id])
        rewards = [rollout.reward for rollout in chains[group.group_id]] + [None] * failed
        if 1.0 in rewards or (rewards and None not in rewards):
            found["with_feedback"][group.task.task_id].append(max(reward or 0.0 for reward in rewards))
    return found


def first_tries(rollouts: Sequence[Rollout], groups: Sequence[Group]) -> list[Rollout]:
    """Returns the first attempts of some groups."""
    wanted = {group.group_id for group in groups}
    return [r for r in rollouts if r.group_id in wanted and r.attempt == 0]


def compare(
    start_success: Mapping[str, list[float]],
    actor_success: Mapping[str, list[float]],
    tasks: Sequence[Task],
    *,
    seed: int,
) -> dict[str, Any]:
    """Returns both policies' mean success and the gain, with intervals by cluster, over tasks both played."""
    both = [task for task in tasks if task.task_id in start_success and task.task_id in actor_success]
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


def make(start: Start[Config], work: Work) -> None:
    """Plays every policy on every split, then compares."""
    (tasks, shards), policies = work, policies_of(start.config)
    recipes = {
        name: Recipe(start.config, start.inputs[stage].path(folder))
        for name, (stage, folder) in policies.items()
    }

    def job_of(index: int) -> Job:
        name, kind, groups = shards[index]
        return replace(recipes[name], temperature=0.0 if kind == "greedy" else 1.0), Chained(
            groups,
            seed=start.seed,
            purpose="evaluation",
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            stop_at_success=True,
        )

    with closing(make_hands(start.config, start.log_folder)) as hands:
        for shard, played in play_shards(hands, start.shards, job_of, start.shards.item_done):
            commit_rollouts(start.shards, shard, played)
        players = {name: Team(hands, recipe).ask(attrgetter("settings")) for name, recipe in recipes.items()}
    # By group, not by weights: an actor that learned nothing has the weights of its start.
    groups: dict[str, dict[str, list[Group]]] = {name: defaultdict(list) for name in policies}
    for name, kind, some in shards:
        groups[name][kind] += some
    priced = rollouts_of(start.shards)
    asks = offer_of(start.config.tasks.environment).feedback_tool
    rollouts = [unpriced(r) for r in priced] if asks else priced
    by_start, by_actor = (successes(rollouts, groups[name]) for name in ("start", "actor"))
    levels = sorted({task.level for task in tasks})
    slices = {
        "all": tasks,
        **{split: [task for task in tasks if task.split == split] for split in start.config.held_out},
        **{f"level {level}": [task for task in tasks if task.level == level] for level in levels},
    }
    measures = {
        measure: {
            name: compare(by_start[measure], by_actor[measure], members, seed=start.seed)
            for name, members in slices.items()
        }
        for measure in ("first_try", "greedy", "with_feedback")
    }
    digests = {name: player.policy_digest for name, player in players.items()}
    report: dict[str, Any] = {"of": start.config.evaluation.of, "policies": digests, "measures": measures}
    report |= feedback_counts(rollout.feedback_status for rollout in rollouts)
    if asks:
        clusters = {task.task_id: task.cluster for task in tasks}
        report["feedback_tool"] = {
            name: call_measures(first_tries(priced, groups[name]["sampled"]), clusters, seed=start.seed)
            for name in policies
        }
    start.finish(report=report)
