"""Arrow columns of any size: as one array, and widened where 32-bit offsets are too small. Executors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Positions = npt.NDArray[np.int64]
"""Positions of rows or keys."""
NARROW_BYTES = (1 << 31) - 1
"""The most that one array of strings or bytes can hold."""

_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_NARROW = {wide: narrow for narrow, wide in _WIDE.items()}


def widened(table: pa.Table) -> pa.Table:
    """The table with 64-bit offsets wherever a column would not fit into one array, inside of arrays, maps and structs too."""
    return _cast(table, _wide_type, lambda size: size > NARROW_BYTES)


def narrowed(table: pa.Table) -> pa.Table:
    """The table with 32-bit offsets again; a column that is still too large (one key with gigabytes) stays wide."""
    return _cast(table, _narrow_type, lambda size: size <= NARROW_BYTES)


def as_batch(part: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The part with the types of the schema. Cut it first, so that it fits into arrays of these types."""
    (batch,) = narrowed(pa.Table.from_batches([part])).cast(schema).combine_chunks().to_batches()
    return batch


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, copied only where it has several chunks; raises `pa.ArrowException` where it is too large for one."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def rows_at(table: pa.Table, at: npt.NDArray[np.int64], schema: pa.Schema) -> pa.RecordBatch:
    """The rows at these positions, with the types of the schema. Cut the positions first, so that the rows fit."""
    if not len(at) or not len(schema):
        empty = [pa.array([], field.type) for field in schema]
        return pa.RecordBatch.from_arrays(empty, schema=schema)
    taken = table.select(schema.names).take(pa.array(at)).combine_chunks()
    return as_batch(taken.to_batches()[0], schema)


def _cast(
    table: pa.Table, wanted: Callable[[pa.DataType], pa.DataType], applies: Callable[[int], bool]
) -> pa.Table:
    for index, field in enumerate(table.schema):
        kind = wanted(field.type)
        if kind != field.type and applies(table.column(index).nbytes):
            table = table.set_column(index, field.with_type(kind), _from_zero(table.column(index)).cast(kind))
    return table


def _from_zero(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Copy a part that lies beyond the first 2 GB of its array: Arrow checks where a part lies, not how long it is."""
    if all(chunk.offset == 0 for chunk in column.chunks):
        return column
    return column.take(pa.array(np.arange(len(column), dtype=np.int64)))


def _wide_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.large_list(_inner(kind.value_field, _wide_type))
    return _other(kind, _wide_type, _WIDE)


def _narrow_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_list(kind):
        return pa.list_(_inner(kind.value_field, _narrow_type))
    return _other(kind, _narrow_type, _NARROW)


def _other(
    kind: pa.DataType,
    wanted: Callable[[pa.DataType], pa.DataType],
    flat: Mapping[pa.DataType, pa.DataType],
) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_inner(field, wanted) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_inner(kind.key_field, wanted), _inner(kind.item_field, wanted), kind.keys_sorted)
    return flat.get(kind, kind)


def _inner(field: pa.Field, wanted: Callable[[pa.DataType], pa.DataType]) -> pa.Field:
    return field.with_type(wanted(field.type))
