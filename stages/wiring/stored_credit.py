"""Advantages of stored rollouts by the configured objective, before any are held out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from env.play.stripping import is_success
from pipeline.credit.step_advantages import gae
from pipeline.credit.updates import ValuesOf
from pipeline.training.stored.siblings import first_steps
from pipeline.training.stored.v_dapo import stored_advantages
from pipeline.types import Rollout, Task
from stages.settings.stored import AdvantageWeighted, Clipped, Objective, VDapo


@dataclass(frozen=True, slots=True)
class Credited:
    """Rollouts that an objective learns from, or is judged by."""

    rollouts: list[Rollout]
    advantages: list[np.ndarray]  # [T_i] of their steps, zeros where nobody asks
    left_out: Mapping[str, int] = field(default_factory=dict)  # why others are not here
    compared: Mapping[str, int] = field(default_factory=dict)  # how many rollouts with whom


def credited_rollouts(
    objective: Objective, rollouts: Sequence[Rollout], tasks: Mapping[str, Task], values_of: ValuesOf
) -> Credited:
    """Returns what the objective takes of bare rollouts, with the advantages that it asks for.

    `values_of` is called once at most: a critic answers, and is closed.
    """
    if objective.kind == "direct_advantage":
        return Credited(*first_steps(rollouts, values_of))
    if isinstance(objective, VDapo):
        whole = [r for r in rollouts if not r.start_step_index]
        advantages, compared = stored_advantages(whole, tasks, values_of(whole), objective.lam)
        return Credited(whole, advantages, Counter(continuation=len(rollouts) - len(whole)), compared)
    if isinstance(objective, AdvantageWeighted | Clipped):
        pairs = zip(rollouts, values_of(rollouts), strict=True)
        advantages = [gae(float(r.reward or 0), V, gamma=1.0, lam=objective.lam) for r, V in pairs]
        return Credited(list(rollouts), advantages)
    won = [r for r in rollouts if is_success(r)]
    left_out = Counter(bare_failure=len(rollouts) - len(won))
    return Credited(won, [np.zeros(len(r.steps)) for r in won], left_out)
