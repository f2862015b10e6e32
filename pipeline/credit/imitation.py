"""Imitation of own successes: what learning from them is worth without any advantage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pipeline.credit.group import set_metrics
from pipeline.credit.mode import Mode
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet
from pipeline.types import Rollout

_LIKELIHOOD = LossOptions(clipped=False)


@dataclass(frozen=True, slots=True)
class Imitation(Mode):
    """Likelihood of the iteration's own bare successes: their tokens count alike, nothing else counts.

    The loss is sft's on these rollouts: the mean of -log pi over their tokens. A set without a success
    teaches nothing, one that is all right much, and no more is sampled for want of either.

    Source: rejection sampling fine-tuning, Yuan et al., arXiv:2308.01825, here of the present policy.
    """

    loss: LossOptions = _LIKELIHOOD
    overlong_factor: ClassVar[float] = 0.0
    needs_values: ClassVar[bool] = False
    dynamic_sampling: ClassVar[bool] = False

    def view(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Returns the bare successes; equal rewards count as success from .5 on, so here too."""
        return [r for r in rollouts if not r.guided and r.reward is not None and r.reward >= 0.5]

    def trains_on(self, credit_set: CreditSet) -> bool:
        """Returns True: a set of successes can be imitated."""
        return True

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] ones of every rollout in order of the sets, metrics, and the next state."""
        return [np.ones(steps) for s in sets for steps in s.num_steps], set_metrics(sets), state
