"""Rows and moments as a test writes and reads them, and as Arrow has them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError
from penstock.operators.calls import to_table
from penstock.operators.python_values import python_values
from penstock.run.watermarks import latest_us
from penstock.testing.declared import Input

Row: TypeAlias = dict[str, Any]
RowsGiven: TypeAlias = pa.Table | Iterable[Mapping[str, Any] | Sequence[Any]]
"""Rows as a test writes them: an Arrow table, dictionaries, or tuples in the order of the schema."""


def as_dicts(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Rows as dictionaries, with values as user code sees them."""
    found: list[Row] = []
    for batch in batches:
        names = batch.schema.names
        columns = [python_values(column) for column in batch.columns]
        found += [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return found


def as_table(of: Input | None, rows: RowsGiven, uid: str) -> pa.Table | None:
    """Rows as a test writes them, as columns of the types of their stream."""
    if isinstance(rows, pa.Table):
        given: pa.Table = rows
    else:
        listed = list(rows)
        if of is None:
            if listed:
                raise ConfigError(
                    f"operator {uid!r} is given rows of a stream that it does not have: {listed[0]!r}; write right_schema= and "
                    "right_key= for a second stream, broadcast_schema= for a broadcast stream"
                )
            return None
        given = to_table(listed, of.columns, f"the {of.uid} are") if listed else of.columns.empty_table()
    if of is None:
        raise ConfigError(f"operator {uid!r} has no such stream; write right_schema= or broadcast_schema=")
    return given.select(of.columns.names).cast(of.columns)


def newest_us(of: Input, rows: pa.Table, now_us: int) -> int | None:
    """The newest event time of the rows that is believed, as Spark observes it."""
    if of.time is None or not rows.num_rows:
        return None
    moments = rows.column(of.time.column)
    numbers = moments.cast(pa.timestamp("us", moments.type.tz)).cast(pa.int64())
    believed = numbers.filter(pc.less_equal(numbers, latest_us(of.time, now_us)))
    newest: int | None = pc.max(believed).as_py()
    return newest


def parsed_moment(given: datetime | str, call: str) -> datetime:
    """What a test writes for a moment; text without a zone is UTC."""
    if not isinstance(given, str):
        return given
    try:
        read = datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigError(
            f"{call}({given!r}): write a datetime, or text such as '2026-01-01 10:00'"
        ) from error
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
