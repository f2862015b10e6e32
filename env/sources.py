"""Tasks from rows that people have: columns by a mapping, bad rows left out and counted, splits by cluster.

A family that takes rows has settings that are a `TableTasks`, names its fields, and says how a row becomes a
problem; its `make_tasks` is then

    return read_tasks(settings, seed, environment="short", fields=FIELDS, problem_of=problem_of)

`problem_of` gets field -> value, None where an optional one is missing, and raises
`BadRowError(kind, reason)` for a row that no grader can use. `read_tasks` does the rest: it looks for columns
as verl, TRL and the hub name them, finds what is there twice, and makes the splits that no source gives.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import field_validator

from env.offer import TaskSet, TaskSettings
from pipeline.errors import ConfigError
from pipeline.ids import digest, seed_of
from pipeline.rows import (
    BadRowError,
    Field,
    LeftOut,
    Row,
    Source,
    columns_in,
    normal_text,
    read_rows,
    shown,
    values_of,
)
from pipeline.settings import setting
from pipeline.types import Message, Task

BY_ROW = "by_row"
SPLITS = {"test": "test", "val": "val", "validation": "val", "dev": "val", "train": "train"}
"""What a row may call its split -> ours, held-out ones first."""
PLACE: dict[str, Field] = {
    "split": Field(("extra_info.split",), required=False),
    "cluster": Field(("cluster", "extra_info.cluster"), required=False),
    "level": Field(("level",), required=False),
}
"""Fields of every row, whatever the family."""
MOST_BAD = 0.5
"""Share of unusable rows of a source from which on it is the mapping that is wrong (start value)."""
NOT_NEEDED = "not_needed"


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


@dataclass(frozen=True, slots=True)
class Problem:
    """What a family makes of a row: a task but for its place among others."""

    prompt: tuple[Message, ...]
    ground_truth: str
    ability: str
    asked: str = ""  # the row's own words, where the prompt says more; recorded solutions may name them
    details: dict[str, Any] = field(default_factory=dict)


class _Found(NamedTuple):
    row: Row
    split: str  # "" if nobody names it
    cluster: str
    level: int
    problem: Problem


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
    found, left_out = list[_Found](), list[LeftOut]()
    for split, source in settings.rows.items():
        some, bad = _problems(source, split, {**fields, **PLACE}, settings.columns, problem_of)
        found += some
        left_out += bad
    kept, doubled = _apart(found)
    in_split, not_needed = _splits(kept, settings.sizes, seed)
    tasks = [
        _task(item, environment, split, index)
        for split, items in in_split.items()
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


def words_of(prompt: Iterable[Message]) -> str:
    """Returns what a prompt says, in a form that two prompts which say the same have in common."""
    return normal_text(" ".join(message["content"] for message in prompt))


def _problems(
    source: Source,
    split: str,
    fields: Mapping[str, Field],
    given: Mapping[str, str],
    problem_of: Callable[[Mapping[str, Any]], Problem],
) -> tuple[list[_Found], list[LeftOut]]:
    """Returns what the rows of one source say, and the rows that cannot be used."""
    rows, left_out = read_rows(source)
    columns, found = columns_in(rows, fields, given), list[_Found]()
    for row in rows:
        try:
            values = values_of(row, columns, fields)
            problem = problem_of(values)
            own = _split_of(values["split"]) if split == BY_ROW else split
            shared = values["cluster"]
            cluster = digest("said", _said(problem)) if shared in (None, "") else str(shared)
            found.append(_Found(row, own, cluster, _level_of(values["level"]), problem))
        except BadRowError as error:
            left_out.append(LeftOut(row.source, row.number, error.kind, str(error)))
    total = len(found) + len(left_out)
    if len(left_out) > MOST_BAD * total:
        first = {bad.kind: bad for bad in reversed(left_out)}
        words = "; ".join(f"{kind}, row {bad.row}: {bad.reason}" for kind, bad in first.items())
        raise ConfigError(
            f"{source.label}: {len(left_out)} of {total} rows cannot be used ({words}). Next: mend them, or "
            f"name other columns in tasks.columns; used were {columns}"
        )
    return found, left_out


def _split_of(value: Any) -> str:
    if value in (None, ""):
        return ""
    if value not in SPLITS:
        raise BadRowError("bad_split", f"split is {shown(value)}; allowed: {', '.join(SPLITS)}")
    return SPLITS[value]


def _level_of(value: Any) -> int:
    """Returns the number at the end of a level, such as `Level 3`; 1 where there is none.

    Example:
        >>> _level_of("Level 3"), _level_of(4), _level_of("hard"), _level_of(None)
        (3, 4, 1, 1)
    """
    last = str(value).split()[-1:]
    return max(1, int(last[0])) if last and last[0].isdecimal() and len(last[0]) < 4 else 1


def _said(problem: Problem) -> str:
    return words_of(problem.prompt)


def _apart(found: Iterable[_Found]) -> tuple[list[_Found], list[LeftOut]]:
    """Returns problems that are there once, and no cluster in two splits; what is held out goes first."""
    order = list(dict.fromkeys(SPLITS.values()))
    first: dict[str, _Found] = {}
    owner: dict[str, str] = {}
    kept, left_out = list[_Found](), list[LeftOut]()
    for item in sorted(found, key=lambda item: order.index(item.split) if item.split else len(order)):
        said, split, (source, number, _) = _said(item.problem), item.split or "train", item.row
        if other := first.get(said):
            place = f"row {other.row.number} of {other.row.source}"
            same = other.problem.ground_truth == item.problem.ground_truth
            kind, reason = (
                ("duplicate", f"says the same as {place}")
                if same
                else ("contradiction", f"asks the same as {place}, with another answer")
            )
            left_out.append(LeftOut(source, number, kind, reason))
        elif owner.setdefault(item.cluster, split) != split:
            reason = f"its cluster {item.cluster[:60]} is in {owner[item.cluster]}"
            left_out.append(LeftOut(source, number, "cluster_elsewhere", reason))
        else:
            first[said] = item
            kept.append(item)
    return kept, left_out


def _splits(
    found: Sequence[_Found], sizes: Mapping[str, int], seed: int
) -> tuple[dict[str, list[_Found]], list[LeftOut]]:
    """Returns split -> its problems in an order by hash, at most as many as `sizes` says, and the rest.

    A split without rows takes whole clusters from train, in an order by hash, until it has enough.
    """
    held_out = [split for split in sizes if split != "train"]
    in_split = {split: [item for item in found if item.split == split] for split in held_out}
    clusters: dict[str, list[_Found]] = {}
    for item in found:
        if item.split in ("", "train"):
            clusters.setdefault(item.cluster, []).append(item)
    order = sorted(clusters, key=lambda cluster: seed_of(seed, "split by cluster", cluster))
    for split in held_out:
        if not in_split[split]:
            while order and len(in_split[split]) < sizes[split]:
                in_split[split] += clusters[order.pop(0)]
    in_split = {"train": [item for cluster in order for item in clusters[cluster]], **in_split}
    if empty := [split for split, items in in_split.items() if not items]:
        have = ", ".join(f"{split} {len(items)}" for split, items in in_split.items())
        raise ConfigError(
            f"tasks.rows leaves no task for {', '.join(empty)} ({len(found)} usable rows in {len(clusters)} "
            f"clusters without a held-out split of their own; got: {have}). Next: more rows or clusters, a "
            "smaller tasks.num_held_out, or other columns.cluster"
        )
    chosen, not_needed = dict[str, list[_Found]](), list[LeftOut]()
    for split, items in in_split.items():
        items = sorted(items, key=lambda item: seed_of(seed, "order in split", _said(item.problem)))
        chosen[split] = items[: sizes[split]]
        not_needed += [
            LeftOut(item.row.source, item.row.number, NOT_NEEDED, f"{split} is full")
            for item in items[sizes[split] :]
        ]
    return chosen, not_needed


def _task(item: _Found, environment: str, split: str, index: int) -> Task:
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
            "source": item.row.source,
            "row": item.row.number,
        },
    )
