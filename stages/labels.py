"""Makes step labels: what fresh continuations and unguided outcomes say of V(s_i) under the starting policy.

A state gets n continuations, replayed exactly up to it and sampled on. It is chosen without looking at the
samples that label it. Guided states are labelled inside their own context only. TD targets are left out.

    make labels CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import sys
from collections import defaultdict

from critics.anchors import StateRef, choose_states
from critics.targets import build_labels, check_labels
from env.episodes import nothing
from pipeline.runner import Stage, Start, run_stage
from pipeline.tables import (
    LABELS,
    ROLLOUTS,
    STEPS,
    labels_table,
    rollouts_from,
    rollouts_table,
    steps_table,
    tasks_from,
)
from pipeline.types import Rollout
from stages.backends import check_installed, make_player, policy_of
from stages.continuing import continuations
from stages.rollouts import counts_of, in_plan_order
from stages.settings import Config
from stages.shards import play_shards


def make(start: Start) -> None:
    """Continues the chosen states, a shard at a time, then fits the targets."""
    settings = start.config.labels
    source = start.inputs["rollouts"]
    rollouts = rollouts_from(source.table("rollouts"), source.table("steps"))
    tasks = {task.task_id: task for task in tasks_from(start.inputs["tasks"].table("tasks"))}
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    states = choose_states(
        rollouts,
        anchors=settings.anchors,
        around_errors=settings.around_errors,
        max_states=settings.max_states,
        guided_share=settings.guided_share,
        seed=start.seed,
    )
    size = settings.states_per_shard
    shards = [
        [
            request
            for state in states[i : i + size]
            for request in continuations(
                start,
                by_id[state.rollout_id],
                state.step_index,
                tasks[by_id[state.rollout_id].task_id],
                settings.num_continuations,
                purpose="labels",
            )
        ]
        for i in range(0, len(states), size)
    ]
    planned = sum(map(len, shards))
    sampling = start.config.rollouts.sampling
    check_installed(start.config, engine=True)
    start.plan(
        [[request.rollout_id for request in shard] for shard in shards],
        tables=(ROLLOUTS, STEPS),
        unit="continuations",
        estimate={
            "states": len(states),
            "continuations": planned,
            "tokens_at_most": planned * sampling.max_response_tokens,
        },
    )
    player = make_player(start.config, policy_of(start), sampling)
    for index, played in play_shards(start, player, lambda index: (shards[index], nothing)):
        played = in_plan_order(played, start.shards()[index].item_ids)
        done, failed = counts_of(played)
        start.commit(
            index,
            {"rollouts": rollouts_table(played), "steps": steps_table(played)},
            done=done,
            failed=failed,
        )

    samples: dict[StateRef, list[Rollout]] = defaultdict(list)
    for sample in rollouts_from(start.shard_table("rollouts"), start.shard_table("steps")):
        samples[StateRef(sample.parent_rollout_ids[0], sample.start_step_index, sample.context)].append(
            sample
        )
    policy_digest = player.settings.policy_digest
    labels, recovery = build_labels(
        rollouts, samples, kappa=settings.kappa, label_policy_digest=policy_digest, seed=start.seed
    )
    check_labels(labels, rollouts, list(tasks.values()), label_policy_digest=policy_digest)
    start.finish(more_tables=((LABELS, labels_table(labels)),), report=recovery)


STAGE = Stage(
    name="labels",
    code_version=2,
    inputs=lambda config: ("tasks", "sft", "rollouts"),
    sections=(
        "labels",
        "engine",
        "rollouts.sampling",
        "rollouts.style",
        "rollouts.verbosity",
        "tasks.environment",
    ),
    make=make,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
