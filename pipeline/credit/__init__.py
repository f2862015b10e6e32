"""Who gets how much advantage: numpy on one rollout or one baseline set, no padding, no mask, no torch.

A credit mode is a frozen dataclass whose defaults are the method. `CREDITS[name](**settings)` makes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, Protocol

import numpy as np

from pipeline.credit.group import DecoupledClip, Grpo
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet, SetKind, baseline_sets, credit_set
from pipeline.credit.v_dapo import VDapo

__all__ = [
    "CREDITS",
    "Credit",
    "CreditSet",
    "DecoupledClip",
    "Grpo",
    "LossOptions",
    "SetKind",
    "VDapo",
    "baseline_sets",
    "credit_set",
    "make_credit",
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
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        ...


CREDITS: dict[str, type[Grpo] | type[DecoupledClip] | type[VDapo]] = {
    "grpo": Grpo,
    "decoupled_clip": DecoupledClip,
    "v_dapo": VDapo,
}


def make_credit(name: str, *, kl: float | None = None, **settings: Any) -> Credit:
    """Returns the credit mode of that name; its defaults are the method, the arguments say what differs.

    Args:
        name: a key of `CREDITS`.
        kl: coefficient of the KL to the reference policy; None keeps the mode's own.
        settings: attributes of the mode. One that only other modes have (alpha for grpo) is not used, so
            one configuration section serves all.

    Raises:
        ValueError: no mode has that name, or no mode has such a setting.

    Example:
        >>> make_credit("decoupled_clip", kl=0.01, alpha=0.5).loss.kl
        0.01
    """
    if name not in CREDITS:
        raise ValueError(f"credit = {name!r}; modes are {', '.join(CREDITS)}")
    known = {field.name for mode in CREDITS.values() for field in fields(mode)}
    if unknown := settings.keys() - known:
        raise ValueError(f"no credit mode has {sorted(unknown)}; settings are {', '.join(sorted(known))}")
    mode = CREDITS[name]
    own = {field.name for field in fields(mode)}
    credit = mode(**{key: value for key, value in settings.items() if key in own})
    return credit if kl is None else replace(credit, loss=replace(credit.loss, kl=kl))
