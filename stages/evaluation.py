"""Sets the actor beside the starting policy on held-out tasks: first try, greedy, and with feedback.

Both policies play the same tasks with the same seeds, so gains are paired by task; intervals are
bootstraps over companies. `with_feedback` is success by the last attempt of a chain of single attempts.

    make evaluation CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from env.play.chains import Group, plan_groups
from pipeline.artifacts.runner import Stage, Start, run_stage
from pipeline.ids import digest
from pipeline.statistics import clustered_mean, interval_dict, paired_difference
from pipeline.tables import ROLLOUTS, STEPS, rollouts_from, rollouts_table, steps_table
from pipeline.types import Rollout, Task
from stages.rollouts import counts_of, play_chains
from stages.settings import Config, Evaluation
from stages.wiring.build import make_engine, make_player
from stages.wiring.inputs import policy_of, tasks_of_split
from stages.wiring.preflight import check_installed, check_plays_weights

POLICIES = {"start": ("sft", "policy"), "actor": ("actor", "actor")}
MEASURES = ("first_try", "greedy", "with_feedback")


def planned_groups(start: Start, tasks: Sequence[Task], policy: str) -> dict[str, list[Group]]:
    """Returns "sampled" groups, `draws` chains of single attempts per task, and "greedy" ones, a try each."""
    settings: Evaluation = start.config.evaluation
    key = digest(start.stage_key, policy)

    def groups(iteration: int, num_attempts: int) -> list[Group]:
        return plan_groups(
            tasks, stage_key=key, seed=start.seed, iteration=iteration, num_attempts=num_attempts, draws=1
        )

    sampled = [group for draw in range(settings.draws) for group in groups(draw, settings.num_attempts)]
    return {"sampled": sampled, "greedy": groups(settings.draws, 1)}


def successes(
    rollouts: Sequence[Rollout], groups: Mapping[str, Sequence[Group]]
) -> dict[str, dict[str, list[float]]]:
    """Returns measure -> task_id -> rewards in [0, 1] of one policy, whose groups are given.

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
    num_resamples: int,
    seed: int,
) -> dict[str, Any]:
    """Returns both policies' mean success and the gain, with intervals by company, over tasks both played."""
    both = [task for task in tasks if task.task_id in start_success and task.task_id in actor_success]
    if not both:
        undefined = {"value": None, "low": None, "high": None}
        return {"tasks": 0, "rollouts": 0, "start": undefined, "actor": undefined, "gain": undefined}
    clusters = [task.cluster for task in both]
    start_means = np.array([np.mean(start_success[task.task_id]) for task in both])
    actor_means = np.array([np.mean(actor_success[task.task_id]) for task in both])
    return {
        "tasks": len(both),
        "rollouts": sum(len(start_success[task.task_id]) for task in both),
        "start": interval_dict(clustered_mean(start_means, clusters, num_resamples=num_resamples, seed=seed)),
        "actor": interval_dict(clustered_mean(actor_means, clusters, num_resamples=num_resamples, seed=seed)),
        "gain": interval_dict(
            paired_difference(actor_means, start_means, clusters, num_resamples=num_resamples, seed=seed)
        ),
    }


def report_of(start: Start, rollouts: Sequence[Rollout], tasks: Sequence[Task]) -> dict[str, Any]:
    """Returns measure -> slice -> comparison: over all held-out tasks, by split, by level."""
    settings: Evaluation = start.config.evaluation
    # By group, not by weights: an actor that learned nothing has the weights of its start.
    found = {name: successes(rollouts, planned_groups(start, tasks, name)) for name in POLICIES}
    slices: dict[str, Callable[[Task], bool]] = {"all": lambda task: True}
    slices |= {split: lambda task, split=split: task.split == split for split in settings.splits}  # type: ignore[misc]
    for level in sorted({task.level for task in tasks}):
        slices[f"level {level}"] = lambda task, level=level: task.level == level  # type: ignore[misc]
    return {
        measure: {
            name: compare(
                found["start"][measure],
                found["actor"][measure],
                [task for task in tasks if belongs(task)],
                num_resamples=settings.bootstrap,
                seed=start.seed,
            )
            for name, belongs in slices.items()
        }
        for measure in MEASURES
    }


def make(start: Start) -> None:
    """Plays every policy on every split, then compares."""
    settings: Evaluation = start.config.evaluation
    check_plays_weights(start.config, "evaluation")
    tasks = [task for split in settings.splits for task in tasks_of_split(start, split)]
    size = settings.groups_per_shard
    shards = [
        (policy, kind, groups[i : i + size])
        for policy in POLICIES
        for kind, groups in planned_groups(start, tasks, policy).items()
        for i in range(0, len(groups), size)
    ]
    check_installed(start.config, engine=True)
    start.plan(
        [[rollout_id for group in groups for rollout_id in group.rollout_ids] for _, _, groups in shards],
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        estimate={"tasks": len(tasks), "policies": len(POLICIES)},
    )
    policies = {name: policy_of(start, *place) for name, place in POLICIES.items()}
    temperatures = {"sampled": 1.0, "greedy": 0.0}
    engine, engine_of = None, ""
    for shard in start.to_do():
        name, kind, groups = shards[shard.index]
        if engine is None or name != engine_of:
            if engine is not None:
                engine.close()
            engine, engine_of = make_engine(start.config, policies[name]), name
        player = make_player(start.config, policies[name], temperature=temperatures[kind], engine=engine)
        rollouts, skipped = play_chains(
            player,
            groups,
            start.config.prompt.max_feedback_tokens,
            seed=start.seed,
            purpose="evaluation",
            stop_at_success=True,
            start=start,
        )
        done, failed = counts_of(rollouts)
        tables = {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)}
        start.commit(shard.index, tables, done=done, failed=failed, skipped=skipped)
    rollouts = rollouts_from(start.shard_table("rollouts"), start.shard_table("steps"))
    digests = {name: policy.policy_digest for name, policy in policies.items()}
    start.finish(report={"policies": digests, "measures": report_of(start, rollouts, tasks)})


STAGE = Stage(
    name="evaluation",
    code_version=4,
    inputs=lambda config: ("tasks", "sft", "actor"),
    sections=(
        "evaluation",
        "engine",
        "sampling",
        "prompt",
        "tasks.environment",
    ),
    make=make,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
