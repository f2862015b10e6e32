"""What identifies a table: digests of its columns and of its rows."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.ids import digest
from pipeline.schema import TableSpec


def schema_digest(schema: pa.Schema) -> str:
    """Returns a digest of names, types and nullability."""
    return digest("schema", [[f.name, str(f.type), f.nullable] for f in schema])


def content_digest(table: pa.Table, spec: TableSpec) -> str:
    """Returns a digest of the rows in id order, without volatile columns.

    It depends on values alone: not on row order, chunks, row groups, compression or Arrow's buffers.
    """
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in spec.id_columns])
    state = hashlib.blake2b(digest_size=16)
    for column in spec.columns:
        if column.name in spec.volatile:
            continue
        state.update(column.name.encode() + b"\0" + str(column.type).encode() + b"\0")
        values = table.column(column.name).take(order)
        _hash_array(values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values, state)
    return state.hexdigest()


def _hash_array(values: Any, state: Any) -> None:
    if isinstance(values, pa.ChunkedArray):
        raise ValueError("a column holds more than 2 GB of text; split the table")
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
