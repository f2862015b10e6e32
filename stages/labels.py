"""Makes step labels: what fresh continuations and unguided outcomes say of V(s_i) under the starting policy.

A state gets n continuations, replayed exactly up to it and sampled on. It is chosen without looking at the
samples that label it. Guided states are labelled inside their own context only. `labels.target` names what
the critic is fitted to, `labels.max_tokens` what the continuations may cost.

    make labels CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

from critics.anchors import StateRef, choose_states
from critics.label_audit import audit_labels
from critics.rules import retarget
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

if TYPE_CHECKING:
    from stages.shards import Work


def make(start: Start) -> None:
    """Continues the chosen states, a shard at a time, then fits the targets."""
    settings = start.config.labels
    source = start.inputs["rollouts"]
    rollouts = rollouts_from(source.table("rollouts"), source.table("steps"))
    tasks = {task.task_id: task for task in tasks_from(start.inputs["tasks"].table("tasks"))}
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}

    def choose(cap: int | None) -> list[StateRef]:
        return choose_states(
            rollouts,
            anchors=settings.anchors,
            around_errors=settings.around_errors,
            max_states=cap,
            guided_share=settings.guided_share,
            seed=start.seed,
        )

    def tokens_of(states: list[StateRef]) -> int:
        own = sum(tokens_after(by_id[state.rollout_id], state) for state in states)
        return settings.num_continuations * own

    states = choose(settings.max_states)
    if settings.max_tokens is not None:
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
            "tokens_expected": tokens_of(states),
            "tokens_at_most": planned * sampling.max_response_tokens,
        },
    )
    player = make_player(start.config, policy_of(start), sampling)
    spent = sum(map(sum, start.shard_table("rollouts").column("loss_mask").to_pylist()))

    def work_of(index: int) -> Work:
        # Shards that run beside each other end out of order, so nothing is cut off there.
        over = settings.max_tokens is not None and spent >= settings.max_tokens
        return ([] if over and not start.config.engine.overlap_shards else shards[index]), nothing

    for index, played in play_shards(start, player, work_of):
        played = in_plan_order(played, start.shards()[index].item_ids)
        spent += sum(rollout.num_trainable_tokens for rollout in played)
        done, failed = counts_of(played)
        unpaid = len(shards[index]) - len(played)
        start.commit(
            index,
            {"rollouts": rollouts_table(played), "steps": steps_table(played)},
            done=done,
            failed=failed,
            skipped={"token_budget": unpaid} if unpaid else {},
        )

    samples: dict[StateRef, list[Rollout]] = defaultdict(list)
    for sample in rollouts_from(start.shard_table("rollouts"), start.shard_table("steps")):
        samples[StateRef(sample.parent_rollout_ids[0], sample.start_step_index, sample.context)].append(
            sample
        )
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
    check_labels(labels, rollouts, list(tasks.values()), label_policy_digest=policy_digest)
    start.finish(
        more_tables=((LABELS, labels_table(labels)),),
        report=recovery
        | {"target": settings.target, "sampled_tokens": spent}
        | {"audit": audit_labels(labels, rollouts, samples)},
    )


def tokens_after(rollout: Rollout, state: StateRef) -> int:
    """Returns the tokens that the rollout itself sampled from a state on: what a continuation will cost."""
    return sum(rollout.loss_mask[rollout.steps[state.step_index].token_start :])


def within_budget(
    choose: Callable[[int], list[StateRef]],
    tokens_of: Callable[[list[StateRef]], int],
    max_tokens: int,
    most: int,
) -> list[StateRef]:
    """Returns as many states as are expected to fit the budget, spread over the tasks like any choice.

    Args:
        choose: a cap -> states.
        tokens_of: states -> tokens that their continuations are expected to take.
        max_tokens: the budget.
        most: the cap without a budget.
    """
    fits, too_many = 0, most + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if tokens_of(choose(middle)) <= max_tokens:
            fits = middle
        else:
            too_many = middle
    return choose(fits)


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
