"""A process that makes players and lets them act, one job after the other, with one thread."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch

from pipeline.processes.pool import serve
from pipeline.processes.worker import connect_to_parent
from stages.wiring.player import Seat


def main() -> None:
    """Loads what every player needs while the parent still plans, then serves it."""
    connection = connect_to_parent()
    # transformers would import scikit-learn, scipy and pandas for a kind of generation that nobody asks for.
    sys.modules["sklearn"] = None  # type: ignore[assignment]
    del sys.modules["sklearn"]
    torch.set_num_threads(1)
    seat = Seat()

    def do(job: Any, one_more: Callable[[], None]) -> Any:
        recipe, act = job
        return act(seat.player(recipe), lambda _: one_more())

    serve(connection, do)


if __name__ == "__main__":
    main()
