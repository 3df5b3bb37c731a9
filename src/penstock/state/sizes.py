"""How many bytes rows take, and where to cut them so that no part takes too many. Executors.

An Arrow array of text holds at most 2 GB, and so does a message to Spark: whatever grows with the data is cut long before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

PART_BYTES = 128 << 20
"""The size of a portion that is written or passed on at once."""

Bytes = npt.NDArray[np.int64]


def cut(sizes: Bytes, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Where each part begins and ends; a row that takes more than `max_bytes` is a part of its own."""
    ends = np.cumsum(sizes)
    start = before = 0
    while start < len(sizes):
        stop = max(int(np.searchsorted(ends, before + max_bytes, side="right")), start + 1)
        yield start, stop
        start, before = stop, int(ends[stop - 1])


def in_batches(table: pa.Table, max_bytes: int = PART_BYTES) -> Iterator[pa.RecordBatch]:
    """The rows of a table in record batches of at most this size in bytes; nothing is copied."""
    for batch in table.to_batches():
        if batch.nbytes <= max_bytes:
            yield batch
            continue
        for start, stop in cut(row_bytes(batch.columns), max_bytes):
            yield batch.slice(start, stop - start)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """All rows of the table in one batch, always copied: a part of a table would keep the whole table in memory."""
    columns = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def row_bytes(columns: Sequence[pa.Array], rows: Bytes | None = None) -> Bytes:
    """About how many bytes each row takes, or each of the rows with these numbers; looks at offsets only."""
    if rows is None:
        rows = np.arange(len(columns[0]) if columns else 0, dtype=np.int64)
    sizes = np.zeros(len(rows), dtype=np.int64)
    for column in columns:
        sizes += bytes_before(column, rows + 1) - bytes_before(column, rows)
    return sizes


def table_row_bytes(table: pa.Table) -> Bytes:
    """About how many bytes each row of a table takes, across all its chunks."""
    sizes = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        if column.num_chunks:
            sizes += np.concatenate([row_bytes([chunk]) for chunk in column.chunks])
    return sizes


def bytes_before(column: pa.Array, at: Bytes) -> Bytes:
    """The bytes of all rows before these positions."""
    kind = column.type
    if pa.types.is_struct(kind):
        return sum((bytes_before(column.field(i), at) for i in range(kind.num_fields)), np.zeros_like(at))
    if pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind):
        inner = [column.keys, column.items] if pa.types.is_map(kind) else [column.values]
        items = column.offsets.to_numpy()[at].astype(np.int64)
        return 4 * at + sum(bytes_before(one, items) for one in inner)
    width = _offset_type(kind)
    if width is None:
        return at * _fixed_bytes(kind)
    offsets = column.buffers()[1]
    if offsets is None or not offsets.size:  # an empty column may have none
        return np.zeros_like(at)
    ends: Bytes = np.frombuffer(offsets, dtype=width)[column.offset + at].astype(np.int64)
    return 4 * at + ends


def _offset_type(kind: pa.DataType) -> str | None:
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return "int32"
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return "int64"
    return None


def _fixed_bytes(kind: pa.DataType) -> int:
    try:
        return max(1, int(kind.bit_width) // 8)
    except ValueError:  # null and other types without a width
        return 1
