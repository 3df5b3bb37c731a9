"""What windows of all kinds share: columns of their tables, times of rows, late rows, what user code gets, and their task.

Driver and executors. `last` is the last moment of a window, one microsecond before its end: a window closes when the watermark reaches it.

Spark aggregates the rows of a batch by pane. Late rows get a number in place of their pane that is no time, so they are groups of their
own, of which only the number of rows is computed.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError
from penstock.operators.base import Task
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.process.keyed import Output
from penstock.operators.process.user_code import Context, OpensAndCloses
from penstock.operators.values.python_values import MICROSECONDS
from penstock.operators.values.rows import Rows
from penstock.operators.views import Shown, TimestampColumn
from penstock.state.backends.sorted_lookup import lookup
from penstock.state.backends.sorted_rows import SortedBatch, in_order, sorting_positions
from penstock.state.handle import GENERATION_SHIFT, Due
from penstock.state.keys import Flags, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US
from penstock.wording import counted, in_so_many_us

WINDOW_START, WINDOW_END = "window_start", "window_end"
"""The columns that an aggregate over windows of time adds to its results."""

Numbers = npt.NDArray[np.int64]


_TUMBLING = re.compile(r"windows of (\d+ \w+)(?: from \d+ \w+ on)?")


def size_of_tumbling(said: str) -> int | None:
    """The size of tumbling windows, from their text; None for other windows, and for texts that name no windows."""
    found = _TUMBLING.fullmatch(said)
    return None if found is None else in_so_many_us(found[1])


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
        # own code could not read another
        within = (numbers >= MICROSECONDS[0]) & (numbers <= MICROSECONDS[1])
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
