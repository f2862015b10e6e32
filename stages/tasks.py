"""Makes tasks.parquet: worlds, clusters and their splits, every task proven solvable.

make tasks CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from env.catalog import ENVIRONMENTS
from pipeline.artifacts.runner import Plan, Stage, Start, run_stage
from pipeline.tables import TASKS, tasks_table
from pipeline.types import Task
from stages.settings import Config


def plan(start: Start[Config]) -> Plan[list[Task]]:
    """Generates the tasks, or reads what they are made from: one shard."""
    settings = start.config.tasks
    environment = ENVIRONMENTS[settings.environment]
    if settings.files is not None:
        folder = Path(settings.files)
        tasks = environment.read_tasks(folder / "companies.jsonl", folder / "tasks.jsonl")
    else:
        tasks = environment.generate_tasks(
            num_companies=settings.num_companies,
            num_train=settings.num_train,
            num_val=settings.num_val,
            num_test=settings.num_test,
            level_shares=settings.level_shares,
            seed=start.seed,
        )
    return Plan(
        items=[[task.task_id for task in tasks]],
        tables=(TASKS,),
        unit="tasks",
        estimate={"tasks": len(tasks)},
        work=tasks,
    )


def make(start: Start[Config], tasks: list[Task]) -> None:
    """Commits the tasks and prints how many there are of each split."""
    for shard in start.shards.to_do():
        start.shards.commit(shard.index, {"tasks": tasks_table(tasks)}, done=len(tasks))
    rows = ENVIRONMENTS[start.config.tasks.environment].table_of(tasks)
    start.finish(report={"splits": rows})
    print(as_text(rows))


def as_text(rows: Sequence[Mapping[str, object]]) -> str:
    """Returns rows of equal keys as a table with aligned columns."""
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            word.rjust(w) if i else word.ljust(w)
            for i, (word, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


STAGE = Stage(
    name="tasks", code_version=2, inputs=lambda config: (), sections=("tasks",), plan=plan, make=make
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
