"""Makes tasks.parquet: the tasks of all splits, from the environment's generator or from rows.

Every row is accounted for: rows that make no task are skipped by kind; `left_out.jsonl` has their reasons.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from env.catalog import offer_of
from env.offer import TaskSet
from pipeline.columns import TASKS
from pipeline.runner import Plan, Stage, Start, run_stage
from pipeline.tables import tasks_table
from pipeline.types import Task
from stages.settings import Config
from stages.wiring.left_out import tell_left_out


def plan(start: Start[Config]) -> Plan[TaskSet]:
    """Generates the tasks, or reads what they are made from: one shard."""
    settings = start.config.tasks
    offer = offer_of(settings.environment)
    made = offer.task_set(settings, start.seed)
    offer.check_openings(settings, made.tasks)
    ids = [task.task_id for task in made.tasks]
    unused = [row.place for row in made.left_out]
    estimate = {"tasks": len(ids), **({"rows_left_out": len(unused)} if unused else {})}
    return Plan(items=[[*ids, *unused]], tables=(TASKS,), unit="tasks", estimate=estimate, work=made)


def make(start: Start[Config], made: TaskSet) -> None:
    """Commits the tasks and prints how many there are of each split, and why rows make none."""
    tasks, kinds = made.tasks, Counter(row.kind for row in made.left_out)
    for shard in start.shards.to_do():
        start.shards.commit(shard.index, {"tasks": tasks_table(tasks)}, done=len(tasks), skipped=kinds)
    rows = sizes_by_split(tasks)
    start.finish(report={"splits": rows, "left_out": tell_left_out(start, made.left_out)})
    with suppress(OSError):  # a closed pipe: the stage is complete
        print(as_text(rows), flush=True)


def sizes_by_split(tasks: Sequence[Task]) -> list[dict[str, object]]:
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
    name="tasks",
    code_version=3,
    inputs=lambda config: (),
    sections=("tasks",),
    files=lambda config: config.tasks.read_files,
    plan=plan,
    make=make,
)

if __name__ == "__main__":
    sys.exit(run_stage(STAGE, Config))
