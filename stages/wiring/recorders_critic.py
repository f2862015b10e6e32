"""A critic of whoever was recorded, judged by outcomes: nobody can play that policy on from a state."""

from collections.abc import Mapping, Sequence
from typing import Any

from critics.audit.outcomes import outcome_skills
from critics.frozen.critic import FrozenCritic
from critics.labels.splits import parts_of
from critics.report.gate import judge_outcomes
from pipeline.runner import Start
from pipeline.statistics import interval_dict
from pipeline.types import Rollout, Task
from stages.settings import Config
from stages.settings.stored import OfCritic
from stages.wiring.refusals import INSTEAD_OF_WEAK, stamp_of


def outcome_stamp(
    start: Start[Config], critic: FrozenCritic, recorded: Sequence[Rollout], tasks: Mapping[str, Task]
) -> dict[str, Any]:
    """Returns `stamp_of` such a critic, with its measures; raises ArtifactError if it is refused.

    `recorded` are all the rollouts that it was made of: parts follow from their clusters. It is judged on
    clusters that it was not fitted on. A few numbers of it, by which it is calibrated, are of these same
    clusters; what it is compared with is fitted on them entirely.
    """
    made = start.inputs["critic"].manifest["settings"]["critic"]
    shares = {name: made[name] for name in ("fit_share", "validate_share")}
    part_of = parts_of(recorded, tasks, seed=start.seed, **shares)
    graded = [r for r in recorded if r.reward is not None and r.steps]
    judged = [r for r in graded if part_of[r.rollout_id] == "calibrate"]
    measures = outcome_skills(
        critic.values(judged),
        [float(r.reward or 0) for r in judged],
        [tasks[r.task_id].cluster for r in judged],
        seed=start.seed,
    )
    conditions = judge_outcomes(measures, converged=critic.contract.converged)
    reasons = [f"{c.name}: {c.reason}" for c in conditions if c.passed is False]
    gate = {"verdict": "FAIL" if reasons else "PASS", "reasons": reasons, "contexts": ["bare"]}
    objective = start.config.stored.objective
    assert isinstance(objective, OfCritic)  # others ask no critic
    stamp = stamp_of(gate, ("bare",), objective.on_weak_critic, instead=INSTEAD_OF_WEAK)
    found = {name: interval_dict(interval) for name, interval in measures.items()}
    return stamp | {"judged_by": "outcomes", "rollouts": len(judged), **found}
