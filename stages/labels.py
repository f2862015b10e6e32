"""Makes step labels: what fresh continuations and unguided outcomes say of V(s_i) under the starting policy.

A state gets n continuations, replayed exactly up to it and sampled on. It is chosen without looking at the
samples that label it, among the companies that fit and validate the critic. Guided states are labelled inside
their own context only. `labels.target` names what the critic is fitted to, `labels.max_tokens` what the
continuations may cost.

    make labels CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from critics.labels.checks import check_labels, check_outcomes_differ
from critics.labels.choose_states import StateRef, choose_states
from critics.labels.cost_report import audit_labels
from critics.labels.named_targets import retarget
from critics.labels.soft_targets import build_labels
from critics.labels.splits import parts_of
from env.play.queue import nothing
from pipeline.artifacts.runner import Stage, Start, run_stage
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
from stages.rollouts import counts_of, in_plan_order
from stages.settings import Config
from stages.wiring.build import make_player
from stages.wiring.continuations import continuations, samples_of
from stages.wiring.inputs import policy_of
from stages.wiring.label_budget import check_budget, tokens_at_most, within_budget
from stages.wiring.preflight import check_installed
from stages.wiring.shards import play_shards

if TYPE_CHECKING:
    from stages.wiring.shards import Work


def make(start: Start) -> None:
    """Continues the chosen states, a shard at a time, then fits the targets."""
    settings = start.config.labels
    source = start.inputs["rollouts"]
    rollouts = rollouts_from(source.table("rollouts"), source.table("steps"))
    tasks = {task.task_id: task for task in tasks_from(start.inputs["tasks"].table("tasks"))}
    check_outcomes_differ(rollouts)
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    part_of = parts_of(rollouts, tasks, start.config.critic, seed=start.seed)
    # Calibration goes by outcomes, so continuations are for those that fit and validate.
    continued = [r for r in rollouts if part_of.get(r.rollout_id) in ("fit", "validate")]

    def choose(cap: int | None) -> list[StateRef]:
        return choose_states(
            continued,
            max_states=cap,
            guided_share=settings.guided_share,
            seed=start.seed,
        )

    def tokens_of(states: list[StateRef]) -> int:
        own = sum(tokens_after(by_id[state.rollout_id], state.step_index) for state in states)
        return settings.num_continuations * own

    states = choose(settings.max_states)
    if settings.max_tokens is not None:
        check_budget(settings.max_tokens, tokens_of(choose(1)))
        states = within_budget(choose, tokens_of, settings.max_tokens, len(states))
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
    ids = [[request.rollout_id for request in shard] for shard in shards]
    planned = sum(map(len, ids))
    check_installed(start.config, engine=True)
    start.plan(
        ids,
        tables=(ROLLOUTS, STEPS),
        unit="continuations",
        estimate={
            "states": len(states),
            "continuations": planned,
            "tokens_expected": tokens_of(states),
            "tokens_at_most": tokens_at_most(start.config, planned),
        },
    )
    player = make_player(start.config, policy_of(start))
    spent = sum(map(sum, start.shard_table("rollouts").column("loss_mask").to_pylist()))

    def work_of(index: int) -> Work:
        # Shards that run beside each other end out of order, so nothing is cut off there: the choice of
        # states is all that keeps to the budget.
        over = settings.max_tokens is not None and spent >= settings.max_tokens
        return [] if over and not start.config.engine.overlap_shards else shards[index], nothing

    for index, played in play_shards(start, player, work_of):
        played = in_plan_order(played, start.shards()[index].item_ids)
        spent += sum(rollout.num_trainable_tokens for rollout in played)
        done, failed = counts_of(played)
        missing = len(ids[index]) - len(played)
        start.commit(
            index,
            {"rollouts": rollouts_table(played), "steps": steps_table(played)},
            done=done,
            failed=failed,
            skipped={"token_budget": missing} if missing else {},
        )

    sampled = rollouts_from(start.shard_table("rollouts"), start.shard_table("steps"))
    samples = samples_of(sampled, by_id, settings.num_continuations)
    policy_digest = player.settings.policy_digest
    labels, recovery = build_labels(
        rollouts,
        samples,
        kappa=settings.kappa,
        label_policy_digest=policy_digest,
        seed=start.seed,
        granularity=settings.granularity,
    )
    if settings.target != "soft":
        labels = retarget(labels, rollouts, settings.target, policy=policy_digest)
    kinds = check_labels(labels, rollouts, list(tasks.values()), label_policy_digest=policy_digest)
    start.finish(
        more_tables=((LABELS, labels_table(labels)),),
        report=recovery
        | kinds
        | {"target": settings.target, "sampled_tokens": spent}
        | {"audit": audit_labels(labels, rollouts, samples)},
    )


def tokens_after(rollout: Rollout, step_index: int) -> int:
    """Returns the tokens that the rollout itself sampled from a state on: what a continuation will cost."""
    return sum(rollout.loss_mask[rollout.steps[step_index].token_start :])


STAGE = Stage(
    name="labels",
    code_version=8,
    inputs=lambda config: ("tasks", "sft", "rollouts"),
    sections=(
        "labels",
        "critic.fit_share",  # whom it calibrates on is not continued
        "critic.validate_share",
        "engine",
        "sampling",
        "prompt.style",
        "prompt.verbosity",
        "tasks.environment",
    ),
    make=make,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
