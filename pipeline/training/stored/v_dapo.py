"""V-DAPO on stored rollouts: its credit, in groups of similar tasks or alone, and whose ratios it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.credit.sets import credit_set
from pipeline.credit.v_dapo import VDapo
from pipeline.similarity import asked_by, similar_groups
from pipeline.training.policy_update import logprobs_of
from pipeline.training.protocol import Trainer
from pipeline.types import Rollout, Task


def stored_advantages(
    rollouts: Sequence[Rollout], tasks: Mapping[str, Task], values: Sequence[np.ndarray], lam: float
) -> tuple[list[np.ndarray], dict[str, int]]:
    """Returns V-DAPO's [T_i] advantages of N whole rollouts, and how many are in groups and alone.

    A = (R - b)/sigma_grp + alpha g step/sigma_step. Four or more rollouts of tasks (by id) with similar
    prompts are a set, where b is the others' mean reward, drawn to the critic's V(s_0) of the rollout's own
    task; of any other rollout b = V(s_0). Both sigmas are of all N rollouts: there will never be others.
    `values` are the critic's [T_i], of the policy that was recorded.

    Source: DESIGN.md, "Credit".
    """
    credit = VDapo(lam=lam)
    sets = similar_groups([asked_by(tasks[r.task_id]) for r in rollouts])
    by_id = {r.rollout_id: V for r, V in zip(rollouts, values, strict=True)}
    seen = [credit_set([rollouts[i] for i in places], values=by_id) for places in sets]
    _, _, scales = credit.credit(seen, credit.initial_state())
    ordered, _, _ = credit.credit(seen, scales)
    advantages = dict(zip((i for places in sets for i in places), ordered, strict=True))
    groups = [len(places) for places in sets if len(places) > 1]
    sizes = {"in_groups": sum(groups), "alone": len(rollouts) - sum(groups), "groups": len(groups)}
    return [advantages[i] for i in range(len(rollouts))], sizes


def with_own_logprobs(
    trainer: Trainer, rollouts: Sequence[Rollout], *, everyone: bool = False
) -> list[Rollout]:
    """Returns the rollouts with the trainer's log-probabilities where nobody knows those of their policy.

    Of `everyone` where engine or trainer rounds to half precision: their gap is no ratio of policies.

    Ratios are then to the policy that training starts from. That is the recorded one as far as it has been
    cloned; of any other, ratios of 1 at the start leave out how likely the recorded policy was to act so.
    """
    found = logprobs_of(trainer, [r for r in rollouts if everyone or not r.has_logprobs])
    return [
        replace(r, logprobs=tuple(map(float, found[r.rollout_id]))) if r.rollout_id in found else r
        for r in rollouts
    ]
