"""What a stage reads of the stages before it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from env.catalog import offer_of
from pipeline.errors import ConfigError
from pipeline.tables import tasks_from

if TYPE_CHECKING:
    from pipeline.artifacts.runner import Start
    from pipeline.models.policy import Policy
    from pipeline.types import Task


def tasks_of_split(start: Start, split: str) -> list[Task]:
    """Returns the tasks of one split, in file order.

    Raises:
        ConfigError: the split is empty.
        ArtifactError: a task of it has no grader.
    """
    tasks = tasks_from(start.inputs["tasks"].table("tasks"))
    chosen = [task for task in tasks if task.split == split]
    if not chosen:
        splits = ", ".join(sorted({task.split for task in tasks})) or "none"
        raise ConfigError(
            f"split {split!r} has no tasks; the tasks stage made: {splits}. Choose one of these"
        )
    offer_of(start.config.tasks.environment).check_gradable(chosen)
    return chosen


def policy_folder(start: Start, stage: str = "sft", folder: str = "policy") -> Path:
    """Returns where the policy lies that an input stage made."""
    return Path(start.inputs[stage].path(folder))


def policy_of(start: Start, stage: str = "sft", folder: str = "policy") -> Policy:
    """Returns the policy that an input stage made."""
    from pipeline.models.policy import load_policy

    return load_policy(policy_folder(start, stage, folder))
