"""Joint training of actor and critic: GAE over the values of a head that learns beside the policy."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np

from pipeline.credit.group import rms, set_metrics
from pipeline.credit.mode import Mode
from pipeline.credit.options import LossOptions
from pipeline.credit.sets import CreditSet
from pipeline.credit.step_advantages import gae
from pipeline.types import Rollout, Step

_LOSS = LossOptions()


def in_tokens(rollout: Rollout) -> Rollout:
    """Returns the rollout cut into steps of one sampled token each; the environment's tokens are in none."""
    places = enumerate(np.flatnonzero(rollout.loss_mask).tolist(), rollout.start_step_index)
    return replace(rollout, steps=tuple(Step(i, 0, token, token + 1, "") for i, token in places))


@dataclass(frozen=True, slots=True)
class ActorCritic(Mode):
    """Whitened GAE: A_i(lam) of R + P and the head's values, less their mean over the update, by their std.

    Sets need no rewards that differ: a single rollout has an advantage, so nothing is left out and no more is
    sampled. The loss is decoupled clip's, as VAPO's: clip-higher, mean over tokens.

    Attributes:
        lam: trace decay per unit. The head itself learns from outcomes, which is lam = 1 (decoupled GAE).
        unit: what GAE counts in: steps, by default messages, or sampled tokens. The environment's tokens lie
            between units and neither carry, end nor decay anything.

    Source: Schulman et al., arXiv:1707.06347 and 1506.02438; decoupled GAE, clip-higher and token mean: VAPO,
    arXiv:2504.05118. Its length-adaptive lam and its likelihood term are left out.
    """

    loss: LossOptions = _LOSS
    overlong_factor: float = 0.0
    lam: float = 0.95
    unit: Literal["step", "token"] = "step"
    needs_values: ClassVar[bool] = True
    dynamic_sampling: ClassVar[bool] = False

    def view(self, rollouts: Sequence[Rollout]) -> list[Rollout]:
        """Returns a baseline set, cut into tokens if these are the unit."""
        return [in_tokens(r) for r in rollouts] if self.unit == "token" else list(rollouts)

    def trains_on(self, credit_set: CreditSet) -> bool:
        """Returns True: advantages are to values, not to other rollouts."""
        return True

    def credit(
        self, sets: Sequence[CreditSet], state: dict[str, float]
    ) -> tuple[list[np.ndarray], dict[str, float], dict[str, float]]:
        """Returns [T_i] advantages of every rollout in order of the sets, metrics, and the next state."""
        whole = partial(gae, gamma=1.0, lam=self.lam)
        found = [own for s in sets for own in map(whole, s.rewards + s.shaping_or_zero, s.known_values)]
        if not found:
            return [], set_metrics(sets), state
        every = np.concatenate(found)
        metrics = set_metrics(sets) | {"advantage/mean": float(every.mean()), "advantage/rms": rms(every)}
        return [(own - every.mean()) / (every.std() + 1e-6) for own in found], metrics, state
