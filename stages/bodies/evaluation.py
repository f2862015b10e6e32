"""Plays both policies on the held-out tasks and compares them."""

from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from typing import Any

from env.catalog import offer_of
from env.feedback_tool.measures import call_measures, unpriced
from env.play.chains import Chained, Group
from env.play.shards import commit_rollouts, play_shards
from env.play.team import Job
from pipeline.runner import Start
from stages.evaluation import Work
from stages.settings import Config
from stages.wiring.evaluated import compare, compare_events, first_tries, successes
from stages.wiring.feedback import feedback_counts
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.inputs import policies_of, rollouts_of


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
    # As they were played under: to ask for them would start every engine again.
    policy_of = {group.group_id: name for name, _, some in shards for group in some}
    digests = {policy_of[rollout.group_id]: rollout.policy_digest for rollout in priced}
    report: dict[str, Any] = {"of": start.config.evaluation.of, "policies": digests, "measures": measures}
    tries = {name: first_tries(rollouts, groups[name]["sampled"]) for name in policies}
    report["events"] = compare_events(tries["start"], tries["actor"], tasks, seed=start.seed)
    report |= feedback_counts(rollout.feedback_status for rollout in rollouts)
    if asks:
        clusters = {task.task_id: task.cluster for task in tasks}
        report["feedback_tool"] = {
            name: call_measures(first_tries(priced, groups[name]["sampled"]), clusters, seed=start.seed)
            for name in policies
        }
    start.finish(report=report)
