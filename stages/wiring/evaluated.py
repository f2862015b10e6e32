"""What policies came to on held-out tasks: success of each measure, what happened on the way, and gains."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from env.play.chains import Group
from pipeline.statistics import MIN_CLUSTERS, ClusterBootstrap, interval_dict
from pipeline.types import Rollout, Task

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
    """Returns both policies' mean success and the gain, over tasks that both played.

    With intervals by cluster; without bounds where these are fewer than `MIN_CLUSTERS`.
    """
    both = [task for task in tasks if task.task_id in start_success and task.task_id in actor_success]
    boot = ClusterBootstrap([task.cluster for task in both], NUM_RESAMPLES, seed, MIN_CLUSTERS)
    start_means = np.array([np.mean(start_success[task.task_id]) for task in both])
    actor_means = np.array([np.mean(actor_success[task.task_id]) for task in both])
    return {
        "tasks": len(both),
        "rollouts": sum(len(start_success[task.task_id]) for task in both),
        "start": interval_dict(boot.mean(start_means)),
        "actor": interval_dict(boot.mean(actor_means)),
        "gain": interval_dict(boot.mean(actor_means - start_means)),
    }


def event_shares(rollouts: Sequence[Rollout], codes: Collection[str]) -> dict[str, dict[str, list[float]]]:
    """Returns event code -> task_id -> 1 for each graded rollout with such an event, 0 for one without.

    Which of them are guesses, probes or slips its environment says: a policy may learn from feedback what to
    do, or to try its luck.
    """
    found: dict[str, dict[str, list[float]]] = {code: defaultdict(list) for code in codes}
    for rollout in rollouts:
        if rollout.reward is not None:
            happened = {event.code for event in rollout.events}
            for code in codes:
                found[code][rollout.task_id].append(float(code in happened))
    return found


def compare_events(
    start_tries: Sequence[Rollout], actor_tries: Sequence[Rollout], tasks: Sequence[Task], *, seed: int
) -> dict[str, Any]:
    """Returns event code -> share of tries that have it, of both policies and gained, as `compare` says."""
    graded = [rollout for rollout in (*start_tries, *actor_tries) if rollout.reward is not None]
    codes = sorted({event.code for rollout in graded for event in rollout.events})
    start, actor = (event_shares(tries, codes) for tries in (start_tries, actor_tries))
    return {code: compare(start[code], actor[code], tasks, seed=seed) for code in codes}
