"""Makes feedback-guided rollouts of the starting policy, and their steps.

Groups are attempt chains: attempt k sees the feedback on the failed attempts before it. A share of the
groups is feedback-free: one bare set of draws.

    make rollouts CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from env.play.chains import Chains, Group, plan_groups
from env.play.player import Player
from pipeline.artifacts.plan import in_shards
from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.tables import ROLLOUTS, STEPS
from pipeline.types import Rollout
from stages.settings import Config
from stages.wiring.inputs import tasks_of_split
from stages.wiring.preflight import check_installed


def chains_of(
    player: Player,
    groups: Sequence[Group],
    max_feedback_tokens: int,
    *,
    seed: int,
    purpose: str,
    stop_at_success: bool,
) -> Chains:
    """Returns the attempt chains of some groups, in the player's words."""
    return Chains(
        groups=groups,
        seed=seed,
        purpose=purpose,
        attempt_line=player.attempt_line,
        num_tokens=player.num_tokens,
        max_feedback_tokens=max_feedback_tokens,
        stop_at_success=stop_at_success,
    )


def in_plan_order(rollouts: Sequence[Rollout], planned: Iterable[str]) -> list[Rollout]:
    """Returns the rollouts as their ids are planned."""
    place = {rollout_id: i for i, rollout_id in enumerate(planned)}
    return sorted(rollouts, key=lambda rollout: place[rollout.rollout_id])


def play_chains(
    player: Player,
    groups: Sequence[Group],
    max_feedback_tokens: int,
    *,
    seed: int,
    purpose: str,
    stop_at_success: bool,
    start: Start,
) -> tuple[list[Rollout], dict[str, int]]:
    """Returns the rollouts of whole groups, sorted by plan, and how many were skipped by kind."""
    chains = chains_of(
        player, groups, max_feedback_tokens, seed=seed, purpose=purpose, stop_at_success=stop_at_success
    )
    rollouts = player.play(chains.first(), then=chains.after, on_finish=lambda _: start.shards.item_done())
    return in_plan_order(rollouts, (r for group in groups for r in group.rollout_ids)), chains.skipped


def counts_of(rollouts: list[Rollout]) -> tuple[int, dict[str, int]]:
    """Returns how many rollouts are done, and how many failed by kind."""
    failed: dict[str, int] = {}
    for rollout in rollouts:
        if rollout.reward is None:
            failed[rollout.env_status] = failed.get(rollout.env_status, 0) + 1
    return len(rollouts) - sum(failed.values()), failed


def plan(start: Start[Config]) -> Plan[list[Sequence[Group]]]:
    """Chooses the groups of the training split's tasks."""
    settings = start.config.rollouts
    tasks = tasks_of_split(start, "train")[: settings.num_tasks]
    groups = plan_groups(
        tasks,
        stage_key=start.stage_key,
        seed=start.seed,
        iteration=0,
        num_attempts=settings.chain.num_attempts,
        draws=settings.chain.draws,
        feedback_free_share=settings.chain.feedback_free_share,
        feedback_free_draws=settings.chain.feedback_free_draws,
    )
    shards = in_shards(groups, settings.groups_per_shard)
    planned = sum(len(group.rollout_ids) for group in groups)
    check_installed(start.config, engine=True)
    return Plan(
        items=[[rollout_id for group in shard for rollout_id in group.rollout_ids] for shard in shards],
        tables=(ROLLOUTS, STEPS),
        unit="rollouts",
        estimate={"rollouts": planned, "tokens_at_most": planned * start.config.sampling.max_response_tokens},
        work=shards,
    )


STAGE = Stage(
    name="rollouts",
    code_version=3,
    inputs=lambda config: ("tasks", "sft"),
    sections=("rollouts", "sampling", "prompt", "engine", "tasks.environment"),
    plan=plan,
    make="stages.bodies.rollouts:make",
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
