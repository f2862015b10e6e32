"""GPUs that engine and trainers share: one of them works, the others have left."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.clock import Clock

if TYPE_CHECKING:
    from pipeline.engines.protocol import Engine
    from pipeline.training import Trainer

ENGINE_WORKS = frozenset({"submit", "collect", "load_weights"})
TRAINER_WORKS = frozenset({"update", "forward", "weights", "save_checkpoint", "load_checkpoint", "export"})


class Turns:
    """Hands the GPUs to whoever is asked to work, after everybody else has given their memory back.

    Callers of an engine or a trainer need not know: each is wrapped, so that its working methods take the
    turn first. Unless the GPUs are shared, everything stays as it is made.
    """

    def __init__(self, shared: bool, clock: Clock | None = None) -> None:
        self._shared = shared
        self._clock = clock or Clock()  # counts the time that leaving takes
        self._leave: dict[int, Callable[[], None]] = {}
        self._holder: int | None = None

    def trainer(self, make: Callable[[], Trainer]) -> Trainer:
        """Returns the trainer that `make` makes; it holds the GPUs from its start."""
        return self._in_turn(make, TRAINER_WORKS, "offload")

    def engine(self, make: Callable[[], Engine]) -> Engine:
        """Returns the engine that `make` makes; it holds the GPUs from its start."""
        return self._in_turn(make, ENGINE_WORKS, "sleep")

    def _in_turn(self, make: Callable[[], Any], works: frozenset[str], leave: str) -> Any:
        if not self._shared:
            return make()
        number = len(self._leave)
        self._take(number)
        thing = make()
        self._leave[number] = getattr(thing, leave)
        return _InTurn(thing, works, lambda: self._take(number))

    def _take(self, number: int) -> None:
        if self._holder != number:
            with self._clock.at("turns"):
                for other, leave in self._leave.items():
                    if other != number:
                        leave()
            self._holder = number


class _InTurn:
    def __init__(self, thing: Any, works: frozenset[str], take: Callable[[], None]) -> None:
        self._thing, self._works, self._take = thing, works, take

    def __getattr__(self, name: str) -> Any:
        if name in self._works:
            self._take()
        return getattr(self._thing, name)
