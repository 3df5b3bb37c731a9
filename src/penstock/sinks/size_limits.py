"""How large values are, for targets that refuse large ones: found out in the task, while the job can go back. Executors."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError


def value_bytes(batch: pa.RecordBatch) -> list[pa.Array]:
    """The sizes in each column of texts or bytes; null counts nothing."""
    return [
        pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        for column in batch.columns
        if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    ]


def row_bytes(batch: pa.RecordBatch) -> list[pa.Array]:
    """The size of each row, texts and bytes only."""
    sizes = value_bytes(batch)
    total = sizes[:1]
    for more in sizes[1:]:
        total = [pc.add(total[0], more)]
    return total


def refuse_large(sizes: list[pa.Array], longest_bytes: int, what: str) -> None:
    """Raise `BadRecordError` if one is larger than the target takes."""
    largest = max((pc.max(size).as_py() or 0 for size in sizes), default=0)
    if largest > longest_bytes:
        raise BadRecordError(
            f"{what} may have {longest_bytes} bytes, but one has {largest}; filter such rows before write_to",
            size_bytes=largest,
            limit_bytes=longest_bytes,
        )
