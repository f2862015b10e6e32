"""What a table is: columns with a type, a unit and a description; Parquet in and out, checked both ways."""

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ArtifactError

ROW_GROUP_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Column:
    """One column of a table; `allowed` are the only values of a text column, () for any."""

    name: str
    type: pa.DataType
    description: str
    unit: str = ""
    nullable: bool = False
    allowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableSpec:
    """A table: its columns in order, and those that identify a row."""

    name: str
    description: str
    columns: tuple[Column, ...]
    id_columns: tuple[str, ...]

    @functools.cached_property
    def schema(self) -> pa.Schema:
        """The Arrow schema, in the order of the columns."""
        return pa.schema([pa.field(c.name, c.type, nullable=c.nullable) for c in self.columns])


def list_of(element: pa.DataType) -> pa.DataType:
    """Returns a list type without null elements."""
    return pa.list_(pa.field("element", element, nullable=False))


def struct_of(**fields: pa.DataType | tuple[pa.DataType, bool]) -> pa.DataType:
    """Returns a struct type; a field given as (type, True) may be null."""
    return pa.struct(
        [
            pa.field(n, t[0], nullable=t[1]) if isinstance(t, tuple) else pa.field(n, t, nullable=False)
            for n, t in fields.items()
        ]
    )


def table_of(spec: TableSpec, columns: dict[str, Sequence[Any]]) -> pa.Table:
    """Returns a table of python values; raises ValueError for one that does not fit its column's type."""
    arrays = []
    for column in spec.columns:
        try:
            arrays.append(pa.array(columns[column.name], type=column.type))
        except (pa.ArrowException, TypeError, OverflowError, ValueError) as error:
            raise ValueError(f"{spec.name}.{column.name}: {error}; allowed: {column.type}") from None
    return pa.Table.from_arrays(arrays, schema=spec.schema)


def check_table(table: pa.Table, spec: TableSpec) -> None:
    """Raises ValueError for a wrong schema, null, NaN or infinity, a text not allowed, or a doubled id."""
    if not table.schema.equals(spec.schema, check_metadata=False):
        for field in spec.schema:
            index = table.schema.get_field_index(field.name)
            if index < 0:
                raise ValueError(
                    f"{spec.name}: column {field.name} ({field.type}) is missing; see data/README.md"
                )
            got = table.schema.field(index)
            if not got.equals(field):
                raise ValueError(f"{spec.name}: column {field.name} is {_type(got)}; allowed: {_type(field)}")
        extra = [name for name in table.schema.names if name not in spec.schema.names]
        if extra:
            raise ValueError(f"{spec.name}: unknown columns {extra}; allowed: {spec.schema.names}")
        raise ValueError(
            f"{spec.name}: columns are {table.schema.names}; the order must be {spec.schema.names}"
        )
    for column in spec.columns:
        values = table.column(column.name).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            raise ValueError(f"{spec.name}: column {column.name} holds more than 2 GB; split the table")
        _check_values(values, column, spec.name)
    ids = list(spec.id_columns)
    seen = table.select(ids).group_by(ids).aggregate([([], "count_all")])
    if seen.num_rows != table.num_rows:
        doubled = seen.filter(pc.greater(seen["count_all"], 1)).select(ids).slice(0, 1).to_pylist()
        raise ValueError(f"{spec.name}: more than one row has {doubled[0]}; ids must be unique")


def _type(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' not null'}"


def _check_values(values: pa.Array, column: Column, table: str) -> None:
    if not column.nullable and values.null_count:
        row = pc.index(values.is_null(), True).as_py()
        raise ValueError(f"{table}: row {row}, column {column.name} is null; allowed: {column.type}")
    row = _first_bad_row(values)
    if row is not None:
        got = values[row].as_py()
        got = got if not isinstance(got, list) else "a list with a null, NaN or infinite element"
        raise ValueError(
            f"{table}: row {row}, column {column.name} is {got}; allowed: finite numbers, no null inside"
        )
    if column.allowed:
        ok = pc.or_(values.is_null(), pc.is_in(values, value_set=pa.array(column.allowed, values.type)))
        if len(values) and not pc.all(ok).as_py():
            row = pc.index(ok, False).as_py()
            raise ValueError(
                f"{table}: row {row}, column {column.name} is {values[row].as_py()!r}; "
                f"allowed: {', '.join(column.allowed)}"
            )


