"""What a stage reads of the stages before it."""

from env.catalog import offer_of
from pipeline.artifacts.artifact import Artifact
from pipeline.artifacts.commit import Shards
from pipeline.errors import ConfigError
from pipeline.runner import Start
from pipeline.tables import rollouts_from, tasks_from
from pipeline.types import Rollout, Task
from stages.settings import Config

TRAINED = {"actor": "actor", "stored": "policy", "dpo": "policy"}
"""Stage that trains a policy -> its folder there."""


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


def tasks_by_id(start: Start) -> dict[str, Task]:
    """Returns the tasks of all splits by id."""
    return {task.task_id: task for task in tasks_from(start.inputs["tasks"].table("tasks"))}


def rollouts_of(source: Artifact | Shards) -> list[Rollout]:
    """Returns the rollouts of a finished stage, or of what one has committed so far."""
    return rollouts_from(source.table("rollouts"), source.table("steps"))


def policies_of(config: Config) -> dict[str, tuple[str, str]]:
    """Returns "start" and "actor" -> stage that made it, and its folder there; ConfigError for none."""
    of = config.evaluation.of
    if of == "stored" and config.stored.objective.kind == "none":
        raise ConfigError(
            "evaluation.of = stored, but stored.objective.kind = none trains no policy. Next: an objective, "
            "such as stored.objective.kind=likelihood, or evaluation.of=actor"
        )
    return {"start": ("sft", "policy"), "actor": (of, TRAINED[of])}
