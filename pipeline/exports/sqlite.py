"""A run's tables in one SQLite file: typed columns, keys, indices, and views of success."""

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.artifacts.artifact import Artifact
from pipeline.columns import SPECS
from pipeline.exports.files import Part
from pipeline.schema import TableSpec

FILE = "run.sqlite"
_INDICES = {"rollouts": ("task_id", "group_id", "reward"), "tasks": ("split", "level")}
VIEWS = {
    "success": "split, level, kind, attempt, guided, temperature, policy_digest",
    "success_by_task": "task_id, split, level, kind, guided, temperature, policy_digest",
}
"""Name -> by what rollouts are counted, besides the stage that has them. A null reward is in no mean."""


def write_sqlite(artifacts: Sequence[Artifact], folder: Path) -> list[Part]:
    """Writes `run.sqlite` and returns its tables; a table that several stages have is one, by `stage`."""
    part, parts = folder / f"{FILE}.part", []
    with closing(sqlite3.connect(part)) as database:
        database.execute("PRAGMA journal_mode = OFF")  # a file that nobody has until it is whole
        for name in dict.fromkeys(name for artifact in artifacts for name in artifact.tables):
            holders = [artifact for artifact in artifacts if name in artifact.tables]
            columns = columns_of(_schema(holders[0], name))
            create(database, name, columns, SPECS.get(name))
            rows = sum(_insert(database, artifact, name, columns) for artifact in holders)
            parts.append(Part(f"{FILE}: {name}", rows))
        _describe(database, [part.file.partition(": ")[2] for part in parts])
        database.commit()
    part.replace(folder / FILE)
    return parts


def columns_of(schema: pa.Schema) -> list[tuple[str, str]]:
    """Returns (name, type) of a table's columns; a struct is a column for each field, a list is JSON.

    Example:
        >>> columns_of(pa.schema({"a": pa.int8(), "b": pa.struct({"c": pa.string()}.items())}))
        [('a', 'INTEGER'), ('b_c', 'TEXT')]
    """
    flat = schema.empty_table().flatten().schema
    return [(_name_of(field.name), _type_of(field.type)) for field in flat]


def _name_of(column: str) -> str:
    """Returns a column's name here, where `stage` is the one that has the table."""
    return "own_stage" if column == "stage" else column.replace(".", "_")


def _type_of(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "INTEGER"
    return "REAL" if pa.types.is_floating(kind) else "TEXT"


def _schema(artifact: Artifact, name: str) -> pa.Schema:
    return SPECS[name].schema if name in SPECS else artifact.table(name).schema


def create(
    database: sqlite3.Connection, name: str, columns: Sequence[tuple[str, str]], spec: TableSpec | None
) -> None:
    """Makes an empty table, its key and its indices."""
    lines = ["stage TEXT NOT NULL", *(f'"{column}" {kind}' for column, kind in columns)]
    if spec is not None:
        ids = ", ".join(f'"{_name_of(column)}"' for column in spec.id_columns)  # one is called `update`
        lines.append(f"PRIMARY KEY (stage, {ids})")
    database.execute(f'CREATE TABLE "{name}" ({", ".join(lines)})')
    for column in _INDICES.get(name, ()):
        database.execute(f'CREATE INDEX "{name}_{column}" ON "{name}" ("{column}")')


def _insert(
    database: sqlite3.Connection, artifact: Artifact, name: str, columns: Sequence[tuple[str, str]]
) -> int:
    places = ", ".join("?" * (len(columns) + 1))
    rows = (values for batch in artifact.batches(name) for values in _values(artifact.stage, batch))
    return database.executemany(f'INSERT INTO "{name}" VALUES ({places})', rows).rowcount


def _values(stage: str, batch: pa.RecordBatch) -> Iterator[list[Any]]:
    for row in pa.Table.from_batches([batch]).flatten().to_pylist():
        yield [stage, *map(_plain, row.values())]


def _plain(value: Any) -> Any:
    is_nested = isinstance(value, list | dict)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) if is_nested else value


def _describe(database: sqlite3.Connection, tables: Sequence[str]) -> None:
    """Writes the data dictionary as a table, and the views where there is something to see."""
    database.execute("CREATE TABLE dictionary (name TEXT, of TEXT, unit TEXT, description TEXT)")
    described = [
        (name, table, column.unit, column.description)
        for table in tables
        if table in SPECS
        for column, field in zip(SPECS[table].columns, SPECS[table].schema, strict=True)
        for name, _ in columns_of(pa.schema([field]))
    ]
    database.executemany("INSERT INTO dictionary VALUES (?, ?, ?, ?)", described)
    if set(tables) >= {"rollouts", "tasks"}:
        for view, by in VIEWS.items():
            database.execute(
                f"CREATE VIEW {view} AS SELECT rollouts.stage, {by}, count(*) AS rollouts, "
                "count(reward) AS graded, avg(reward) AS mean_reward, "
                "avg(CASE WHEN reward IS NOT NULL THEN finish_reason = 'success' END) AS success "
                f"FROM rollouts LEFT JOIN tasks USING (task_id) GROUP BY rollouts.stage, {by}"
            )
