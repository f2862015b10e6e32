"""What a table is: columns with a type, a unit and a description; Parquet in and out, checked both ways."""

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.errors import ArtifactError

ROW_GROUP_BYTES = 64 * 2**20
BATCH_ROWS = 128
"""Read at a time by who streams a table: few, since token ids as python lists are large (start value)."""
PIECE_BYTES = 2**20
"""Of a column, put in order at a time to be hashed; what Arrow notes for it takes up to 8 times as much."""


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


def struct_of(**fields: pa.DataType) -> pa.DataType:
    """Returns a struct type without null fields."""
    return pa.struct([pa.field(name, kind, nullable=False) for name, kind in fields.items()])


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
        got, wanted = ([_described(field) for field in schema] for schema in (table.schema, spec.schema))
        missing, extra = [of for of in wanted if of not in got], [of for of in got if of not in wanted]
        raise ValueError(
            f"{spec.name}: missing columns {missing}, unknown columns {extra}; the order must be "
            f"{spec.schema.names}; see data/README.md"
        )
    for column in spec.columns:
        first = 0
        for values in table.column(column.name).chunks:  # together they may hold more than 2 GB of text
            _check_values(values, column, spec.name, first)
            first += len(values)
    ids = list(spec.id_columns)
    seen = table.select(ids).group_by(ids).aggregate([([], "count_all")])
    if seen.num_rows != table.num_rows:
        doubled = seen.filter(pc.greater(seen["count_all"], 1)).select(ids).slice(0, 1).to_pylist()
        raise ValueError(f"{spec.name}: more than one row has {doubled[0]}; ids must be unique")


def _described(field: pa.Field) -> str:
    return f"{field.name}: {field.type}{'' if field.nullable else ' not null'}"


def _check_values(values: pa.Array, column: Column, table: str, first: int) -> None:
    """Raises ValueError for a value that its column forbids; `first` is the row of the first one."""
    row = _first_bad_row(values, column.nullable)
    if row is not None:
        got = values[row].as_py()
        if isinstance(got, list):
            got = "a list with a null, NaN or infinite element"
        raise ValueError(
            f"{table}: row {first + row}, column {column.name} is {'null' if got is None else got}; "
            f"allowed: {column.type}, finite, without null"
        )
    if column.allowed:
        ok = pc.or_(values.is_null(), pc.is_in(values, value_set=pa.array(column.allowed, values.type)))
        if len(values) and not pc.all(ok).as_py():
            row = pc.index(ok, False).as_py()
            raise ValueError(
                f"{table}: row {first + row}, column {column.name} is {values[row].as_py()!r}; "
                f"allowed: {', '.join(column.allowed)}"
            )


def _first_bad_row(values: pa.Array, nullable: bool) -> int | None:
    """Returns the first row that holds NaN or infinity, or null where the type forbids it."""
    rows = []
    if values.null_count and not nullable:
        rows.append(pc.index(values.is_null(), True).as_py())
    if pa.types.is_floating(values.type):
        infinite = pc.invert(pc.is_finite(values)).fill_null(False)
        if pc.any(infinite).as_py():
            rows.append(pc.index(infinite, True).as_py())
    elif pa.types.is_list(values.type):
        place = _first_bad_row(values.flatten(), values.type.value_field.nullable)
        if place is not None:
            rows.append(pc.list_parent_indices(values)[place].as_py())
    elif pa.types.is_struct(values.type):
        for field, child in zip(values.type, values.flatten(), strict=True):
            # A null struct has null fields, whatever these allow.
            rows.append(_first_bad_row(child, field.nullable or values.null_count > 0))
    return min((row for row in rows if row is not None), default=None)


