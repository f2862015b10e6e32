"""Plays a stage's shards: each by itself, or as one queue in which the next begins as the last one ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from env.play.player import Player
from env.play.requests import EpisodeRequest, FollowUps
from pipeline.artifacts.runner import Start
from pipeline.types import Rollout

Work = tuple[Sequence[EpisodeRequest], FollowUps]


def play_shards(
    start: Start, player: Player, work_of: Callable[[int], Work]
) -> Iterator[tuple[int, list[Rollout]]]:
    """Yields (index, rollouts in no particular order) of each shard that is not committed yet.

    With `engine.overlap_shards` places that fall free at the end of a shard go to the next one at once, and
    shards may end out of order; what an engine samples then depends, by rounding, on where a run was resumed.

    Args:
        start: the stage's; its bar moves with every rollout, and a request to stop ends the play.
        player: plays the episodes.
        work_of: index of a shard -> its first episodes, and what follows a finished one.
    """
    if start.config.engine.overlap_shards:
        yield from _overlapping(start, player, work_of)
        return
    for shard in start.shards.to_do():
        requests, then = work_of(shard.index)
        yield shard.index, player.play(requests, then=then, on_finish=lambda _: start.shards.item_done())


def _overlapping(
    start: Start, player: Player, work_of: Callable[[int], Work]
) -> Iterator[tuple[int, list[Rollout]]]:
    shard_of: dict[str, int] = {}
    then_of: dict[int, FollowUps] = {}
    due: dict[int, int] = {}  # rollouts that a shard still lacks, as far as it has asked for them
    finished: dict[int, list[Rollout]] = defaultdict(list)
    open_shards = len(start.shards.missing)

    with closing(start.shards.to_do()) as shards:

        def first() -> Iterator[EpisodeRequest]:
            for _ in range(open_shards):  # so that the bar, which ends with the shards, lives to the end
                index = next(shards).index
                requests, then_of[index] = work_of(index)
                shard_of.update({request.rollout_id: index for request in requests})
                due[index] = len(requests)
                yield from requests

        def then(rollout: Rollout) -> Sequence[EpisodeRequest]:
            index = shard_of[rollout.rollout_id]
            more = then_of[index](rollout)
            shard_of.update({request.rollout_id: index for request in more})
            due[index] += len(more)
            return more

        with closing(player.stream(first(), then=then)) as rollouts:
            for rollout in rollouts:
                start.shards.item_done()
                index = shard_of.pop(rollout.rollout_id)
                finished[index].append(rollout)
                due[index] -= 1
                if not due[index]:
                    yield index, finished.pop(index)
