"""Plays shards of episodes: each by itself, or as one queue in which the next begins as the last one ends."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice

from env.play.player import Player
from env.play.requests import EpisodeRequest, FollowUps
from pipeline.artifacts.commit import Shard, Shards
from pipeline.types import Rollout

Work = tuple[Sequence[EpisodeRequest], FollowUps]
"""A shard's first episodes, and what follows a finished one."""


def play_shards(
    player: Player, shards: Shards, work_of: Callable[[int], Work], *, overlap: bool
) -> Iterator[tuple[Shard, list[Rollout]]]:
    """Yields each shard that is not committed yet, and its rollouts in plan order.

    Args:
        player: plays the episodes.
        shards: of the stage; their bar moves with every rollout, and a request to stop ends the play.
        work_of: index of a shard -> what to play.
        overlap: whether places that fall free at the end of a shard go to the next one at once. Shards may
            then end out of order, and what an engine samples depends, by rounding, on where a run was
            resumed.
    """
    if overlap:
        yield from _overlapping(player, shards, work_of)
        return
    for shard in shards.to_do():
        requests, then = work_of(shard.index)
        played = player.play(requests, then=then, on_finish=lambda _: shards.item_done())
        yield shard, in_plan_order(played, shard.item_ids)


def _overlapping(
    player: Player, shards: Shards, work_of: Callable[[int], Work]
) -> Iterator[tuple[Shard, list[Rollout]]]:
    shard_of: dict[str, Shard] = {}
    then_of: dict[int, FollowUps] = {}
    due: dict[int, int] = {}  # rollouts that a shard still lacks, as far as it has asked for them
    finished: dict[int, list[Rollout]] = defaultdict(list)
    num_missing = len(shards.missing)

    def note(shard: Shard, requests: Sequence[EpisodeRequest]) -> Sequence[EpisodeRequest]:
        shard_of.update({request.rollout_id: shard for request in requests})
        due[shard.index] = due.get(shard.index, 0) + len(requests)
        return requests

    def first() -> Iterator[EpisodeRequest]:
        for shard in islice(to_do, num_missing):  # the bar ends when one more is asked for
            requests, then_of[shard.index] = work_of(shard.index)
            yield from note(shard, requests)

    def then(rollout: Rollout) -> Sequence[EpisodeRequest]:
        shard = shard_of[rollout.rollout_id]
        return note(shard, then_of[shard.index](rollout))

    with closing(shards.to_do()) as to_do, closing(player.stream(first(), then=then)) as rollouts:
        for rollout in rollouts:
            shards.item_done()
            shard = shard_of.pop(rollout.rollout_id)
            finished[shard.index].append(rollout)
            due[shard.index] -= 1
            if not due[shard.index]:
                yield shard, in_plan_order(finished.pop(shard.index), shard.item_ids)


def in_plan_order(rollouts: Iterable[Rollout], planned: Iterable[str]) -> list[Rollout]:
    """Returns the rollouts as their ids are planned."""
    place = {rollout_id: i for i, rollout_id in enumerate(planned)}
    return sorted(rollouts, key=lambda rollout: place[rollout.rollout_id])


def counts_of(rollouts: Iterable[Rollout]) -> tuple[int, dict[str, int]]:
    """Returns how many rollouts are done, and how many failed by kind."""
    counts = Counter("" if rollout.reward is not None else rollout.env_status for rollout in rollouts)
    return counts.pop("", 0), dict(counts)
