"""Decoupled clip plus the verifier's word on each step: what step credit is worth without a critic."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.credit.group import broadcast, group_advantages, rms, set_metrics
from pipeline.credit.mode import Mode
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import UNIFORM, CreditSet

_LOSS = LossOptions()


@dataclass(frozen=True, slots=True)
class VerifierSteps(Mode):
    """Decoupled clip's group advantage plus alpha times the verifier's sign of each step.

    A_i = (R + P - mean) / (std + 1e-6) + alpha * v_i; v_i = 1 if a step is ok, -1 if it is wrong, 0 where the
    verifier says nothing. A set of equal rewards has no group part; it is trained on if the verifier has
    spoken, thinned as v_dapo's are.

    Attributes:
        alpha: weight of the verdicts, in standard deviations of a group; v_dapo's start value.

    Source: a control of ours. If it equals v_dapo, the critic earned nothing that the verdicts do not give.
    """

    loss: LossOptions = _LOSS
    overlong_factor: float = 0.5
    alpha: float = 0.5
    needs_values: ClassVar[bool] = False
    dynamic_sampling: ClassVar[bool] = True
    max_uniform_share: ClassVar[float] = 0.5  # see `sets.thinned`

    def trains_on(self, credit_set: CreditSet) -> bool:
        """Returns whether the rewards differ, or the verifier has spoken in a set of equal ones."""
        if credit_set.kind in UNIFORM:
            return self.alpha > 0 and any(signs.any() for signs in credit_set.signs)
        return credit_set.kind == "mixed"

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        advantages: list[np.ndarray] = []
        for s in sets:
            # Shaping alone makes equal rewards differ, and their tiny deviation would be scaled up to 1.
            total = s.rewards + s.shaping_or_zero
            group = group_advantages(total) if s.kind == "mixed" else np.zeros(len(total))
            advantages += map(np.add, broadcast(group, s), [self.alpha * signs for signs in s.signs])
        metrics = set_metrics(sets)
        if advantages:
            signs = np.concatenate([of_rollout for s in sets for of_rollout in s.signs])
            metrics["advantage/rms"] = rms(np.concatenate(advantages))
            metrics |= {"verdicts/ok": float(np.mean(signs > 0)), "verdicts/wrong": float(np.mean(signs < 0))}
        return advantages, metrics, state