def _first_bad_row(values: pa.Array) -> int | None:
    """Returns the first row that holds NaN or infinity, or null below the top where the type forbids it."""
    if pa.types.is_floating(values.type):
        bad = pc.invert(pc.is_finite(values)).fill_null(False)
        return pc.index(bad, True).as_py() if pc.any(bad).as_py() else None
    if pa.types.is_list(values.type):
        inner = values.flatten()
        row = _first_bad_row(inner)
        if not values.type.value_field.nullable and inner.null_count:
            null = pc.index(inner.is_null(), True).as_py()
            row = null if row is None else min(row, null)
        return None if row is None else pc.list_parent_indices(values)[row].as_py()
    if pa.types.is_struct(values.type):
        rows = []
        for field, child in zip(values.type, values.flatten(), strict=True):
            rows.append(_first_bad_row(child))
            missing = pc.and_(child.is_null(), values.is_valid())
            if not field.nullable and pc.any(missing).as_py():
                rows.append(pc.index(missing, True).as_py())
        return min((row for row in rows if row is not None), default=None)
    return None


def write_parquet(table: pa.Table, spec: TableSpec, path: Path) -> None:
    """Writes a checked table: zstd, page checksums, row groups under 64 MB; not yet durable, not atomic.

    Lists of token ids are plain (a dictionary of 150,000 ids never pays), floats are byte-stream-split.
    """
    check_table(table, spec)
    rows = max(1, table.num_rows)
    group = max(1, min(rows, int(ROW_GROUP_BYTES // max(1, table.nbytes // rows))))
    dictionary, encoding = [], {}
    for leaf, kind in _leaves(spec.schema):
        if pa.types.is_floating(kind):
            encoding[leaf] = "BYTE_STREAM_SPLIT"
        elif pa.types.is_integer(kind) and ".list." in leaf:
            encoding[leaf] = "PLAIN"
        else:
            dictionary.append(leaf)
    pq.write_table(
        table,
        path,
        compression="zstd",
        row_group_size=group,
        use_dictionary=dictionary,
        column_encoding=encoding or None,
        write_page_checksum=True,
    )


def _leaves(schema: pa.Schema) -> list[tuple[str, pa.DataType]]:
    def walk(prefix: str, kind: pa.DataType) -> list[tuple[str, pa.DataType]]:
        if pa.types.is_list(kind):
            return walk(f"{prefix}.list.element", kind.value_type)
        if pa.types.is_struct(kind):
            return [leaf for f in kind for leaf in walk(f"{prefix}.{f.name}", f.type)]
        return [(prefix, kind)]

    return [leaf for field in schema for leaf in walk(field.name, field.type)]


def read_parquet(path: Path, spec: TableSpec | None = None) -> pa.Table:
    """Returns a table after a check of its page checksums, and of schema and values under `spec`.

    Raises ArtifactError naming the file, and the row and column where there is one.
    """
    try:
        # ParquetFile, not read_table: that would infer partitions from the path.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
    except FileNotFoundError:
        raise ArtifactError(f"{path}: this file is missing") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise ArtifactError(f"{path}: not a readable Parquet file ({words})") from None
    if spec is not None:
        try:
            check_table(table, spec)
        except ValueError as error:
            raise ArtifactError(f"{path}: {error}") from None
    return table


def content_digest(table: pa.Table, id_columns: Sequence[str]) -> str:
    """Returns a digest of a table's values alone, in id order.

    It does not depend on row order, chunks, row groups, compression or Arrow's buffers.
    """
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in id_columns])
    state = hashlib.blake2b(digest_size=16)
    for field, column in zip(table.schema, table.columns, strict=True):
        state.update(field.name.encode() + b"\0" + str(field.type).encode() + b"\0")
        _hash_array(column.take(order).combine_chunks(), state)
    return state.hexdigest()


def _hash_array(values: Any, state: Any) -> None:
    state.update(len(values).to_bytes(8, "little"))
    state.update(np.packbits(values.is_valid().to_numpy(zero_copy_only=False)).tobytes())
    kind = values.type
    if pa.types.is_struct(kind):
        for child in values.flatten():
            _hash_array(child, state)
        return
    present = values.drop_null()
    if pa.types.is_list(kind):
        state.update(pc.list_value_length(present).cast(pa.int64()).to_numpy().tobytes())
        _hash_array(present.flatten(), state)
    elif pa.types.is_string(kind):
        if len(present):
            offsets = np.frombuffer(present.buffers()[1], np.int32)[
                present.offset : present.offset + len(present) + 1
            ]
            state.update(np.diff(offsets).astype("<i8").tobytes())
            if offsets[-1] > offsets[0]:
                state.update(memoryview(present.buffers()[2])[offsets[0] : offsets[-1]])
    else:
        numbers = present.to_numpy(zero_copy_only=False)
        if numbers.dtype.kind == "f":
            numbers = numbers + 0.0  # -0.0 and 0.0 are one value
        state.update(np.ascontiguousarray(numbers).astype(numbers.dtype.newbyteorder("<")).tobytes())
