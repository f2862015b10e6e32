"""What credit modes have in common unless they say otherwise."""

from collections.abc import Sequence
from typing import ClassVar

from pipeline.types import Rollout


class Mode:
    """Takes baseline sets as they are, thins none, and has nothing that runs from update to update."""

    __slots__ = ()
    max_uniform_share: ClassVar[float] = 1.0

    def view(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Returns a baseline set as it is."""
        return list(rollouts)

    def initial_state(self) -> dict[str, float]:
        """Returns an empty state."""
        return {}
