"""Units of play: picklable values, from each of which every bit of its rollouts follows.

A unit is played from an empty queue. So what an engine computes beside a rollout, and how it is rounded,
depends on the unit alone: not on who plays it, when, or what else is played beside it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

from env.play.player import Player
from env.play.requests import EpisodeRequest
from pipeline.types import Rollout, Task

T = TypeVar("T")

PART_EPISODES = 128
"""Episodes that a part begins with, about: wide enough for a batch, small enough that cores work to the end.

Evidence: docs/decisions/0044-players-in-processes.md."""


class Unit(Protocol):
    """What one player plays; a value that can travel to it."""

    def course(self, player: Player) -> Course:
        """Returns its course from the start, in the player's words."""
        ...

    def parts(self, size: int) -> Sequence[Unit]:
        """Returns units of about `size` first episodes that come to the same, cut by the unit alone."""
        ...


@dataclass(slots=True)
class Course:
    """A unit while it is played."""

    first: Sequence[EpisodeRequest]
    after: Callable[[Rollout], Sequence[EpisodeRequest]] = lambda rollout: ()
    skipped: Counter[str] = field(default_factory=Counter)  # episodes that were not tried, by kind
    failed: Counter[str] = field(default_factory=Counter)  # and those that a failing service made impossible
    # On which rollouts a model is to write feedback before `after` is asked about this one.
    lessons: Callable[[Rollout], Sequence[tuple[Task, Rollout]]] = lambda rollout: ()
    learn: Callable[[Rollout], None] = lambda rollout: None  # takes such a rollout, with its feedback
    due: int = field(init=False)  # rollouts that have not ended, of those that were asked for
    _followers: dict[str, list[str]] = field(default_factory=dict)
    _ended: dict[str, Rollout] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.due = len(self.first)

    def follow_ups(self, rollout: Rollout) -> Sequence[EpisodeRequest]:
        """Returns the episodes that a finished rollout asks for."""
        more = self.after(rollout)
        self._followers[rollout.rollout_id] = [request.rollout_id for request in more]
        self.due += len(more)
        return more

    def amend(self, rollout: Rollout) -> None:
        """Takes a rollout, with its feedback, in place of what it was without."""
        self.learn(rollout)
        if rollout.rollout_id in self._ended:
            self._ended[rollout.rollout_id] = rollout

    def end(self, rollout: Rollout) -> None:
        """Counts a rollout as ended; its follow-ups are known."""
        self._ended[rollout.rollout_id] = rollout
        self.due -= 1

    def played(self) -> Played:
        """Returns what came of the unit, now that nothing is due."""
        order = [request.rollout_id for request in self.first]
        for rollout_id in order:  # grows while it is read: children are listed after every earlier rollout's
            order.extend(self._followers[rollout_id])
        return Played([self._ended[name] for name in order], dict(self.skipped), dict(self.failed))


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a unit: its first rollouts in order, then those that followed, parents first."""

    rollouts: list[Rollout]
    skipped: dict[str, int]
    failed: dict[str, int] = field(default_factory=dict)  # episodes that are not among the rollouts


def joined(parts: Sequence[Played]) -> Played:
    """Returns what came of several units as if it were one."""
    skipped, failed = Counter[str](), Counter[str]()
    for part in parts:
        skipped.update(part.skipped)
        failed.update(part.failed)
    return Played([rollout for part in parts for rollout in part.rollouts], dict(skipped), dict(failed))


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
        >>> cut("abcdef", 2), cut("ab", 3), cut("", 3)
        (['ab', 'cd', 'ef'], ['ab'], [''])
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
