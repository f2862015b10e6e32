"""Tasks of families: every problem once over all splits, and throwaway ones to practise on."""

from random import Random
from typing import Any

from env.math.families import FAMILIES, Problem
from env.math.settings import MathTasks
from env.math.sources import FIELDS, problem_of
from env.offer import TaskSet
from env.sources import read_tasks
from pipeline.errors import ConfigError
from pipeline.ids import digest
from pipeline.types import Task

MOST_TRIES = 200
"""Draws of a problem that is not there yet, before a family counts as exhausted."""


def make_tasks(settings: MathTasks, seed: int) -> list[Task] | TaskSet:
    """Returns the tasks of all splits: of the settings' rows, or of families, in the same shares in each.

    Raises ConfigError for rows that cannot be used, and where families have too few different problems.
    """
    if settings.rows:
        return read_tasks(settings, seed, environment="math", fields=FIELDS, problem_of=problem_of)
    rng = Random(f"{seed}:math")
    seen: set[str] = set()
    made = list[Task]()
    for split, size in settings.sizes.items():
        made += [_new_task(settings, rng, seen, split, index) for index in range(size)]
    return made


def practice_tasks(settings: MathTasks, number: int, seed: int, held_out: set[str]) -> list[Task]:
    """Returns throwaway problems, none of them held out; one may come twice. Raises ConfigError for rows."""
    if settings.rows:
        raise ConfigError(
            f"sft.practice_tasks = {number} needs families, and tasks.rows names a data set; set it to 0 to "
            "demonstrate on the training tasks"
        )
    rng = Random(f"{seed}:math practice")
    return [_new_task(settings, rng, set(held_out), "practice", index) for index in range(number)]


def _new_task(settings: MathTasks, rng: Random, seen: set[str], split: str, index: int) -> Task:
    """Returns a task whose cluster, which is its question, has not been seen; adds it to what has."""
    [family] = rng.choices(list(settings.families), list(settings.families.values()))
    [level] = rng.choices(list(settings.level_shares), list(settings.level_shares.values()))
    for _ in range(MOST_TRIES):
        task = task_of(FAMILIES[family](rng, level), family, level, split, index)
        if task.cluster not in seen:
            seen.add(task.cluster)
            return task
    raise ConfigError(
        f"the family {family} has no more problems at level {level} after {len(seen)} tasks. Next: fewer "
        "tasks.num_train, or other tasks.families and tasks.level_shares"
    )


def task_of(problem: Problem, family: str, level: int, split: str, index: int) -> Task:
    """Returns a problem as a task; problems share nothing, so each is a cluster of its own."""
    details: dict[str, Any] = {"family": family, **problem.worked.as_details()}
    if problem.worked.modulus is not None:
        details["modulus"] = problem.worked.modulus
    name = digest("math", family, problem.question)
    said = ({"role": "user", "content": problem.question},)
    return Task(name, "math", split, level, said, "rule", problem.answer, "math", name, index, details)
