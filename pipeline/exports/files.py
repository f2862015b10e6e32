"""Files that exports write row by row: whoever finds one finds all of it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from pipeline.schema import BATCH_ROWS

TEXT = pa.string()
_CALL = pa.struct(
    {"id": TEXT, "type": TEXT, "function": pa.struct({"name": TEXT, "arguments": TEXT})}.items()
)
MESSAGES = pa.list_(
    pa.struct({"role": TEXT, "content": TEXT, "tool_calls": pa.list_(_CALL), "tool_call_id": TEXT}.items())
)
"""OpenAI's messages; arguments of a call are JSON text, as there."""


class Part(NamedTuple):
    """One of the files of an export."""

    file: str  # relative to the folder
    rows: int
    description: str = ""
    left_out: Mapping[str, int] = {}  # rows that are not in it, by kind


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Returns the number of rows; of none there is no file."""
    number, part = 0, path.with_name(path.name + ".part")
    with part.open("w", encoding="utf-8") as lines:
        for row in rows:
            lines.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
            number += 1
    return _published(part, path, number)


def write_parquet_rows(path: Path, schema: pa.Schema, rows: Iterable[Mapping[str, Any]]) -> int:
    """Returns the number of rows, which are written some at a time; of none there is no file."""
    path.parent.mkdir(exist_ok=True)
    number, part = 0, path.with_name(path.name + ".part")
    with pq.ParquetWriter(part, schema, compression="zstd", write_page_checksum=True) as writer:
        for some in _in_batches(rows):
            writer.write_table(pa.Table.from_pylist(some, schema))
            number += len(some)
    return _published(part, path, number)


def _in_batches(rows: Iterable[Mapping[str, Any]]) -> Iterator[list[Mapping[str, Any]]]:
    left = iter(rows)
    while some := list(islice(left, BATCH_ROWS)):
        yield some


def _published(part: Path, path: Path, number: int) -> int:
    if number:
        part.replace(path)
    else:
        part.unlink()
    return number


def write_card(folder: Path, title: str, parts: Sequence[Part]) -> None:
    """Writes the README.md by which `datasets.load_dataset(folder, NAME)` finds the file `NAME/*.parquet`."""
    named = [(part.file.partition("/")[0], part) for part in parts]
    configs = [{"config_name": name, "data_files": f"{name}/*.parquet"} for name, _ in named]
    head = {"pretty_name": title, "tags": ["vdapo"], "configs": configs}
    lines = [f"- `{name}` ({part.rows} rows): {part.description}".rstrip(" :") for name, part in named]
    text = f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n# {title}\n\n" + "\n".join(lines) + "\n"
    (folder / "README.md").write_text(text, encoding="utf-8")
