"""Plays the planned groups of the rollouts stage, a shard at a time."""

from __future__ import annotations

from collections.abc import Sequence

from env.play.chains import Chains, Group, chains_of
from env.play.shards import Work, counts_of, play_shards
from pipeline.artifacts.runner import Start
from pipeline.tables import rollouts_table, steps_table
from stages.settings import Config
from stages.wiring.inputs import policy_of
from stages.wiring.player import make_player


def make(start: Start[Config], groups: list[Sequence[Group]]) -> None:
    """Plays and commits each shard."""
    player = make_player(start.config, policy_of(start))
    chains: dict[int, Chains] = {}

    def work_of(index: int) -> Work:
        chains[index] = chains_of(
            player,
            groups[index],
            seed=start.seed,
            purpose="rollouts",
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            stop_at_success=True,
        )
        return chains[index].first(), chains[index].after

    overlap = start.config.engine.overlap_shards
    for shard, rollouts in play_shards(player, start.shards, work_of, overlap=overlap):
        done, failed = counts_of(rollouts)
        start.shards.commit(
            shard.index,
            {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)},
            done=done,
            failed=failed,
            skipped=chains.pop(shard.index).skipped,
        )
    start.finish()
