"""Plays the planned groups of the rollouts stage, or brings recorded solutions in, a shard at a time."""

from collections.abc import Sequence
from contextlib import closing

from env.play.chains import Chained, Group
from env.play.shards import commit_rollouts, play_shards
from env.play.team import Job
from pipeline.artifacts.runner import Start
from stages.settings import Config
from stages.wiring.hands import Recipe, make_hands
from stages.wiring.solutions import Recorded


def make(start: Start[Config], work: list[Sequence[Group]] | Recorded) -> None:
    """Makes and commits each shard."""
    if isinstance(work, Recorded):
        from stages.bodies.solutions import bring_in  # torch, which a stage that only samples need not load

        bring_in(start, work)
        return
    groups = work
    recipe = Recipe(start.config, start.inputs["sft"].path("policy"))

    def job_of(index: int) -> Job:
        return recipe, Chained(
            groups[index],
            seed=start.seed,
            purpose="rollouts",
            max_feedback_tokens=start.config.prompt.max_feedback_tokens,
            stop_at_success=True,
        )

    with closing(make_hands(start.config, start.log_folder)) as hands:
        for shard, played in play_shards(hands, start.shards, job_of, start.shards.item_done):
            commit_rollouts(start.shards, shard, played.rollouts, played.skipped)
    start.finish()
