"""What the audit of a critic plays: held-out tasks with siblings, and tasks that the critic was fitted on."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from critics.labels.splits import parts_of
from env.catalog import offer_of
from env.play.chains import Chained, plan_groups
from env.play.continuations import Audit, Continuations, one_bare_per_task
from env.play.units import Episodes
from pipeline.ids import seed_of
from pipeline.runner import Start
from pipeline.types import Rollout, RolloutKind, Task
from stages.settings import Config, Critic
from stages.wiring.inputs import rollouts_of, tasks_by_id


def sibling_tasks(start: Start[Config], tasks: Sequence[Task]) -> set[str]:
    """Returns the ids of the audited tasks that a sibling set is played on, chosen by hash."""
    ordered = sorted((seed_of(start.seed, "sibling task", task.task_id), task.task_id) for task in tasks)
    return {task_id for _, task_id in ordered[: start.config.critic_report.sibling_sets]}


def audit_of(start: Start[Config], tasks: Sequence[Task], with_siblings: set[str]) -> Audit:
    """Returns what is played on some audited tasks."""
    settings = start.config.critic_report
    groups = plan_groups(
        tasks,
        stage_key=start.stage_key,
        seed=start.seed,
        iteration=0,
        num_attempts=2 if settings.guided else 1,
        draws=settings.draws,
    )
    feedback = start.config.prompt.max_feedback_tokens
    chained = Chained(groups, start.seed, "critic_report", feedback, stop_at_success=False)
    continuations = Continuations(start.stage_key, start.seed, "critic_report")
    return Audit(chained, continuations, settings.num_continuations, frozenset(with_siblings))


def reference_of(start: Start[Config], rollouts: Sequence[Rollout], tasks: Mapping[str, Task]) -> Episodes:
    """Returns fresh continuations of all states of some rollouts that the critic was fitted on."""
    continuations = Continuations(start.stage_key, start.seed, "fitted")
    return Episodes(continuations.of_all(rollouts, tasks, start.config.critic_report.num_continuations))


def in_fixed_order(rollouts: Sequence[Rollout], task_ids: Sequence[str]) -> list[Rollout]:
    """Returns the rollouts by task, kind and place, whatever ended first."""
    place, kinds = {task_id: i for i, task_id in enumerate(task_ids)}, get_args(RolloutKind)

    def order(r: Rollout) -> tuple[Any, ...]:
        task, kind = place[r.task_id], kinds.index(r.kind)
        return task, kind, r.attempt, r.start_step_index, r.parent_rollout_ids, r.draw

    return sorted(rollouts, key=order)


def solver_values(
    config: Config, rollouts: Sequence[Rollout], tasks: Mapping[str, Task]
) -> dict[str, Sequence[float]]:
    """Returns rollout_id -> [T] the solver's exact V* before each step, NaN where it knows none."""
    offer = offer_of(config.tasks.environment)
    if offer.solver_value is None:
        return {r.rollout_id: [math.nan] * len(r.steps) for r in rollouts}
    style = config.style()
    found: dict[str, Sequence[float]] = {}
    for r in rollouts:
        actions = [style.parse(text) for text in r.message_texts]
        # V* is known before each message; the first of its steps takes it.
        known = dict(enumerate(offer.solver_value(tasks[r.task_id], r.seed, actions)))
        found[r.rollout_id] = [known.pop(step.message_index, math.nan) for step in r.steps]
    return found


def fitted_rollouts(start: Start, number: int) -> list[Rollout]:
    """Returns a bare rollout of each of `number` tasks that moved the critic's weights, chosen by hash."""
    if not number:
        return []
    tasks, rollouts = tasks_by_id(start), rollouts_of(start.inputs["rollouts"])
    shares = Critic(**start.inputs["critic"].manifest["settings"]["critic"])
    part_of = parts_of(
        rollouts, tasks, fit_share=shares.fit_share, validate_share=shares.validate_share, seed=start.seed
    )
    fitted = [r for r in rollouts if part_of.get(r.rollout_id) == "fit"]
    return one_bare_per_task(fitted, number, purpose="fitted", seed=start.seed)