def write_parquet(table: pa.Table, spec: TableSpec, path: Path) -> None:
    """Writes a checked table: zstd, page checksums, row groups under 64 MB; not yet durable, not atomic.

    Lists of token ids are plain (a dictionary of 150,000 ids never pays), floats are byte-stream-split.
    """
    check_table(table, spec)
    rows = max(1, table.num_rows)
    group = max(1, min(rows, int(ROW_GROUP_BYTES // max(1, table.nbytes // rows))))
    leaves = _leaves(spec.schema)
    floats = [leaf for leaf, kind in leaves if pa.types.is_floating(kind)]
    ids = [leaf for leaf, kind in leaves if pa.types.is_integer(kind) and ".list." in leaf]
    pq.write_table(
        table,
        path,
        compression="zstd",
        row_group_size=group,
        use_dictionary=[leaf for leaf, _ in leaves if leaf not in (*floats, *ids)],
        use_byte_stream_split=floats,
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
    with _readable(path) as file:
        # One by one: a list of texts of more than 2 GB cannot be read at once.
        groups = [file.read_row_group(index) for index in range(file.num_row_groups)]
        table = pa.concat_tables([file.schema_arrow.empty_table(), *groups])
    if spec is not None:
        try:
            check_table(table, spec)
        except ValueError as error:
            raise ArtifactError(f"{path}: {error}") from None
    return table


def parquet_batches(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a file in order, `BATCH_ROWS` at most at a time, after a check of their checksums.

    Raises ArtifactError naming the file.
    """
    with _readable(path) as file:
        yield from file.iter_batches(BATCH_ROWS, columns=None if columns is None else list(columns))


@contextmanager
def _readable(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        # ParquetFile, not read_table: that would infer partitions from the path.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except FileNotFoundError:
        raise ArtifactError(f"{path}: this file is missing") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        words = " ".join(str(error).split())[:200]
        raise ArtifactError(f"{path}: not a readable Parquet file ({words})") from None


def content_digest(table: pa.Table, id_columns: Sequence[str]) -> str:
    """Returns a digest of a table's values alone, in id order; one column at most is copied for it.

    It does not depend on row order, chunks, row groups, compression or Arrow's buffers.
    """
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in id_columns])
    state = hashlib.blake2b(digest_size=16)
    for field, column in zip(table.schema, table.columns, strict=True):
        state.update(field.name.encode() + b"\0" + str(field.type).encode() + b"\0")
        values = column.cast(_large(field.type)).combine_chunks()
        _hash_pieces(functools.partial(_in_order, values, order), values.type, len(values), state)
        del values  # before the next one is copied
    return state.hexdigest()


def _in_order(values: Any, order: Any) -> Iterator[Any]:
    rows = max(1, PIECE_BYTES * len(values) // max(1, values.nbytes))
    for first in range(0, len(values), rows):
        yield values.take(order.slice(first, rows))


def _large(kind: pa.DataType) -> pa.DataType:
    """Returns a type with offsets of 64 bits: those of 32 end at 2 GB of text, or two billion elements."""
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_large(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_large(field.type)) for field in kind])
    return kind


def _hash_pieces(pieces: Callable[[], Iterator[Any]], kind: pa.DataType, length: int, state: Any) -> None:
    """Hashes an array as a whole, though it comes in pieces: once for each thing that is hashed of it."""
    state.update(length.to_bytes(8, "little"))
    held = np.empty(0, dtype=bool)
    for piece in pieces():
        held = np.concatenate([held, piece.is_valid().to_numpy(zero_copy_only=False)])
        whole = len(held) // 8 * 8  # of the bits that fill bytes
        state.update(np.packbits(held[:whole]))
        held = held[whole:]
    state.update(np.packbits(held))
    if pa.types.is_struct(kind):
        for place, field in enumerate(kind):
            child = functools.partial(_each, pieces, functools.partial(_child, place))
            _hash_pieces(child, field.type, length, state)
        return
    present = functools.partial(_each, pieces, lambda piece: piece.drop_null())
    if pa.types.is_large_list(kind):
        length = 0
        for piece in present():
            lengths = pc.list_value_length(piece).cast(pa.int64()).to_numpy()
            length += int(lengths.sum())
            state.update(lengths)
        inner = functools.partial(_each, present, lambda piece: piece.flatten())
        _hash_pieces(inner, kind.value_type, length, state)
    elif pa.types.is_large_string(kind):
        for piece in present():
            state.update(pc.binary_length(piece).cast(pa.int64()).to_numpy())
        for piece in present():
            for first in range(0, len(piece), BATCH_ROWS):
                state.update("".join(piece.slice(first, BATCH_ROWS).to_pylist()).encode())
    else:
        for piece in present():
            numbers = piece.to_numpy(zero_copy_only=False)
            if numbers.dtype.kind == "f":
                numbers = numbers + 0.0  # -0.0 and 0.0 are one value
            state.update(np.ascontiguousarray(numbers.astype(numbers.dtype.newbyteorder("<"))))


def _child(place: int, structs: Any) -> Any:
    return structs.flatten()[place]


def _each(pieces: Callable[[], Iterator[Any]], part: Callable[[Any], Any]) -> Iterator[Any]:
    return map(part, pieces())
