"""Tasks from rows that people have: columns by a mapping, bad rows left out and counted, splits by cluster.

A family that takes rows has settings that are a `TableTasks`, names its fields, and says how a row becomes a
problem; its `make_tasks` is then

    return read_tasks(settings, seed, environment="short", fields=FIELDS, problem_of=problem_of)

`problem_of` gets field -> value, None where an optional one is missing, and raises
`BadRowError(kind, reason)` for a row that no grader can use. `read_tasks` does the rest: it looks for columns
as verl, TRL and the hub name them, finds what is there twice, and makes the splits that no source gives.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import field_validator

from env.offer import TaskSet, TaskSettings
from env.row_splits import SPLITS, Candidate, Problem, apart, in_splits, words_of
from pipeline.errors import ConfigError
from pipeline.ids import digest
from pipeline.rows import (
    BadRowError,
    Field,
    LeftOut,
    Source,
    columns_in,
    is_missing,
    read_rows,
    reasons,
    shown,
    values_of,
)
from pipeline.settings import setting
from pipeline.types import Message, Task

BY_ROW = "by_row"
PLACE: dict[str, Field] = {
    "split": Field(("extra_info.split",), required=False),
    "cluster": Field(("cluster", "extra_info.cluster"), required=False),
    "level": Field(("level",), required=False),
}
"""Fields of every row, whatever the family."""
MOST_BAD = 0.5
"""Share of unusable rows of a source from which on it is the mapping that is wrong (start value)."""


class TableTasks(TaskSettings):
    """Tasks of one's own rows, or of a data set's."""

    rows: dict[str, Source] = setting(
        {},
        "split (train, val, test) -> file, folder or data set; or one source alone, whose rows name their "
        "split or have none. Splits that are not given are cut from train by cluster; at most num_train and "
        "num_held_out tasks of each",
    )
    columns: dict[str, str] = setting(
        {},
        "field -> column, a dot between a column and one within it; null: as verl, TRL and the hub name it",
    )

    @property
    def read_files(self) -> list[Path]:
        """Returns the files among the sources."""
        return [file for source in self.rows.values() for file in source.files]

    @field_validator("rows", mode="before")
    @classmethod
    def _one_source(cls, given: Any) -> Any:
        alone = isinstance(given, str) or (isinstance(given, dict) and "source" in given)
        return {BY_ROW: given} if alone else given

    @field_validator("rows")
    @classmethod
    def _known_splits(cls, given: dict[str, Source]) -> dict[str, Source]:
        if unknown := sorted(set(given) - {"train", "val", "test", BY_ROW}):
            raise ValueError(f"names {', '.join(unknown)}; allowed: train, val, test, or one source alone")
        if len({source.label for source in given.values()}) < len(given):
            raise ValueError("gives two splits the same rows; allowed: a source of its own for each")
        return given


def read_tasks(
    settings: TableTasks,
    seed: int,
    *,
    environment: str,
    fields: Mapping[str, Field],
    problem_of: Callable[[Mapping[str, Any]], Problem],
) -> TaskSet:
    """Returns the tasks of the settings' rows, and the rows that are none of them, with reasons.

    Raises ConfigError for sources or columns that cannot be used, and for too few rows to make the splits of.
    """
    if not settings.rows:
        raise ConfigError(
            f"tasks.rows is empty, and the environment {environment} makes no tasks of its own. Next: "
            "tasks.rows = a file of JSON lines, a Parquet file or the name of a data set (docs/own-tasks.md)"
        )
    found, left_out = list[Candidate](), list[LeftOut]()
    for split, source in settings.rows.items():
        some, bad = _problems(source, split, {**fields, **PLACE}, settings.columns, problem_of)
        found += some
        left_out += bad
    kept, doubled = apart(found)
    chosen, not_needed = in_splits(kept, settings.sizes, set(settings.rows), seed)
    tasks = [
        _task(item, environment, split, index)
        for split, items in chosen.items()
        for index, item in enumerate(items)
    ]
    return TaskSet(tasks, [*left_out, *doubled, *not_needed])


def messages_of(values: Mapping[str, Any], name: str) -> tuple[Message, ...]:
    """Returns a field as messages: a text is the user's; a list of them, as verl and TRL have it, stays.

    Raises BadRowError unless they are texts of system, user and assistant, the user's last.
    """
    value = values[name]
    if isinstance(value, str) and value.strip():
        return ({"role": "user", "content": value},)
    said = value if isinstance(value, list) else []
    for message in said:
        if (
            not isinstance(message, dict)
            or message.get("role") not in ("system", "user", "assistant")
            or not isinstance(message.get("content"), str)
        ):
            said = []
            break
    if not said or said[-1]["role"] != "user":
        raise BadRowError(
            f"bad_{name}",
            f"{name} is {shown(value)}; allowed: a text, or messages with role and content, the user's last",
        )
    return tuple({"role": message["role"], "content": message["content"]} for message in said)


def _problems(
    source: Source,
    split: str,
    fields: Mapping[str, Field],
    given: Mapping[str, str],
    problem_of: Callable[[Mapping[str, Any]], Problem],
) -> tuple[list[Candidate], list[LeftOut]]:
    """Returns what the rows of one source say, and the rows that cannot be used."""
    table = read_rows(source, fields, given)
    columns, found, left_out = columns_in(table, fields, given), list[Candidate](), table.left_out
    for row in table.rows:
        try:
            values = values_of(row, columns, fields)
            problem = problem_of(values)
            words = words_of(problem.prompt)
            if not words:
                raise BadRowError("bad_prompt", "its prompt says nothing")
            own = _split_of(values["split"]) if split == BY_ROW else split
            shared = values["cluster"]
            cluster = digest("said", words) if is_missing(shared) else str(shared)
            found.append(Candidate(row.source, row.number, own, cluster, _level_of(values["level"]), problem))
        except BadRowError as error:
            left_out.append(row.left_out(error))
    total = len(found) + len(left_out)
    if len(left_out) > MOST_BAD * total:
        raise ConfigError(
            f"{source.label}: {len(left_out)} of {total} rows cannot be used ({reasons(left_out)}). Next: "
            f"mend them, or name other columns in tasks.columns; used were {columns}"
        )
    return found, left_out


def _split_of(value: Any) -> str:
    if is_missing(value):
        return ""
    name = value.strip().lower() if isinstance(value, str) else ""
    if name not in SPLITS:
        raise BadRowError("bad_split", f"split is {shown(value)}; allowed: {', '.join(SPLITS)}")
    return SPLITS[name]


def _level_of(value: Any) -> int:
    """Returns the number at the end of a level, such as `Level 3`; 1 where there is none.

    Example:
        >>> _level_of("Level 3"), _level_of(4.0), _level_of("hard"), _level_of(None)
        (3, 4, 1, 1)
    """
    last = str(value).removesuffix(".0").split()[-1:]
    return max(1, int(last[0])) if last and last[0].isdecimal() and len(last[0]) < 4 else 1


def _task(item: Candidate, environment: str, split: str, index: int) -> Task:
    problem = item.problem
    return Task(
        task_id=digest("task", environment, problem.prompt, problem.ground_truth),
        data_source=environment,
        split=split,
        level=item.level,
        prompt=problem.prompt,
        style="rule",
        ground_truth=problem.ground_truth,
        ability=problem.ability,
        cluster=item.cluster,
        index=index,
        details={
            **problem.details,
            **({"asked": problem.asked} if problem.asked else {}),
            "source": item.source,
            "row": item.number,
        },
    )
