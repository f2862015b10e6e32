"""What a stage reads of the stages before it."""

from pathlib import Path

from env.catalog import offer_of
from pipeline.artifacts.runner import Start
from pipeline.errors import ConfigError
from pipeline.tables import tasks_from
from pipeline.types import Task


def tasks_of_split(start: Start, split: str) -> list[Task]:
    """Returns the tasks of one split, in file order.

    Raises ConfigError if the split is empty, ArtifactError if a task of it has no grader.
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
