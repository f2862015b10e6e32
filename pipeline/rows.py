"""Rows that people bring: JSON lines, Parquet or a data set by name, read by a mapping of columns.

A row that cannot be used never ends a run: it is left out, with its place, a kind and a reason.
"""

import gzip
import json
import math
import zlib
from codecs import BOM_UTF8
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import model_validator

from pipeline.errors import ConfigError
from pipeline.hub import Wanted, columns_to_read, load_rows, tops_of
from pipeline.settings import Section, setting

SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".json", ".csv")
"""Of files that are read, in any case."""
MOST_NAMING = 1000
"""Rows of a JSON lines file that say which columns there are, for an error."""


class Source(Section):
    """Where rows are: `path.jsonl` alone is short for `{source: path.jsonl}`."""

    source: str = setting(
        ...,
        f"file ({', '.join(SUFFIXES)}), folder, or name on the Hugging Face hub",
        min_length=1,
    )
    config: str | None = setting(None, "configuration of a data set on the hub")
    split: str = setting("train", "its own split, of a folder or a data set on the hub")
    revision: str | None = setting(None, "commit of a data set on the hub; null: the newest")

    @property
    def label(self) -> str:
        """What tells it from other sources."""
        path = Path(self.source)
        parts = (str(path),) if path.is_file() else (self.source, self.config, self.split, self.revision)
        return ":".join(part for part in parts if part)

    @property
    def files(self) -> list[Path]:
        """The file that it is, whose content a stage looks after; none of a folder or a data set."""
        return [path] if (path := Path(self.source)).is_file() else []

    @model_validator(mode="before")
    @classmethod
    def _path_alone(cls, given: Any) -> Any:
        return {"source": given} if isinstance(given, str) else given


class Row(NamedTuple):
    """A row, with the columns that were wanted."""

    source: str  # its label
    number: int  # from 1; of JSON lines the line
    values: Mapping[str, Any]

    def left_out(self, error: "BadRowError") -> "LeftOut":
        """Returns it as a row that cannot be used."""
        return LeftOut(self.source, self.number, error.kind, str(error))


class LeftOut(NamedTuple):
    """A row that is not used, and why."""

    source: str
    row: int
    kind: str  # one word, to count by
    reason: str

    @property
    def place(self) -> str:
        """Where it stands, in words."""
        return f"{self.source}: row {self.row}"


class Table(NamedTuple):
    """What was read of a source."""

    rows: list[Row]
    left_out: list[LeftOut]  # lines of a JSON lines file that hold no row
    names: Sequence[str]  # of its columns, read or not


def reasons(left_out: Sequence[LeftOut]) -> str:
    """Returns the first reason of each kind, for an error."""
    first = {bad.kind: bad for bad in reversed(left_out)}
    return "; ".join(f"{kind}, row {bad.row}: {bad.reason}" for kind, bad in first.items())


class BadRowError(ValueError):
    """A row cannot be used; whoever reads the table leaves it out and counts it under `kind`."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Field(NamedTuple):
    """What a reader wants of a row."""

    columns: Sequence[str]  # where it is by default: the first of these that any row of the source has
    required: bool = True


def read_rows(source: Source, fields: Mapping[str, Field], given: Mapping[str, str]) -> Table:
    """Returns the rows of a source in order, with the columns alone that may hold a field.

    Raises ConfigError for a source that cannot be read, or that has no row.
    """
    path, name, wanted = Path(source.source), source.label, _wanted(fields, given)
    suffix = next((end for end in SUFFIXES if path.name.lower().endswith(end)), "")
    if suffix and not path.is_file():
        raise ConfigError(f"{name} is no file. Next: give the path of one that is there")
    if not suffix and path.is_file():
        raise ConfigError(
            f"{name} is a file of another kind; allowed: {', '.join(SUFFIXES)}. Next: write its rows as one "
            "of these, or give it the ending of what it is"
        )
    if suffix in (".jsonl", ".jsonl.gz"):
        table = _json_lines(path, tops_of(wanted.values()))
    else:
        if suffix == ".parquet":
            found, names = _parquet(path, wanted.values())
        else:
            found, names = load_rows(
                source.source, source.split, source.config, source.revision, wanted=wanted.values()
            )
        table = Table([Row(name, i, row) for i, row in enumerate(found, start=1)], [], names)
    if not table.rows:
        first = f"; line {table.left_out[0].row}: {table.left_out[0].reason}" if table.left_out else ""
        raise ConfigError(f"{name} has no row{first}. Next: give at least one row, an object of its columns")
    return table


def _wanted(fields: Mapping[str, Field], given: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Returns field -> the columns that it may be in: the one that is `given`, else the defaults."""
    return {name: [given[name]] if name in given else field.columns for name, field in fields.items()}


