"""What an audit has sampled, collected into arrays."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields

import numpy as np

from critics.audit.data import AuditData, AuditRollout, unseen
from pipeline.errors import ArtifactError, ExitCode
from pipeline.types import Rollout, StateRef, Task


def audited_states(
    rollouts: Sequence[Rollout],
    rewards: Mapping[StateRef, Sequence[float]],
    values: Mapping[str, np.ndarray],
    tasks: Mapping[str, Task],
    *,
    solver_values: Mapping[str, Sequence[float]],
) -> AuditData:
    """Returns the audited states of whole rollouts, maybe none: those with 2 graded continuations or more.

    `rewards` are of these; `values` and `solver_values` map rollout_id to [T], exact V* being NaN where
    unknown.
    """
    rows, shown = [], []
    for r in rollouts:
        task = tasks[r.task_id]
        for p, v_star, step in zip(values[r.rollout_id], solver_values[r.rollout_id], r.steps, strict=True):
            own = rewards.get(StateRef(r.rollout_id, step.step_index, r.context), ())
            if len(own) < 2:
                continue
            state = (r.rollout_id, step.step_index, r.context)
            of_task = (task.task_id, task.cluster, task.level, task.split)
            used, squares = step.token_start / r.max_response_tokens, sum(x * x for x in own)
            rows.append((*state, *of_task, used, float(p), sum(own), len(own), v_star, squares))
        shown.append(
            AuditRollout(
                rollout_id=r.rollout_id,
                task_id=r.task_id,
                context=r.context,
                reward=r.reward,
                level=task.level,
                split=task.split,
                values=tuple(float(v) for v in values[r.rollout_id]),
                texts=tuple(step.text for step in r.steps),
                statuses=tuple(step.verifier_status for step in r.steps),
                messages=tuple(step.verifier_message for step in r.steps),
                cluster=task.cluster,
            )
        )
    names = [f.name for f in fields(AuditData) if f.name != "rollouts"]
    columns = {name: np.array([row[place] for row in rows]) for place, name in enumerate(names)}
    if (columns["squares"] == columns["k"]).all():
        del columns["squares"]
    return AuditData(**columns, rollouts=tuple(shown))


def check_judged(audit: AuditData, trained_clusters: Collection[str], rollouts: Sequence[Rollout]) -> None:
    """Raises ArtifactError, with what was played and what could be used of it, if no state can be judged.

    States of `trained_clusters` are not judged; `rollouts` are everything that was played.
    """
    if len(unseen(audit.where(audit.context == "bare"), trained_clusters)):
        return
    whole = [r for r in rollouts if r.kind == "whole" and not r.guided]
    graded = [r for r in whole if r.reward is not None]
    ids = {r.rollout_id for r in whole}
    fresh = [r for r in rollouts if r.kind != "whole" and r.parent_rollout_ids[0] in ids]
    with_step, told = sum(bool(r.steps) for r in whole), sum(r.reward is not None for r in fresh)
    idle = bool(graded) and not any(r.steps for r in graded)
    raise ArtifactError(
        "the audit has no bare state of an unseen cluster with two graded continuations, so nothing to judge "
        f"the critic by: of {len(whole)} bare rollouts {len(graded)} could be graded and {with_step} have a "
        f"step; of {len(fresh)} continuations {told} could be graded. "
        + (
            "Next: a starting policy that acts (make sft), or more sampling.max_response_tokens"
            if idle
            else "Next: remove what the environment fails at (env_status in critic_report/shards/rollouts), "
            "then make critic_report SET=--repair, which tries those tasks again"
        ),
        code=ExitCode.QUALITY if idle else ExitCode.FAILED_ITEMS,
    )
