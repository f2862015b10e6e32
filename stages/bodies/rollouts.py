"""Plays the planned groups of the rollouts stage, a shard at a time."""

from __future__ import annotations

from collections.abc import Sequence

from env.play.chains import Chains, Group
from pipeline.artifacts.runner import Start
from pipeline.tables import rollouts_table, steps_table
from stages.rollouts import chains_of, counts_of, in_plan_order
from stages.settings import Config
from stages.wiring.build import make_player
from stages.wiring.inputs import policy_of
from stages.wiring.shards import Work, play_shards


def make(start: Start[Config], groups: list[Sequence[Group]]) -> None:
    """Plays and commits each shard."""
    player = make_player(start.config, policy_of(start))
    chains: dict[int, Chains] = {}

    def work_of(index: int) -> Work:
        chains[index] = chains_of(
            player,
            groups[index],
            start.config.prompt.max_feedback_tokens,
            seed=start.seed,
            purpose="rollouts",
            stop_at_success=True,
        )
        return chains[index].first(), chains[index].after

    for index, played in play_shards(start, player, work_of):
        rollouts = in_plan_order(played, start.shards[index].item_ids)
        done, failed = counts_of(rollouts)
        start.shards.commit(
            index,
            {"rollouts": rollouts_table(rollouts), "steps": steps_table(rollouts)},
            done=done,
            failed=failed,
            skipped=chains.pop(index).skipped,
        )
    start.finish()
