"""The kinds of windows that a user can name, and what they share: columns of their tables, times of rows, late rows, their task.

    tumbling("1min")            one after the other
    sliding("10min", "1min")    one of ten minutes every minute
    session("30min")            rows of a key that follow each other within the gap
    count_window(100)           every hundred rows of a key

Driver and executors. Durations are microseconds. A window has all moments from its start up to, but not including, its end. `last` is its
last moment, one microsecond before the end: the window closes when the watermark reaches it.

Spark aggregates the rows of a batch by pane. Late rows get a number in place of their pane that is no time, so they are groups of their
own, of which only the number of rows is computed.

What all kinds of windows share: columns of their tables, times of rows, rows that come too late, and their task. Driver and executors.

Among the rows that Spark has aggregated, those that come too late have a number that is no time, in place of the stretch of time in which
their windows lie. So they are groups of their own, of which nothing is computed but how many rows they are.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.config import Duration, seconds, whole_number
from penstock.errors import BadRecordError, ConfigError
from penstock.operators.base import Task
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.process.keyed import Output
from penstock.operators.process.user_code import Context, OpensAndCloses
from penstock.operators.python_values import MICROSECONDS
from penstock.operators.rows import Rows
from penstock.operators.views import Shown, TimestampColumn
from penstock.state.backends.sorted_lookup import lookup
from penstock.state.backends.sorted_rows import SortedBatch, in_order, sorting_positions
from penstock.state.handle import GENERATION_SHIFT, Due
from penstock.state.keys import Flags, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US, in_microseconds
from penstock.wording import counted, exactly, in_so_many_us

WINDOW_START, WINDOW_END = "window_start", "window_end"
"""The columns that an aggregate over windows of time adds to its results."""
LONGEST_S = 1000 * 365 * 24 * 3600
MOST_OVERLAPS = 2_000
"""The most sliding windows that a row may be in; a day every minute has 1,440. Each is a row of state, and all are in memory at once."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TimeWindows:
    """Windows of `size_us` that begin every `every_us`, counted from `offset_us`."""

    size_us: int
    every_us: int
    offset_us: int = 0

    @property
    def pane_us(self) -> int:
        """The length of a pane: all rows of a pane are in the same windows."""
        return gcd(self.size_us, self.every_us)

    def windows_of(self, panes: Numbers) -> tuple[Numbers, Numbers]:
        """The windows of each pane: positions in `panes` (their first moments), and the last moments of the windows."""
        newest = panes - (panes - self.offset_us) % self.every_us
        counts = (self.size_us - (panes - newest) + self.every_us - 1) // self.every_us
        at = np.repeat(np.arange(len(panes)), counts)
        back = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
        return at, newest[at] - back * self.every_us + (self.size_us - 1)

    def starts(self, lasts: Numbers) -> Numbers:
        """The starts of the windows with these last moments."""
        return lasts - (self.size_us - 1)

    def __str__(self) -> str:
        slide = "" if self.every_us == self.size_us else f" every {exactly(self.every_us)}"
        offset = f" from {exactly(self.offset_us)} on" if self.offset_us else ""
        return f"windows of {exactly(self.size_us)}{slide}{offset}"


@dataclass(frozen=True)
class SessionWindows:
    """Sessions: rows of a key of which each follows another within the gap."""

    gap_us: int

    def __str__(self) -> str:
        return f"sessions with gaps of {exactly(self.gap_us)}"


@dataclass(frozen=True)
class CountWindows:
    """Windows of `n` rows of a key."""

    n: int

    def __str__(self) -> str:
        return f"windows of {self.n} rows"


Windows = TimeWindows | SessionWindows | CountWindows

_TUMBLING = re.compile(r"windows of (\d+ \w+)(?: from \d+ \w+ on)?")


def size_of_tumbling(said: str) -> int | None:
    """The size of tumbling windows, from their text; None for other windows, and for texts that name no windows."""
    found = _TUMBLING.fullmatch(said)
    return None if found is None else in_so_many_us(found[1])


def tumbling(size: Duration, *, offset: Duration = "0s") -> TimeWindows:
    """Windows one after the other: `tumbling("1min")`. They begin at multiples of `size` since 1970 in UTC, moved by `offset`."""
    size_us = _length("size", size)
    return TimeWindows(size_us, size_us, _offset(offset, size_us))


