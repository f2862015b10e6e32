"""Tasks that are not worth a visit for now: dynamic sampling by what they taught before."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from pipeline.ids import seed_of
from pipeline.types import Rollout, Task

Rule = Literal["none", "all_right", "uniform"]
Visits = tuple[int, list[float]]
"""Iteration of a task's last visit, and its last bare outcomes, the oldest first."""
History = dict[str, Visits]
"""What is known of tasks, by id; JSON values, kept in checkpoints."""
LAST, LEAST = 16, 8
"""A task is judged by so many outcomes: the last ones at most, and at least (start values)."""
MAX_VARIANCE = 0.01
"""It is skipped while p (1 - p) is at most this, p their mean (start value)."""
EXPIRES = 5
"""A skip ends so many iterations after the last visit (start value)."""
MOST_SKIPPED, READMITTED = 0.5, 0.2
"""If more than the first share of all tasks is skipped, the second share of the skipped ones comes back."""


def visited(history: Mapping[str, Visits], rollouts: Iterable[Rollout], iteration: int) -> History:
    """Returns the history after an iteration that made these rollouts."""
    found = dict(history)
    for rollout in rollouts:
        if rollout.reward is not None and not rollout.guided:
            _, outcomes = found.get(rollout.task_id, (iteration, []))
            found[rollout.task_id] = (iteration, [*outcomes, rollout.reward][-LAST:])
    return found


def worth_a_visit(
    tasks: Sequence[Task], history: Mapping[str, Visits], *, rule: Rule, iteration: int, seed: int
) -> list[Task]:
    """Returns the tasks without those that were all right in their last visits, or, by rule, uniform.

    It follows from earlier iterations and the seed alone, so the gradient of a task that is visited stays
    unbiased. The mixture of tasks does not: it moves to those with something to learn. Weights could undo
    that only for tasks that had a chance of a visit.

    Source: the rules of a half and a fifth are the project's own, numbers are start values. Skipping by
    history: GRESO, arXiv:2506.02177.
    """
    settled = [task.task_id for task in tasks if _is_settled(history.get(task.task_id), rule, iteration)]
    if len(settled) > MOST_SKIPPED * len(tasks):
        settled.sort(key=lambda name: seed_of(seed, "readmitted", iteration, name))
        settled = settled[max(1, round(READMITTED * len(settled))) :]
    skipped = set(settled)
    return [task for task in tasks if task.task_id not in skipped]


def _is_settled(visits: Visits | None, rule: Rule, iteration: int) -> bool:
    if visits is None or rule == "none":
        return False
    last, outcomes = visits
    p = sum(outcomes) / len(outcomes)
    is_uniform = len(outcomes) >= LEAST and p * (1 - p) <= MAX_VARIANCE
    return is_uniform and iteration - last <= EXPIRES and (rule == "uniform" or p >= 0.5)
