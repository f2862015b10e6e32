"""Makes tasks.parquet: the tasks of all splits, from the environment's generator or files."""

import sys
from collections.abc import Mapping, Sequence

from env.catalog import offer_of
from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.columns import TASKS
from pipeline.tables import tasks_table
from pipeline.types import Task
from stages.settings import Config


def plan(start: Start[Config]) -> Plan[list[Task]]:
    """Generates the tasks, or reads what they are made from: one shard."""
    settings = start.config.tasks
    tasks = offer_of(settings.environment).make_tasks(settings, start.seed)
    items = [[task.task_id for task in tasks]]
    return Plan(items=items, tables=(TASKS,), unit="tasks", estimate={"tasks": len(tasks)}, work=tasks)


def make(start: Start[Config], tasks: list[Task]) -> None:
    """Commits the tasks and prints how many there are of each split."""
    for shard in start.shards.to_do():
        start.shards.commit(shard.index, {"tasks": tasks_table(tasks)}, done=len(tasks))
    rows = table_of(tasks)
    start.finish(report={"splits": rows})
    print(as_text(rows))


def table_of(tasks: Sequence[Task]) -> list[dict[str, object]]:
    """Returns how many tasks, and clusters of them, each split and level has."""
    clusters: dict[tuple[str, int], list[str]] = {}
    for task in tasks:
        clusters.setdefault((task.split, task.level), []).append(task.cluster)
    return [
        {"split": split, "level": level, "tasks": len(own), "clusters": len(set(own))}
        for (split, level), own in sorted(clusters.items())
    ]


def as_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Returns rows of equal keys as a table with aligned columns."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [word.rjust(w) if i else word.ljust(w) for i, (word, w) in enumerate(zip(line, widths, strict=True))]
        for line in lines
    ]
    return "\n".join(map("  ".join, padded))


STAGE = Stage(
    name="tasks", code_version=2, inputs=lambda config: (), sections=("tasks",), plan=plan, make=make
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
