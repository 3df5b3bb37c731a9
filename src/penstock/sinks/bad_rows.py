"""Refuses rows that a target does not accept, in the task, while the job can still go back. Executors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.wording import counted

_SHOWN_CHARACTERS = 500
Change = tuple[str, pa.BooleanArray, str]
"""A column, a mask of the values that the server would silently change, and what it would do to them."""


def refuse_changed(batch: pa.RecordBatch, table: str, changes: Iterable[Change]) -> None:
    """Refuse the first row with a value that the server would not store unchanged; nulls are always accepted."""
    for name, changed, why in changes:
        at = pc.index(changed, value=True).as_py()
        if at >= 0:
            raise bad_record(table, f"column {name!r}: {why}", row_at(batch, at))


def refuse_null_keys(batch: pa.RecordBatch, columns: Iterable[str], key: str) -> None:
    """Refuse rows with a null in one of these columns; `key` describes the key for the message."""
    for name in columns:
        nulls = batch.column(name).null_count
        if nulls:
            raise BadRecordError(
                f"column {name!r} is part of the key {key}, but is null in {counted(nulls, 'row')}; filter or fill them before write_to",
                column=name,
            )


def row_at(batch: pa.RecordBatch, index: int) -> dict[str, Any]:
    """Return one row for a message. Text that is not UTF-8 becomes bytes, a value that Python cannot hold becomes the name of its type."""
    return {
        name: _value(column[index]) for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def _value(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        is_text = pa.types.is_string(scalar.type) or pa.types.is_large_string(scalar.type)
        return scalar.as_buffer().to_pybytes() if is_text else f"<{scalar.type} with text that is not UTF-8>"
    except (ValueError, OverflowError):
        return f"<{scalar.type} out of Python's range>"


def shown_row(row: Mapping[str, Any]) -> str:
    """Format a row for a message, shortened if it is long."""
    text = ", ".join(f"{name}={value!r}" for name, value in row.items())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def bad_record(table: str, cause: str, row: Mapping[str, Any] | None) -> BadRecordError:
    """The error for a row that the table refuses; `row` is None if the server does not say which one."""
    which = "" if row is None else f"; the row is {shown_row(row)}"
    return BadRecordError(
        f"table {table} refuses a row: {cause}{which}. No row of this batch was kept; filter or repair such rows before "
        "write_to, or change the table",
        table=table,
        cause=cause,
        row=None if row is None else dict(row),
        reason=f"table {table} refuses the row: {cause}",
    )


def value_bytes(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the sizes of the values in each column of text or bytes; a null has size 0."""
    return [
        pc.fill_null(pc.binary_length(column), 0).cast(pa.int64())
        for column in batch.columns
        if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    ]


def row_bytes(batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the size of each row, counting text and bytes only."""
    sizes = value_bytes(batch)
    total = sizes[:1]
    for more in sizes[1:]:
        total = [pc.add(total[0], more)]
    return total


def refuse_large(sizes: list[pa.Array], longest_bytes: int, what: str) -> None:
    """Raise `BadRecordError` if a value or row is larger than the target accepts."""
    largest = max((pc.max(size).as_py() or 0 for size in sizes), default=0)
    if largest > longest_bytes:
        raise BadRecordError(
            f"{what} may have at most {longest_bytes} bytes, but one has {largest}; filter such rows before write_to",
            size_bytes=largest,
            limit_bytes=longest_bytes,
        )
