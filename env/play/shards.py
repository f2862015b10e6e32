"""Plays a stage's shards in order, whoever plays them."""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing

from env.play.team import Hands, Job, OnTick
from env.play.units import Played
from pipeline.artifacts.commit import Shard, Shards
from pipeline.tables import rollouts_table, steps_table
from pipeline.types import Rollout


def play_shards(
    hands: Hands,
    shards: Shards,
    job_of: Callable[[int], Job],
    on_tick: OnTick,
    among: Collection[int] | None = None,
) -> Iterator[tuple[Shard, Played]]:
    """Yields each shard that is not committed yet with what came of it, in order.

    `job_of` (index of a shard -> what is played) is asked before earlier shards have ended; only shards with
    the indices `among`, if they are given, are played.
    """
    begun: deque[Shard] = deque()

    def jobs() -> Iterator[Job]:
        for index in shards.missing:
            if among is not None and index not in among:
                continue
            begun.append(shards[index])
            yield job_of(index)

    with shards.bar(), closing(hands.play(jobs(), on_tick)) as results:
        for played in results:
            yield begun.popleft(), played


def in_plan_order(rollouts: Iterable[Rollout], planned: Iterable[str]) -> list[Rollout]:
    """Returns the rollouts as their ids are planned."""
    place = {rollout_id: i for i, rollout_id in enumerate(planned)}
    return sorted(rollouts, key=lambda rollout: place[rollout.rollout_id])


def commit_rollouts(shards: Shards, shard: Shard, played: Played) -> None:
    """Commits rollouts and their steps in the order of the plan; what nobody could grade has failed."""
    ordered = in_plan_order(played.rollouts, shard.item_ids)
    ungraded = Counter(rollout.env_status for rollout in ordered if rollout.reward is None)
    tables = {"rollouts": rollouts_table(ordered), "steps": steps_table(ordered)}
    done, failed = len(ordered) - ungraded.total(), ungraded + Counter(played.failed)
    shards.commit(shard.index, tables, done=done, failed=failed, skipped=played.skipped)
