"""Plays a stage's shards in order, whoever plays them, beside other processes or alone."""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing

from env.play.team import Hands, Job, OnTick
from env.play.units import Played
from pipeline.artifacts.commit import MAX_FAILED_SHARE, Shard, Shards
from pipeline.artifacts.lock import names, players
from pipeline.artifacts.publish import most_often
from pipeline.artifacts.signals import HelpEnded
from pipeline.errors import ArtifactError, ExitCode
from pipeline.tables import rollouts_table, steps_table
from pipeline.types import Rollout

POLL = 0.5
"""Seconds between two looks at shards that other processes play."""


def play_shards(
    hands: Hands,
    shards: Shards,
    job_of: Callable[[int], Job],
    on_tick: OnTick,
    among: Collection[int] | None = None,
) -> Iterator[tuple[Shard, Played]]:
    """Yields each shard that this process plays with what came of it, in order, until all are committed.

    Helpers may play some of them. Who leads plays what is left, what a helper left undone included, and
    waits for the rest; a helper ends here with HelpEnded. `job_of` (index of a shard -> what is played) is
    asked before earlier shards have ended; only shards with the indices `among`, if they are given, are
    played. The shard is to be committed before the next one is asked for.
    """
    begun: deque[Shard] = deque()

    def missing() -> list[int]:
        return [index for index in shards.missing if among is None or index in among]

    def jobs() -> Iterator[Job]:
        for index in missing():
            if shards.claim(index):
                begun.append(shards[index])
                yield job_of(index)

    waits = False
    with shards.bar():
        while missing():
            number = 0
            with closing(hands.play(jobs(), on_tick)) as results:
                for number, played in enumerate(results, 1):  # noqa: B007 - whether there were any
                    yield begun.popleft(), played
            if not number and not shards.leads:
                break
            if not number:
                if not waits:  # for ever if one of them hangs: people have to know whom to end
                    who = names(players(shards.folder))
                    shards.say(f"waits for the shards that others play ({len(missing())}): {who}")
                waits = True
                on_tick(0)
                time.sleep(POLL)
                shards.refresh()
    if not shards.leads:
        raise HelpEnded


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
    refuse_outage(shards, shard, failed, ordered, done)
    shards.commit(shard.index, tables, done=done, failed=failed, skipped=played.skipped)


def refuse_outage(
    shards: Shards, shard: Shard, failed: Counter[str], played: Iterable[Rollout], done: int
) -> None:
    """Raises ArtifactError if more items of a shard failed than went well, by now too many for the stage.

    The shard is not committed: once the cause is gone, the same command plays it again. What comes after
    would fail as well, for hours perhaps. Attempts that failed ones would have led to are no items here.
    """
    number, before = failed.total(), sum(shards.counts().failed.values())
    if number <= done or before + number <= MAX_FAILED_SHARE * shards.plan.num_items:
        return
    kinds = ", ".join(f"{kind} {count}" for kind, count in failed.most_common())
    raise ArtifactError(
        f"{shards.stage}: {number} {shards.plan.unit} of shard {shard.index} failed ({kinds}), {done} did "
        f"not, and later ones would fail too{said_of_failures(played)}. Next: remove the cause; the same "
        "command then goes on with this shard",
        code=ExitCode.FAILED_ITEMS,
    )


def said_of_failures(rollouts: Iterable[Rollout]) -> str:
    """Returns, as `most_often` does, why rollouts could not be graded."""
    ungraded = (rollout for rollout in rollouts if rollout.reward is None)
    return most_often(e.detail for rollout in ungraded for e in rollout.events if e.code == "infra_error")
