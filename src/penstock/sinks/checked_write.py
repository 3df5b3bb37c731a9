"""The one way by which rows reach a sink: what no sink could ever commit is refused here, in the task. Executors.

Spark hands on strings as they are, and `CAST(binary AS STRING)` checks nothing. Bytes that are no UTF-8 can be staged, but nobody can
read them as text afterwards: a commit that meets them is promised and cannot be made.
"""

from __future__ import annotations

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.sinks.two_phase_commit import Transaction, TwoPhaseCommitSink
from penstock.state.types import spark_type

_SHOWN_BYTES = 40


def write_checked(sink: TwoPhaseCommitSink, transaction: Transaction, batch: pa.RecordBatch) -> None:
    """Write rows whose values are what their types say."""
    refuse_broken_values(batch)
    sink.write(transaction, batch)


def refuse_broken_values(batch: pa.RecordBatch) -> None:
    """Raise `BadRecordError` for text that is no UTF-8, at any depth, and for decimals with more digits than their type has."""
    if _is_whole(batch):
        return
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        row = None if _is_whole(column) else _first_broken_row(column)
        if row is not None:
            raise _broken(name, column, row)


def _is_whole(values: pa.RecordBatch | pa.Array) -> bool:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _first_broken_row(column: pa.Array) -> int | None:
    """Halve the rows. None when it is none of them: a slice of a nested column drags along what is not in it."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    first, behind = 0, len(column)
    if _rows_are_whole(column, first, behind):
        return None
    while behind - first > 1:
        middle = (first + behind) // 2
        if _rows_are_whole(column, first, middle):
            first = middle
        else:
            behind = middle
    return first


def _rows_are_whole(column: pa.Array, first: int, behind: int) -> bool:
    return _is_whole(column.take(pa.array(range(first, behind), pa.int64())))


def _broken(name: str, column: pa.Array, row: int) -> BadRecordError:
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        what = f"a value of type {spark_type(column.type)} that is broken: text that is no UTF-8, or a number that the type does not have"
    else:
        value = column[row].cast(pa.large_binary()).as_py()
        shown = value[:_SHOWN_BYTES]
        what = f"bytes that are no UTF-8: {shown!r}{'...' if len(value) > len(shown) else ''} ({len(value)} bytes)"
    where = f", in row {row} of the batch," if len(column) > 1 else ""
    return BadRecordError(
        f"column {name!r} holds{where} {what}. No sink can store them as text. Keep the column binary, filter with "
        "is_valid_utf8(), or repair it with make_valid_utf8(), before write_to",
        column=name,
        row=row,
    )
