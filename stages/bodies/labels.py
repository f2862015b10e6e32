"""Continues the chosen states and makes labels of what came of them."""

from __future__ import annotations

from contextlib import closing

from critics.labels.checks import check_labels
from critics.labels.cost_report import audit_labels
from critics.labels.named_targets import retarget
from critics.labels.samples import samples_of
from critics.labels.soft_targets import build_labels
from env.play.player import settings_of
from env.play.requests import EpisodeRequest
from env.play.shards import counts_of, in_plan_order, play_shards
from env.play.team import Job, Team
from env.play.units import Episodes
from pipeline.artifacts.runner import Start
from pipeline.columns import LABELS
from pipeline.tables import labels_table, rollouts_from, rollouts_table, steps_table
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.settings.engine import overlaps_shards
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.inputs import policy_folder


def make(
    start: Start[Config], work: tuple[list[Rollout], dict[str, Task], list[list[EpisodeRequest]]]
) -> None:
    """Continues the chosen states, a shard at a time, then fits the targets."""
    settings = start.config.labels
    rollouts, tasks, shards = work
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    spent = sum(map(sum, start.shards.table("rollouts").column("loss_mask").to_pylist()))
    recipe = Recipe(start.config, policy_folder(start))

    def is_over() -> bool:
        # Where shards are played as one queue, the choice of states is all that keeps to the budget.
        if settings.max_tokens is None or overlaps_shards(start.config.engine):
            return False
        return spent >= settings.max_tokens

    def job_of(index: int) -> Job:
        return recipe, Episodes([] if is_over() else shards[index])

    with closing(make_hands(start.config, start.log_folder)) as hands:
        for shard, played in play_shards(hands, start.shards, job_of, start.shards.item_done):
            # Played beside the shard that spent the last of the budget, it counts as not begun.
            sampled = [] if is_over() else in_plan_order(played.rollouts, shard.item_ids)
            spent += sum(rollout.num_trainable_tokens for rollout in sampled)
            done, failed = counts_of(sampled)
            missing = len(shard.item_ids) - len(sampled)
            start.shards.commit(
                shard.index,
                {"rollouts": rollouts_table(sampled), "steps": steps_table(sampled)},
                done=done,
                failed=failed,
                skipped={"token_budget": missing} if missing else {},
            )
        policy_digest = Team(hands, recipe).ask(settings_of).policy_digest

    sampled = rollouts_from(start.shards.table("rollouts"), start.shards.table("steps"))
    samples = samples_of(sampled, by_id)
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
        | {"kappa": settings.kappa, "target": settings.target, "sampled_tokens": spent}
        | {"audit": audit_labels(labels, rollouts, samples)},
    )
