"""Units of play: picklable values, from each of which every bit of its rollouts follows.

A unit is played from an empty queue. So what an engine computes beside a rollout, and how it is rounded,
depends on the unit alone: not on who plays it, when, or what else is played beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from env.play.player import Player
from env.play.requests import EpisodeRequest, FollowUps, nothing
from pipeline.types import Rollout

T = TypeVar("T")

PART_EPISODES = 128
"""Episodes that a part begins with, about: wide enough for a batch, small enough that cores work to the end.

Evidence: docs/decisions/0044-players-in-processes.md."""


@dataclass(frozen=True, slots=True)
class Course:
    """How a unit goes on while it is played; `skipped` counts episodes that were not tried, by kind."""

    first: Sequence[EpisodeRequest]
    after: FollowUps = nothing
    skipped: Counter[str] = field(default_factory=Counter)


class Unit(Protocol):
    """What one player plays; a value that can travel to it."""

    def course(self, player: Player) -> Course:
        """Returns its course from the start, in the player's words."""
        ...

    def parts(self, size: int) -> Sequence[Unit]:
        """Returns units of about `size` first episodes that come to the same, cut by the unit alone."""
        ...


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a unit: its first rollouts in order, then those that followed, parents first."""

    rollouts: list[Rollout]
    skipped: dict[str, int]


def play_unit(unit: Unit, player: Player, on_finish: Callable[[Rollout], Any] = nothing) -> Played:
    """Plays a unit to its end; the player must have nothing else in flight."""
    [played] = play_in_one_queue([unit], player, on_finish)
    return played


def play_in_one_queue(
    units: Iterable[Unit], player: Player, on_finish: Callable[[Rollout], Any]
) -> Generator[Played, None, None]:
    """Yields what came of each unit, in their order; the next begins as places fall free.

    `on_finish` is called with each finished rollout, in order of completion.
    """
    courses: list[Course] = []
    place_of: dict[str, int] = {}
    due: list[int] = []  # rollouts that a unit still lacks, as far as it has asked for them
    finished: dict[str, Rollout] = {}
    followers: dict[str, list[str]] = {}

    def note(place: int, requests: Sequence[EpisodeRequest]) -> list[str]:
        place_of.update({request.rollout_id: place for request in requests})
        due[place] += len(requests)
        return [request.rollout_id for request in requests]

    def first() -> Iterator[EpisodeRequest]:
        for place, unit in enumerate(units):
            courses.append(unit.course(player))
            due.append(0)
            note(place, courses[place].first)
            yield from courses[place].first

    def then(rollout: Rollout) -> Sequence[EpisodeRequest]:
        place = place_of[rollout.rollout_id]
        more = courses[place].after(rollout)
        followers[rollout.rollout_id] = note(place, more)
        return more

    def played(course: Course) -> Played:
        order = [request.rollout_id for request in course.first]
        for rollout_id in order:  # grows while it is read: children are listed after every earlier rollout's
            order.extend(followers.pop(rollout_id))
        return Played([finished.pop(rollout_id) for rollout_id in order], dict(course.skipped))

    ended = 0
    with closing(player.stream(first(), then=then)) as stream:
        for rollout in stream:
            on_finish(rollout)
            finished[rollout.rollout_id] = rollout
            due[place_of.pop(rollout.rollout_id)] -= 1
            while ended < len(due) and not due[ended]:
                yield played(courses[ended])
                ended += 1
    for course in courses[ended:]:
        yield played(course)


def joined(parts: Sequence[Played]) -> Played:
    """Returns what came of several units as if it were one."""
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    return Played([rollout for part in parts for rollout in part.rollouts], dict(skipped))


@dataclass(frozen=True, slots=True)
class Episodes:
    """Single episodes, such as continuations, as a `Unit`."""

    requests: Sequence[EpisodeRequest]

    def course(self, player: Player) -> Course:
        """Returns all of them: nothing follows."""
        return Course(self.requests)

    def parts(self, size: int) -> list[Episodes]:
        """Returns them in parts."""
        return [replace(self, requests=part) for part in cut(self.requests, size)]


def cut(items: Sequence[T], size: int, weight: Callable[[T], int] = lambda item: 1) -> list[Sequence[T]]:
    """Returns consecutive parts of nearly equal weight, as many as come closest to `size` each.

    Example:
        >>> cut("abcdefg", 3)
        ['abcd', 'efg']
        >>> cut([5, 1, 1, 1], 4, lambda item: item)
        [[5], [1, 1, 1]]
    """
    total = sum(map(weight, items))
    number = max(1, round(total / size))
    parts: list[Sequence[T]] = []
    begin = done = 0
    for place, item in enumerate(items):
        done += weight(item)
        if done * number >= total * (len(parts) + 1) and len(parts) < number - 1:
            parts.append(items[begin : place + 1])
            begin = place + 1
    return [*parts, items[begin:]]