def columns_in(table: Table, fields: Mapping[str, Field], given: Mapping[str, str]) -> dict[str, str]:
    """Returns field -> column of a source: as `given`, else the first default that any row has.

    A column of a column is named with a dot: `reward_model.ground_truth`, or with a place: `choices.0`.
    Raises ConfigError for a field that the reader does not know, a column that no row has, or a required
    field for which there is no column.
    """
    if unknown := sorted(set(given) - set(fields)):
        raise ConfigError(f"columns names {', '.join(unknown)}; allowed: {', '.join(fields)}")
    found = {}
    for name, wanted in _wanted(fields, given).items():
        column = next((c for c in wanted if any(_at(row.values, c) is not None for row in table.rows)), None)
        if column is not None:
            found[name] = column
        elif name in given or fields[name].required:
            named = (
                f"columns.{name} = {given[name]}, which no row has"
                if name in given
                else (f"no column for {name}; looked for: {', '.join(wanted)}")
            )
            raise ConfigError(
                f"{table.rows[0].source}: {named}. The rows have: {', '.join(table.names)}. Next: name the "
                f"column in columns.{name}"
            )
    return found


def values_of(row: Row, columns: Mapping[str, str], fields: Mapping[str, Field]) -> dict[str, Any]:
    """Returns field -> value of a row, None where it has none; BadRowError if a required one is missing."""
    values = {name: _at(row.values, columns[name]) if name in columns else None for name in fields}
    for name, field in fields.items():
        if field.required and values[name] is None:
            raise BadRowError(f"no_{name}", f"its column {columns[name]} is empty")
    return values


def text_of(values: Mapping[str, Any], name: str) -> str:
    """Returns a field as text that says something, a number as it is written; else raises BadRowError."""
    value = values[name]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value.strip():
        raise BadRowError(f"bad_{name}", f"{name} is {shown(value)}; allowed: a text or a number")
    return value


def is_missing(value: Any) -> bool:
    """Returns whether a value says nothing: null, a blank text, or NaN, as some writers of Parquet have it.

    Example:
        >>> [is_missing(value) for value in (None, " ", float("nan"), 0)]
        [True, True, True, False]
    """
    if isinstance(value, str):
        return not value.strip()
    return value is None or (isinstance(value, float) and math.isnan(value))


def shown(value: Any) -> str:
    """Returns the beginning of a value, for a reason.

    Example:
        >>> shown(["a"] * 30)
        "['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'a',..."
    """
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def normal_text(text: str) -> str:
    r"""Returns a text in small letters with single spaces: what two rows that say the same have in common.

    Example:
        >>> normal_text("What  is\n2 + 2?")
        'what is 2 + 2?'
    """
    return " ".join(text.casefold().split())


def _at(values: Any, column: str) -> Any:
    """Returns what lies at a column, None where nothing does; a whole name goes before its parts."""
    if isinstance(values, Mapping) and column in values:
        return values[column]
    for part in column.split("."):
        if isinstance(values, Mapping):
            values = values.get(part)
        elif isinstance(values, list) and part.isdecimal() and int(part) < len(values):
            values = values[int(part)]
        else:
            return None
    return values


def _json_lines(path: Path, tops: Collection[str]) -> Table:
    rows, left_out, names = list[Row](), list[LeftOut](), dict[str, None]()
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line.decode(), parse_constant=_no_constant)
            if b"\\u" in line:
                json.dumps(row, ensure_ascii=False).encode()  # half a pair of surrogates is no text
        except (ValueError, RecursionError) as error:
            left_out.append(LeftOut(str(path), number, "no_json", f"no JSON: {str(error)[:200]}"))
            continue
        if isinstance(row, dict):
            rows.append(Row(str(path), number, {name: row[name] for name in row if name in tops}))
            if len(rows) <= MOST_NAMING:
                names |= dict.fromkeys(row)
        else:
            reason = f"{type(row).__name__}, not an object with the row's columns"
            left_out.append(LeftOut(str(path), number, "no_object", reason))
    return Table(rows, left_out, list(names))


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a file; it may be too large to be read at once."""
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            for line in file:
                yield line.removeprefix(BOM_UTF8)  # files of some editors, and such files put together
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _parquet(path: Path, wanted: Wanted) -> tuple[list[dict[str, Any]], list[str]]:
    try:
        with pq.ParquetFile(path) as file:

            def has_values(column: str) -> bool:
                batches = file.iter_batches(columns=[column])
                return any(part.null_count < len(part) for batch in batches for part in batch.columns)

            names = file.schema_arrow.names
            batches = file.iter_batches(columns=columns_to_read(names, wanted, has_values))
            rows = [row for batch in batches for row in batch.to_pylist()]
    except (pa.ArrowException, OSError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise ConfigError(f"{path}: not a readable Parquet file ({words})") from None
    return rows, names
