"""Makes tasks.parquet: worlds, companies and their splits, every task proven solvable.

make tasks CONFIG=configs/demo.yaml
"""

from __future__ import annotations

import sys
from collections import Counter

from env.catalog import ENVIRONMENTS
from pipeline.runner import Stage, Start, run_stage
from pipeline.tables import TASKS, tasks_table
from stages.settings import Config


def make(start: Start) -> None:
    """Generates the tasks and commits them as one shard."""
    settings = start.config.tasks
    tasks = ENVIRONMENTS[settings.environment].generate_tasks(
        num_companies=settings.num_companies,
        num_train=settings.num_train,
        num_val=settings.num_val,
        num_test=settings.num_test,
        level_shares=settings.level_shares,
        seed=start.seed,
    )
    start.plan(
        [[task.task_id for task in tasks]], tables=(TASKS,), unit="tasks", estimate={"tasks": len(tasks)}
    )
    for shard in start.to_do():
        start.commit(shard.index, {"tasks": tasks_table(tasks)}, done=len(tasks))
    counts = Counter((task.split, task.level) for task in tasks)
    companies = {(t.split, t.level): set[str]() for t in tasks}
    for task in tasks:
        companies[task.split, task.level].add(task.cluster)
    rows = [
        {
            "split": split,
            "level": level,
            "tasks": counts[split, level],
            "companies": len(companies[split, level]),
        }
        for split, level in sorted(counts)
    ]
    start.finish(report={"splits": rows})


STAGE = Stage(name="tasks", code_version=2, inputs=lambda config: (), sections=("tasks",), make=make)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
