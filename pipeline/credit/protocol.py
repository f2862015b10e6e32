"""What a credit mode is: everything that tells the algorithms apart is behind this protocol."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet
from pipeline.types import Rollout


class Credit(Protocol):
    """One way to assign credit: a frozen dataclass with the method as its defaults."""

    @property
    def loss(self) -> LossOptions:
        """What it asks of the loss."""

    @property
    def overlong_factor(self) -> float:
        """Penalty of long rollouts that its sets must carry, see `sets.overlong_penalty`; 0 is none."""

    @property
    def needs_values(self) -> bool:
        """Whether sets must carry values of their states."""

    @property
    def dynamic_sampling(self) -> bool:
        """Whether to sample on until enough tasks have a set with rewards that differ."""

    @property
    def max_uniform_share(self) -> float:
        """Share of an update's sets that sets of equal rewards may make up, see `sets.thinned`."""

    def view(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Returns a baseline set as the mode takes it: which of its rollouts, in which steps; maybe none."""

    def trains_on(self, credit_set: CreditSet) -> bool:
        """Returns whether a set can teach anything; thinning decides afterwards among those that can."""

    def initial_state(self) -> dict[str, float]:
        """Returns what runs from update to update, before the first; JSON numbers, kept in checkpoints."""

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
