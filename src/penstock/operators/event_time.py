"""Event time at an operator: the column it is in, the clock of a batch, late rows, and rows found by time. Driver and executors.

In every batch rows come first, and then time goes on. Rows are judged by `before_us`, the watermark at the beginning of the batch, and
update state; then the watermark goes on to `watermark_us`, and timers fire and windows close that are due up to it. Results of an operator
reach the next one as rows of the same batch, before its watermark goes on. So results are not late at the next operator, whose watermark
does not pass them while it waits (`run/watermarks.py`). Only a source that comes back from idleness is behind the others.

A row is late when its time is before the watermark at which the batch began: a row at the very watermark is taken. A row without a time, or
with an absurd one, is left out as if it were late, so that it is seen; or it ends the run, where the source says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.operators.columns import as_batch
from penstock.operators.values.row_order import Numbers
from penstock.state.keys import Flags
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US
from penstock.state.sizes import PART_BYTES, in_batches
from penstock.wording import counted

Times = npt.NDArray[np.int64]
"""Microseconds since the epoch."""
_BITS = 62


@dataclass(frozen=True)
class TimeLimits:
    """Which times of rows are believed, and what becomes of the others."""

    ahead_us: int | None = None
    refuses_absurd: bool = False


ANY_TIME = TimeLimits()


def widest(limits: Sequence[TimeLimits]) -> TimeLimits | None:
    """The limits of streams that meet: a row may be of any of them."""
    if not limits:
        return None
    ahead = [one.ahead_us for one in limits if one.ahead_us is not None]
    return TimeLimits(
        max(ahead) if len(ahead) == len(limits) else None, all(one.refuses_absurd for one in limits)
    )


@dataclass(frozen=True)
class TimeColumn:
    """The column with the time of rows: its value, less `earlier_us`."""

    column: str
    earlier_us: int = 0
    """1 for `window_end`: a window has all moments before its end, and the last of them is the time of its result."""
    of_results: bool = False
    """Whether an operator has given the rows. Their times are believed, however far ahead of the clock: a window may end next month."""
    ahead_us: int | None = None
    """A time so far ahead of the clock is not believed, as the source of the rows says; None: any is."""
    refuses_absurd: bool = False
    """Whether a row without a time that is believed ends the run, as the source of the rows says."""

    def within(self, limits: TimeLimits) -> TimeColumn:
        """This column with these limits."""
        return replace(self, ahead_us=limits.ahead_us, refuses_absurd=limits.refuses_absurd)


@dataclass(frozen=True)
class OperatorClock:
    """Event time and the clock, at one operator in one batch; in microseconds since the epoch."""

    before_us: int = LONG_AGO_US
    """The watermark when the batch began. A row is late by it, and what was due up to it has been done."""
    watermark_us: int = LONG_AGO_US
    """Where it goes at the end of the batch. At the end of a drained input `FAR_AWAY_US`."""
    fired_us: int = LONG_AGO_US
    """The time of the batch before: timers by the clock up to it have fired."""
    now_us: int = 0
    """The time of this batch. `fired_us` in one that only clears away, after the end of event time: no timers fire in it."""
    latest_us: int = FAR_AWAY_US
    """An event time after this one is absurd: such a row counts as late. Known where the rows are, see `judging`; so is the next field."""
    refuses_absurd: bool = False
    """Whether a row with an absurd event time, or none, ends the run instead."""
    over_us: int = LONG_AGO_US
    """Windows that end up to it had been forgotten when the batch began, also if the lateness has become longer since."""

    def closed_until_us(self, lateness_us: int) -> int:
        """The last moment of windows that no row of the batch can reach any more, nor one before it."""
        return max(self.before_us - lateness_us, self.over_us)

    def at_any_time(self) -> OperatorClock:
        """This clock, with no row late because of its time alone."""
        return replace(self, before_us=LONG_AGO_US, over_us=LONG_AGO_US)

    @property
    def touched_us(self) -> int:
        """The event time of state that a timer by the clock touches: the new watermark, unless event time has ended."""
        return next((us for us in (self.watermark_us, self.before_us) if us < FAR_AWAY_US), LONG_AGO_US)

    def judging(self, time: TimeColumn) -> OperatorClock:
        """This clock for rows with this time. The source of the rows decides which times are absurd; those of results never are."""
        if time.of_results:
            return replace(self, latest_us=FAR_AWAY_US, refuses_absurd=False)
        ahead_us = FAR_AWAY_US if time.ahead_us is None else time.ahead_us
        latest_us = min(self.now_us + ahead_us, FAR_AWAY_US)
        return replace(self, latest_us=latest_us, refuses_absurd=time.refuses_absurd)


# ── late rows ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class JudgedRows:
    """Rows that come in time, with their times, and the others."""

    rows: pa.Table
    times: Times
    late: pa.Table


def judged_by_time(rows: pa.Table, time: TimeColumn, clock: OperatorClock, *, operator: str) -> JudgedRows:
    """Separate rows that come in time from late ones."""
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
    # also of a time that Python's calendar does not reach
    first = rows.column(column)[0].cast(pa.string()).as_py()
    what = "no event time" if first is None else f"the event time {first}, which is absurd"
    return BadRecordError(
        f"operator {operator}: {counted(rows.num_rows, 'row has', 'rows have')} no event time that makes sense in column {column!r}; the "
        f"first has {what}. The source is asked to refuse such rows; nothing of this batch is kept; filter them out before",
        operator=operator,
        column=column,
    )


class LateRows:
    """The late rows of one task. An operator adds every row that it leaves out because of its time, so all are counted."""

    def __init__(self, schema: pa.Schema | None) -> None:
        self.count = 0
        self._schema = schema
        self._batches: list[pa.RecordBatch] = []

    def add(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows as they arrived; columns that the operator's input does not have are removed."""
        self.count += rows.num_rows
        if self._schema is None or not rows.num_rows:
            return
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        for part in in_batches(table.select(self._schema.names), PART_BYTES):
            self._batches.append(as_batch(part, self._schema))

    @property
    def kept(self) -> bool:
        """Whether the job reads the late rows, so that they are kept."""
        return self._schema is not None

    def add_number(self, rows: int) -> None:
        """Count rows of which only the number is known, or which reach `late()` in another way."""
        self.count += rows

    def batches(self) -> list[pa.RecordBatch]:
        """The late rows that are kept, in batches of the input's schema."""
        return self._batches