def sliding(size: Duration, every: Duration, *, offset: Duration = "0s") -> TimeWindows:
    """Windows that overlap: with `sliding("10min", "1min")` a window begins every minute, and a row is in ten of them."""
    size_us, every_us = _length("size", size), _length("every", every)
    if every_us > size_us:
        raise ConfigError(
            f"sliding({size!r}, {every!r}): windows would begin less often than they are long, so that rows between two of them would be "
            "in none; choose every <= size, and leave out rows with transform(...) if that is what you want",
            size=size,
            every=every,
        )
    if size_us > every_us * MOST_OVERLAPS:
        raise ConfigError(
            f"sliding({size!r}, {every!r}): each row would be in {-(-size_us // every_us):,} windows, more than {MOST_OVERLAPS:,}; begin "
            "windows less often",
            size=size,
            every=every,
        )
    return TimeWindows(size_us, every_us, _offset(offset, every_us))


def session(gap: Duration) -> SessionWindows:
    """A window for each stretch of activity of a key: it ends when no row has come for `gap`."""
    return SessionWindows(_length("gap", gap))


def count_window(n: int) -> CountWindows:
    """A window of every `n` rows of a key. A window that is not full stays open, however much time passes."""
    return CountWindows(whole_number("n", n, minimum=1))


def _length(name: str, given: Duration) -> int:
    length = seconds(name, given, exclusive=True)
    if length > LONGEST_S:
        raise ConfigError(f"{name}={given!r} is longer than 1,000 years", **{name: given})
    length_us = in_microseconds(length)
    if length_us < 1:
        raise ConfigError(
            f"{name}={given!r} is too short: it must be at least a microsecond", **{name: given}
        )
    return length_us


def _offset(given: Duration, every_us: int) -> int:
    return in_microseconds(seconds("offset", given)) % every_us


class TimeWindow(NamedTuple):
    """All moments from `start` on, up to `end` and without it; of the type of the event time, in UTC.

    One that reaches beyond the years 1 to 9999 begins or ends with the first or last moment that Python knows.
    """

    start: datetime
    end: datetime


class WindowProcess(OpensAndCloses, ABC):
    """Own Python code that sees all rows of a window of a key when it closes.

    An instance is pickled into tasks: keep settings in it. Anything else it remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(
        self, key: Any, window: TimeWindow | None, rows: Rows, ctx: Context
    ) -> Iterable[Output] | None:
        """Handle the rows of one window, and yield results (tuples in the order of the schema, or dictionaries).

        Called when the watermark has passed the end of the window, and again with all its rows when late rows come within the allowed
        lateness; of a count window when it is full, with `window` None. Called again after a recovery.
        `ctx.watermark` is where event time has come to, `ctx.now` the time of the batch by the driver's clock.
        `key` is the value of the key column, a tuple for several. `rows` are in the order in which they came, or in that of `order_by`.
        The classic mistake: adding the result to something outside. A window with allowed lateness may have several results, of which
        the last counts: write them by key and window.
        """


LAST = "__penstock_last"
"""The last moment of a window."""
PLACE = "__penstock_place"
"""A number that orders the rows of a window by arrival."""
PANE = "__penstock_pane"
"""A column that Spark computes: the first moment of the pane of a row, or `LATE`, or `ABSURD`."""
KEYS_AT_ONCE = 2048
PORTION_BYTES = 64 << 20
"""How many keys, and bytes of stored rows, are read at once."""


def rows_in(rows: KeyBatch, others: Sequence[KeyBatch], *, by_time: bool = False) -> Flags:
    """Which of these rows are among others. The rows are in ascending order of the first number of their table, the others in any order."""
    found = np.zeros(len(rows), dtype=np.bool_)
    for other in others:
        if len(other) and len(rows):
            columns = tuple(other.columns.columns)
            table = SortedBatch(other.sort_keys, None, columns, (), other.orders, by_time=by_time)
            table = table if in_order(table) else table.take(sorting_positions(table))
            found |= lookup([(table,)], rows, pa.schema([]))[1]
    return found


def in_key_order(rows: KeyBatch) -> npt.NDArray[np.int64]:
    """The positions that put rows in the order of a table by key."""
    orders = rows.orders if rows.orders is not None else np.zeros(len(rows), dtype=np.int64)
    return np.lexsort((orders, rows.sort_keys))


def arrival_numbers(generation: int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Numbers that order rows by arrival over all batches: the generation of the state, then the position in the batch."""
    return (generation << GENERATION_SHIFT) + positions


LATE = LONG_AGO_US - 1
"""The pane of a row whose windows have all closed."""
ABSURD = LONG_AGO_US - 2
"""The pane of a row without an event time, or with one that is not believed."""


def without_late_rows(
    rows: pa.Table, pane: str, number: str, clock: OperatorClock, operator: str
) -> tuple[pa.Table, int]:
    """The rows that count, and how many came too late. The column `number` has the number of rows that each stands for."""
    panes = rows.column(pane).to_numpy()
    late = panes < LONG_AGO_US
    if not late.any():
        return rows, 0
    numbers = rows.column(number).to_numpy()
    absurd = int(numbers[panes == ABSURD].sum())
    if absurd and clock.refuses_absurd:
        raise refused(absurd, operator)
    return rows.filter(pa.array(~late)), int(np.sum(numbers[late]))


