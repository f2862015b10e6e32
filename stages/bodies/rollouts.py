"""Plays the planned groups of the rollouts stage, and brings recorded solutions in, a shard at a time."""

from contextlib import closing
from typing import Any

from env.play.chains import Chained
from env.play.shards import commit_rollouts, play_shards
from env.play.team import Job
from pipeline.runner import Start
from stages.rollouts import Work
from stages.settings import Config
from stages.wiring.feedback import feedback_counts
from stages.wiring.hands import Recipe, make_hands


def make(start: Start[Config], work: Work) -> None:
    """Makes and commits each shard; recorded ones last, where helpers do not come."""
    report: dict[str, Any] = {}
    recipe = Recipe(start.config, start.inputs["sft"].path("policy"))

    def job_of(index: int) -> Job:
        return recipe, Chained(
            work.groups[index],
            seed=start.config.run.sampling_seed,
            purpose="rollouts",
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            stop_at_success=True,
        )

    of_groups = range(len(work.groups))
    with closing(make_hands(start.config, start.log_folder)) as hands:
        for shard, played in play_shards(hands, start.shards, job_of, start.shards.item_done, of_groups):
            commit_rollouts(start.shards, shard, played)
    if work.recorded.shards:
        from stages.bodies.solutions import bring_in  # torch, which a stage that only samples need not load

        report = bring_in(start, work.recorded, len(work.groups))
    if start.config.feedback.kind != "rules":
        report |= feedback_counts(start.shards.table("rollouts").column("feedback_status").to_pylist())
    start.finish(report=report or None)