# ── rows found by time ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Timed:
    """Rows by their key's position and their time, ordered by both."""

    key_index: Numbers
    times: Numbers

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True)
class Ranges:
    """For each row that asks the rows that it found: from `start` on, up to `stop`."""

    start: Numbers
    stop: Numbers

    @property
    def counts(self) -> Numbers:
        """How many rows each one found."""
        return self.stop - self.start

    def pairs(self, at_most: int) -> Iterator[tuple[Numbers, Numbers]]:
        """Pairs of the row that asks and the row that it found, in parts of about this size, unless one row found more."""
        asking = np.flatnonzero(self.counts)
        counts = self.counts[asking]
        ends = np.cumsum(counts)
        first = done = 0
        while first < len(asking):
            end = max(int(np.searchsorted(ends, done + at_most, side="right")), first + 1)
            part, lengths = asking[first:end], counts[first:end]
            begins = ends[first:end] - lengths - done
            within = np.arange(int(ends[end - 1]) - done) - np.repeat(begins, lengths)
            yield np.repeat(part, lengths), np.repeat(self.start[part], lengths) + within
            first, done = end, int(ends[end - 1])

    def found(self, rows: int) -> npt.NDArray[np.bool_]:
        """Which of the rows were found at least once."""
        begun = np.bincount(self.start, minlength=rows + 1) - np.bincount(self.stop, minlength=rows + 1)
        return np.cumsum(begun)[:rows] > 0


def in_range(rows: Timed, key_index: Numbers, earliest: Numbers, latest: Numbers) -> Ranges:
    """For each key and range of time, ends included, the rows that lie in it."""
    if not len(rows) or not len(key_index):
        nothing = np.zeros(len(key_index), dtype=np.int64)
        return Ranges(nothing, nothing)
    lowest, highest = int(rows.times.min()), int(rows.times.max())
    width = (highest - lowest + 2).bit_length()
    keys = max(int(rows.key_index[-1]), int(key_index.max())) + 1
    if width + keys.bit_length() > _BITS:
        return _in_range_by_rank(rows, key_index, earliest, latest)
    numbers = (rows.key_index << width) + (rows.times - lowest)
    base = key_index << width
    # from 0 to one after the last: a range after all rows of its key must not find those of the next key
    low = np.clip(earliest, lowest, highest + 1) - lowest
    high = np.clip(latest, lowest - 1, highest) - lowest
    start = np.searchsorted(numbers, base + low)
    stop = np.searchsorted(numbers, base + high, side="right")
    return _nonnegative(start, stop)


def _in_range_by_rank(rows: Timed, key_index: Numbers, earliest: Numbers, latest: Numbers) -> Ranges:
    """`in_range` with the rank of a moment in place of the moment, where key and moment do not fit into one number."""
    moments, rank = np.unique(rows.times, return_inverse=True)
    ranked = Timed(rows.key_index, rank.astype(np.int64))
    first = np.searchsorted(moments, earliest).astype(np.int64)
    last = np.searchsorted(moments, latest, side="right").astype(np.int64) - 1
    return in_range(ranked, key_index, first, last)


def _nonnegative(start: Numbers, stop: Numbers) -> Ranges:
    begin = start.astype(np.int64, copy=False)
    return Ranges(begin, np.maximum(stop.astype(np.int64, copy=False), begin))