def refused(rows: int, operator: str) -> BadRecordError:
    """The error for rows whose event time is missing or absurd, where such rows end the run."""
    return BadRecordError(
        f"operator {operator}: {counted(rows, 'row has', 'rows have')} no event time, or one too far ahead of the clock; nothing of this "
        "batch is kept; filter such rows out before, or read them with late()",
        operator=operator,
        rows=rows,
    )


@dataclass(frozen=True)
class RowTimes:
    """The event time of each row in microseconds, 0 where it is missing or absurd."""

    numbers: Numbers
    sensible: Flags

    @classmethod
    def of(cls, rows: pa.Table, time: TimeColumn, clock: OperatorClock, *, operator: str) -> RowTimes:
        """Read the times of rows. A missing or absurd time ends the run where the source asks for that."""
        clock, column = clock.judging(time), rows.column(time.column)
        known = column.is_valid().to_numpy()
        numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).fill_null(0).to_numpy()
        within = (numbers >= MICROSECONDS[0]) & (
            numbers <= MICROSECONDS[1]
        )  # own code could not read another
        sensible: Flags = known & within & (numbers <= clock.latest_us)
        if clock.refuses_absurd and not sensible.all():
            raise refused(int(np.count_nonzero(~sensible)), operator)
        return cls(np.where(sensible, numbers - time.earlier_us, 0), sensible)


def joined_stretches(keys: Numbers, firsts: Numbers, lasts: Numbers) -> tuple[Numbers, Numbers]:
    """The order of ranges of time by key and first moment, and where each merged range starts in that order.

    Two ranges of a key merge when no moment lies between them: when one begins at most one microsecond after the last moment of the
    other, as in Flink.
    """
    order = np.lexsort((firsts, keys))
    keys, firsts, lasts = keys[order], firsts[order], lasts[order]
    changes = keys[1:] != keys[:-1]
    so_far = _latest_so_far(np.concatenate(([0], np.cumsum(changes))), lasts) if len(order) else lasts
    apart = changes | (firsts[1:] > so_far[:-1] + 1)
    starts = np.concatenate(([0], np.flatnonzero(apart) + 1, [len(order)])) if len(order) else np.zeros(1)
    return order, starts.astype(np.int64)


def _latest_so_far(groups: Numbers, lasts: Numbers) -> Numbers:
    """For each row, the latest moment of its group so far. Rows are ordered by group, and groups are numbered from 0.

    Moments become ranks, so that those of the next group can be made greater without an overflow.
    """
    by_rank = np.argsort(lasts, kind="stable")
    rank = np.empty_like(by_rank)
    rank[by_rank] = np.arange(len(lasts))
    highest = np.maximum.accumulate(groups * len(lasts) + rank)
    latest: Numbers = lasts[by_rank[highest - groups * len(lasts)]]
    return latest


_SIZE = re.compile(r"(?:rows of )?windows of (\d+ \w+)")


def shown_bounds(table: str) -> tuple[Shown, Shown]:
    """The start and end of a tumbling or sliding window, as a user sees them. The name of the table has the size of the windows."""
    said = _SIZE.match(table)
    size_us = (in_so_many_us(said[1]) if said else None) or 0
    return TimestampColumn(WINDOW_START, LAST, 1 - size_us), TimestampColumn(WINDOW_END, LAST, 1)


@dataclass
class WindowTask(Task):
    """Windows of any kind in one subtask and one batch."""

    _due: Due = field(default=Due(), init=False)

    @property
    def lateness_us(self) -> int | None:
        """How long windows accept late rows after their end; None where windows count rows."""
        return None

    @property
    def row_time(self) -> TimeColumn | None:
        """The column by which Spark has put rows into panes; None where it has not."""
        return None

    @property
    @override
    def uses_time(self) -> bool:
        return self.lateness_us is not None

    @override
    def due(self) -> Due:
        return self._due

    def over_us(self) -> int | None:
        """Windows up to the watermark have closed. The end of a drained input does not count: later input may open them again."""
        if self.lateness_us is None:
            return None
        clock = self.clock
        is_end = clock.watermark_us >= FAR_AWAY_US
        over_us = clock.over_us if is_end else max(clock.over_us, clock.watermark_us - self.lateness_us)
        return None if over_us <= LONG_AGO_US else over_us

    @property
    def clock(self) -> OperatorClock:
        """At least once, the state may be of a later batch than the watermark: windows that had closed in it are not opened again."""
        clock, over_us = self.context.clock, self.context.over_us
        clock = clock if self.row_time is None else clock.judging(self.row_time)
        return clock if over_us is None else replace(clock, over_us=max(clock.over_us, over_us))
