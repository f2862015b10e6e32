"""Continues the chosen states and makes labels of what came of them."""

from __future__ import annotations

from critics.labels.checks import check_labels
from critics.labels.cost_report import audit_labels
from critics.labels.named_targets import retarget
from critics.labels.samples import samples_of
from critics.labels.soft_targets import build_labels
from env.play.queue import nothing
from env.play.requests import EpisodeRequest
from env.play.shards import Work, counts_of, play_shards
from pipeline.artifacts.runner import Start
from pipeline.tables import (
    LABELS,
    labels_table,
    rollouts_from,
    rollouts_table,
    steps_table,
)
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.wiring.inputs import policy_of
from stages.wiring.player import make_player


def make(
    start: Start[Config], work: tuple[list[Rollout], dict[str, Task], list[list[EpisodeRequest]]]
) -> None:
    """Continues the chosen states, a shard at a time, then fits the targets."""
    settings = start.config.labels
    rollouts, tasks, shards = work
    by_id = {rollout.rollout_id: rollout for rollout in rollouts}
    player = make_player(start.config, policy_of(start))
    overlap = start.config.engine.overlap_shards
    spent = sum(map(sum, start.shards.table("rollouts").column("loss_mask").to_pylist()))

    def work_of(index: int) -> Work:
        # Shards that run beside each other end out of order, so nothing is cut off there: the choice of
        # states is all that keeps to the budget.
        over = settings.max_tokens is not None and spent >= settings.max_tokens
        return [] if over and not overlap else shards[index], nothing

    for shard, played in play_shards(player, start.shards, work_of, overlap=overlap):
        spent += sum(rollout.num_trainable_tokens for rollout in played)
        done, failed = counts_of(played)
        missing = len(shard.item_ids) - len(played)
        start.shards.commit(
            shard.index,
            {"rollouts": rollouts_table(played), "steps": steps_table(played)},
            done=done,
            failed=failed,
            skipped={"token_budget": missing} if missing else {},
        )

    sampled = rollouts_from(start.shards.table("rollouts"), start.shards.table("steps"))
    samples = samples_of(sampled, by_id)
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
