"""Who gets how much advantage: numpy on one rollout or one baseline set, no padding, no mask, no torch.

A credit mode is a frozen dataclass whose defaults are the method. `CREDITS[name](**settings)` makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from pipeline.credit.group import DecoupledClip, Grpo
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet, baseline_sets, credit_set
from pipeline.credit.v_dapo import VDapo

__all__ = [
    "CREDITS",
    "Credit",
    "CreditSet",
    "DecoupledClip",
    "Grpo",
    "LossOptions",
    "VDapo",
    "baseline_sets",
    "credit_set",
]


class Credit(Protocol):
    """One way to assign credit; everything that tells algorithms apart is here."""

    @property
    def loss(self) -> LossOptions:
        """What it asks of the loss."""
        ...

    @property
    def needs_critic(self) -> bool:
        """Whether sets must carry critic values."""
        ...

    @property
    def dynamic_sampling(self) -> bool:
        """Whether to sample on until enough sets are kept."""
        ...

    def initial_state(self) -> dict[str, float]:
        """Returns what runs from update to update, before the first; JSON numbers, kept in checkpoints."""
        ...

    def keep(self, sets: Sequence[CreditSet]) -> list[bool]:
        """Returns for each candidate set of an update whether it is trained on."""
        ...

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] step advantages of every rollout in order of the sets, metrics, and the next state."""
        ...


CREDITS: dict[str, type[Grpo] | type[DecoupledClip] | type[VDapo]] = {
    "grpo": Grpo,
    "decoupled_clip": DecoupledClip,
    "v_dapo": VDapo,
}
