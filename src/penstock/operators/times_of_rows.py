"""The event times of rows as numbers, and which rows come in time for an operator that takes rows one by one. Executors.

A row is late when its time is before the watermark at which the batch began: a row at the very watermark is taken. One without a time, or
with an absurd one, is left out as if it were late, so that it is seen; or it ends the run, where the source says so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.operators.clock import OperatorClock
from penstock.operators.time_column import TimeColumn
from penstock.state.keys import Flags
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US
from penstock.wording import counted

Times = npt.NDArray[np.int64]
"""Microseconds since the epoch."""


@dataclass(frozen=True)
class JudgedRows:
    """Rows that come in time, with their times, and the others."""

    rows: pa.Table
    times: Times
    late: pa.Table


def judged_by_time(rows: pa.Table, time: TimeColumn, clock: OperatorClock, *, operator: str) -> JudgedRows:
    """Part rows by whether they come in time."""
    clock = clock.judging(time)
    times, known = _numbers(rows.column(time.column), time.earlier_us)
    sensible = known & (times > LONG_AGO_US) & (times < FAR_AWAY_US) & (times <= clock.latest_us)
    if clock.refuses_absurd and not sensible.all():
        raise _absurd(rows.filter(pa.array(~sensible)), time.column, operator)
    in_time = sensible & (times >= clock.before_us)
    if in_time.all():
        return JudgedRows(rows, times, rows.slice(0, 0))
    return JudgedRows(rows.filter(pa.array(in_time)), times[in_time], rows.filter(pa.array(~in_time)))


def _numbers(column: pa.ChunkedArray, earlier_us: int) -> tuple[Times, Flags]:
    known: Flags = column.is_valid().to_numpy()
    numbers = pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64())
    if column.null_count:
        numbers = numbers.fill_null(0)
    times: Times = numbers.to_numpy()
    return times - earlier_us if earlier_us else times, known


def _absurd(rows: pa.Table, column: str, operator: str) -> BadRecordError:
    first = (
        rows.column(column)[0].cast(pa.string()).as_py()
    )  # also of a time that Python's calendar does not reach
    what = "no event time" if first is None else f"the event time {first}, which is absurd"
    return BadRecordError(
        f"operator {operator}: {counted(rows.num_rows, 'row has', 'rows have')} no event time that makes sense in column {column!r}; the "
        f"first has {what}. The source is asked to refuse such rows; nothing of this batch is kept; filter them out before",
        operator=operator,
        column=column,
    )
