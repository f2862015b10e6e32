"""Who plays: this process, unit by unit or all units in one queue, or processes of their own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from env.play.player import Player
from env.play.requests import EpisodeRequest
from env.play.team import Job, OnTick
from env.play.units import PART_EPISODES, Course, Played, Unit, play_unit
from pipeline.processes.pool import Pool
from pipeline.processes.shared_weights import SharedWeights
from pipeline.types import Rollout

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


Act = Callable[[Player, Callable[[Rollout], Any]], T]
"""What a player is made for, given what to call after each rollout; it can be pickled."""


def answer(question: Callable[[Player], T], player: Player, on_finish: Callable[[Rollout], Any]) -> T:
    """Returns a player's answer: an `Act` without rollouts."""
    return question(player)


@contextmanager
def one_thread() -> Iterator[None]:
    """Makes torch compute with one thread: more of them make sampling slower, and round differently."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class Seat(Protocol):
    """A place in a process where players are made, one after the other."""

    def player(self, recipe: Any) -> Player:
        """Returns the player of a recipe; the one before it is gone if it had other weights."""
        ...

    def close(self) -> None:
        """Frees what the last player held."""
        ...


class Here:
    """`Hands` of this process: one unit after the other.

    Args:
        seat: makes the players.
        part_episodes: see `Hands`.
        one_thread: whether it plays under `one_thread`, as processes of their own do.
    """

    def __init__(
        self, seat: Seat, *, part_episodes: int | None = PART_EPISODES, one_thread: bool = True
    ) -> None:
        self.part_episodes = part_episodes
        self._seat = seat
        self._one_thread = one_thread

    def start(self, parts: int) -> None:
        """Does nothing: the player is made when it is asked for."""

    def play(self, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
        """Yields what came of each job; see `Hands`."""
        for recipe, unit in jobs:
            yield self._act(recipe, partial(play_unit, unit), on_tick)

    def ask(self, recipe: Any, question: Callable[[Player], T]) -> T:
        """Returns the player's answer."""
        return self._act(recipe, partial(answer, question), lambda _: None)

    def hand_over(self, recipe: Any, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Any:
        """Loads the weights into the engine at once."""
        self._seat.player(recipe).engine.load_weights(weights, policy_digest)
        return replace(recipe, policy_digest=policy_digest)

    def sleep(self, recipe: Any) -> None:
        """Lets the engine sleep."""
        self._seat.player(recipe).engine.sleep()

    def close(self) -> None:
        """Frees the player."""
        self._seat.close()

    def _act(self, recipe: Any, act: Act[T], on_tick: OnTick) -> T:
        player = self._seat.player(recipe)
        with one_thread() if self._one_thread else nullcontext():
            return act(player, lambda _: on_tick(1))


class OneQueue(Here):
    """`Hands` of this process that play units as one queue: the next begins as places fall free.

    That keeps GPUs full, but what is sampled depends, by rounding, on what is played beside it.
    """

    def play(self, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
        """Yields what came of each job, in their order; of a unit, rollouts come as they ended."""
        for recipe, group in groupby(jobs, key=lambda job: job[0]):
            yield from _in_one_queue(self._seat.player(recipe), (unit for _, unit in group), on_tick)


def _in_one_queue(player: Player, units: Iterable[Unit], on_tick: OnTick) -> Generator[Played, None, None]:
    courses: list[Course] = []
    place_of: dict[str, int] = {}
    due: list[int] = []  # rollouts that a unit still lacks, as far as it has asked for them
    rollouts: dict[int, list[Rollout]] = defaultdict(list)

    def note(place: int, requests: Sequence[EpisodeRequest]) -> Sequence[EpisodeRequest]:
        place_of.update({request.rollout_id: place for request in requests})
        due[place] += len(requests)
        return requests

    def first() -> Iterator[EpisodeRequest]:
        for place, unit in enumerate(units):
            courses.append(unit.course(player))
            due.append(0)
            yield from note(place, courses[place].first())

    def then(rollout: Rollout) -> Sequence[EpisodeRequest]:
        place = place_of[rollout.rollout_id]
        return note(place, courses[place].after(rollout))

    ended = 0
    with closing(player.stream(first(), then=then)) as stream:
        for rollout in stream:
            on_tick(1)
            place = place_of.pop(rollout.rollout_id)
            rollouts[place].append(rollout)
            due[place] -= 1
            while ended < len(due) and not due[ended]:
                yield Played(rollouts.pop(ended, []), dict(courses[ended].skipped))
                ended += 1
    for place in range(ended, len(due)):
        yield Played(rollouts.pop(place, []), dict(courses[place].skipped))


class Processes:
    """`Hands` in processes of their own, one thread each, over weights in memory that they share.

    Args:
        pool: of workers that do (recipe, act): they make the player and let it act. A recipe has `weights`
            and `policy_digest`.
    """

    part_episodes: int | None = PART_EPISODES

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shared = SharedWeights()

    def start(self, parts: int) -> None:
        """Starts a process for each part, as many as there may be."""
        self._pool.start(parts)

    def play(self, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
        """Yields what came of each job; see `Hands`."""
        return self._pool.do(((recipe, partial(play_unit, unit)) for recipe, unit in jobs), on_tick)

    def ask(self, recipe: Any, question: Callable[[Player], T]) -> T:
        """Returns the answer of one of them."""
        [found] = self._pool.do([(recipe, partial(answer, question))], lambda _: None)
        return found

    def hand_over(self, recipe: Any, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Any:
        """Writes the weights where each process finds them with the next job."""
        return replace(recipe, weights=self._shared.write(weights), policy_digest=policy_digest)

    def sleep(self, recipe: Any) -> None:
        """Does nothing: they hold no GPU."""

    def close(self) -> None:
        """Ends the processes."""
        self._pool.close()
        self._shared.close()
