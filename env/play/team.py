"""A policy and who plays it: this process, unit by unit or all in one queue, or processes of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, TypeVar

from env.play.player import Player
from env.play.queue import play_in_one_queue, play_unit
from env.play.units import PART_EPISODES, Played, Unit, joined
from pipeline.processes.pool import Pool
from pipeline.processes.shared_weights import SharedWeights
from pipeline.types import Rollout

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

OnTick = Callable[[int], None]
"""Called several times a second with the number of rollouts that ended since; what it raises ends it."""

Job = tuple[Any, Unit]
"""A recipe, opaque here, that says all that makes a player wherever it is made; and what that plays."""

Act = Callable[[Player, Callable[[Rollout], Any]], T]
"""What a player is made for, given what to call after each rollout; it can be pickled."""


class Hands(ABC):
    """Who plays."""

    in_parts = True  # whether units are cut into parts that are played side by side

    def play(self, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
        """Yields what came of each unit, in their order; parts of the next begin while the last ones end."""
        numbers: deque[int] = deque()  # of parts, of each unit that has begun
        with closing(self.do(self._acts(jobs, numbers), on_tick)) as results:
            for first in results:
                yield joined([first, *islice(results, numbers.popleft() - 1)])

    def _acts(self, jobs: Iterable[Job], numbers: deque[int]) -> Iterator[tuple[Any, Act[Played]]]:
        for recipe, unit in jobs:
            parts = unit.parts(PART_EPISODES) if self.in_parts else [unit]
            numbers.append(len(parts))
            yield from ((recipe, partial(play_unit, part)) for part in parts)

    @abstractmethod
    def start(self, parts: int) -> None:
        """Gets ready to play that many parts side by side; returns at once."""

    @abstractmethod
    def do(self, jobs: Iterable[tuple[Any, Act[T]]], on_tick: OnTick) -> Generator[T, None, None]:
        """Yields what each player's act returns, in their order; jobs are drawn before the last has ended."""

    @abstractmethod
    def hand_over(self, recipe: Any, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Any:
        """Returns the recipe of a player that has these weights from now on; nothing may be in play."""

    @abstractmethod
    def close(self) -> None:
        """Ends them; idempotent."""


@dataclass(frozen=True, slots=True)
class Team:
    """A policy, by the recipe of its players, in somebody's hands."""

    hands: Hands
    recipe: Any

    def play(self, unit: Unit, on_tick: OnTick) -> Played:
        """Returns what came of a unit, after its parts were played side by side."""
        [played] = self.hands.play([(self.recipe, unit)], on_tick)
        return played

    def ask(self, question: Callable[[Player], T]) -> T:
        """Returns a player's answer; question and answer can be pickled."""
        [found] = self.hands.do([(self.recipe, partial(_answer, question))], lambda _: None)
        return found

    def with_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Team:
        """Returns the team of a policy with these weights; the earlier one is gone."""
        return replace(self, recipe=self.hands.hand_over(self.recipe, weights, policy_digest))


def _answer(question: Callable[[Player], T], player: Player, on_finish: Callable[[Rollout], Any]) -> T:
    return question(player)


class Here(Hands):
    """This process: one unit after the other.

    Args:
        player_of: recipe -> its player; the one before it is gone if it had other weights.
        free: frees what the last player held.
        in_parts: whether it plays as processes of their own do: in parts, and with one thread.
    """

    def __init__(
        self, player_of: Callable[[Any], Player], free: Callable[[], None], *, in_parts: bool
    ) -> None:
        self._player_of, self._free = player_of, free
        self.in_parts = in_parts

    def start(self, parts: int) -> None:
        """Does nothing: the player is made when it is asked for."""

    def do(self, jobs: Iterable[tuple[Any, Act[T]]], on_tick: OnTick) -> Generator[T, None, None]:
        """Yields what each act returns; a job is drawn when the one before it has ended."""
        for recipe, act in jobs:
            player = self._player_of(recipe)
            with _one_thread() if self.in_parts else nullcontext():
                result = act(player, lambda _: on_tick(1))
            yield result

    def hand_over(self, recipe: Any, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Any:
        """Loads the weights into the engine at once."""
        self._player_of(recipe).engine.load_weights(weights, policy_digest)
        return replace(recipe, policy_digest=policy_digest)

    def close(self) -> None:
        """Frees the player."""
        self._free()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Makes torch compute with one thread: more of them make sampling slower, and round differently."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class OneQueue(Here):
    """This process, with units as one queue: the next begins as places fall free.

    That keeps GPUs full, but what is sampled depends, by rounding, on what is played beside it.
    """

    def play(self, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
        """Yields what came of each job, in their order."""
        for recipe, group in groupby(jobs, key=lambda job: job[0]):
            units = (unit for _, unit in group)
            yield from play_in_one_queue(units, self._player_of(recipe), lambda _: on_tick(1))


class Processes(Hands):
    """Processes of their own, one thread each, over weights in memory that they share.

    `pool` is of workers that do (recipe, act): they make the player and let it act. A recipe has `weights`
    and `policy_digest`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._shared = SharedWeights()

    def start(self, parts: int) -> None:
        """Starts a process for each part, as many as there may be."""
        self._pool.start(parts)

    def do(self, jobs: Iterable[tuple[Any, Act[T]]], on_tick: OnTick) -> Generator[T, None, None]:
        """Yields what each act returns, in their order."""
        return self._pool.do(jobs, on_tick)

    def hand_over(self, recipe: Any, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Any:
        """Writes the weights where each process finds them with the next job."""
        return replace(recipe, weights=self._shared.write(weights), policy_digest=policy_digest)

    def close(self) -> None:
        """Ends the processes."""
        self._pool.close()
        self._shared.close()
