"""A policy and whoever plays it: the players of this process, or those of processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from env.play.player import Player
from env.play.units import Played, Unit, joined

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

OnTick = Callable[[int], None]
"""Called several times a second with the number of rollouts that ended since; what it raises ends it."""

Job = tuple[Any, Unit]
"""A recipe, and what the player that is made by it plays."""


class Hands(Protocol):
    """Who plays. A recipe, opaque here, says all that makes a player, wherever it is made.

    Attributes:
        part_episodes: first episodes of a unit that is handed out; None hands out units as they are.
    """

    part_episodes: int | None

    def start(self, parts: int) -> None:
        """Gets ready to play that many parts side by side; returns at once."""
        ...

    def play(self, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
        """Yields what came of each job, in their order; jobs are drawn before the last one has ended."""
        ...

    def ask(self, recipe: Any, question: Callable[[Player], T]) -> T:
        """Returns a player's answer; question and answer can be pickled."""
        ...

    def hand_over(self, recipe: Any, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Any:
        """Returns the recipe of a player that has these weights from now on; nothing may be in play."""
        ...

    def sleep(self, recipe: Any) -> None:
        """Frees what memory it can until the next play."""
        ...

    def close(self) -> None:
        """Ends them; idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class Team:
    """A policy, by the recipe of its players, in somebody's hands.

    Attributes:
        hands: who plays.
        recipe: what makes a player.
    """

    hands: Hands
    recipe: Any

    def play(self, unit: Unit, on_tick: OnTick) -> Played:
        """Returns what came of a unit, after its parts were played side by side."""
        [played] = play_each(self.hands, [(self.recipe, unit)], on_tick)
        return played

    def ask(self, question: Callable[[Player], T]) -> T:
        """Returns a player's answer."""
        return self.hands.ask(self.recipe, question)

    def with_weights(self, weights: Mapping[str, torch.Tensor], policy_digest: str) -> Team:
        """Returns the team of a policy with these weights; the earlier one is gone."""
        return replace(self, recipe=self.hands.hand_over(self.recipe, weights, policy_digest))

    def sleep(self) -> None:
        """Frees what memory it can until the next play."""
        self.hands.sleep(self.recipe)

    def __enter__(self) -> Team:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.hands.close()


def play_each(hands: Hands, jobs: Iterable[Job], on_tick: OnTick) -> Generator[Played, None, None]:
    """Yields what came of each unit, in their order; parts of the next begin while the last ones end."""
    numbers: list[int] = []  # parts of each unit that has begun

    def parts() -> Generator[Job, None, None]:
        for recipe, unit in jobs:
            parts = [unit] if hands.part_episodes is None else unit.parts(hands.part_episodes)
            numbers.append(len(parts))
            yield from ((recipe, part) for part in parts)

    done: list[Played] = []
    results = hands.play(parts(), on_tick)
    try:
        for played in results:
            done.append(played)
            if len(done) == numbers[0]:
                yield joined(done)
                done.clear()
                del numbers[0]
    finally:
        results.close()
