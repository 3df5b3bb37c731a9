"""Own code for two streams with the same key, on one state. Driver (declared) and executors (run).

The rows of both inputs are in one table, grouped by key, and are separated again for the calls of a key. The key columns have the names of
the left input. Columns of the right input have a prefix, so that no two names are the same.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.operators.calls import not_iterable
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.process.keyed import KeyedCode, Output
from penstock.operators.process.user_code import Context
from penstock.operators.values.rows import CameAs, Rows, RowTable
from penstock.state.keys import SORT_KEY

_RIGHT = "__penstock_right:"
_RIGHT_KEY = "__penstock_right_key:"
TIME = "__penstock_time:"
"""The event time of a row, whichever input it is of."""
NO_CLOCK = OperatorClock()
"""For rows without event time."""


class KeyedCoProcess(KeyedCode):
    """Own Python code that sees the rows of one key of two streams, and has one state for both.

    For `left.key_by("k").connect(right.key_by("id")).process(...)`. Declare states, side outputs and `on_timer` as in a `KeyedProcess`.
    """

    @abstractmethod
    def process_left(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key of the left stream in one batch, and yield results as `KeyedProcess.process` does.

        Called once per key and batch, for keys that have such rows, before `process_right` of the same key and batch; called again
        after a recovery, on the state as it was at the checkpoint.
        The classic mistake: to count on a left row coming before the right rows that belong to it. Which batch a row is in depends on
        when it was read: keep in state what came first, on either side.
        """

    @abstractmethod
    def process_right(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key of the right stream in one batch, after `process_left` of the same key and batch."""

    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterator[Output]:
        """Calls `process_left`, then `process_right`, each if it has rows; not to be overridden."""
        left, right = rows.of_inputs()
        for given, call in ((left, self.process_left), (right, self.process_right)):
            if not len(given):
                continue
            results = call(key, given, ctx)
            if results is None:
                continue
            if not isinstance(results, Iterable):
                raise not_iterable(results, ctx.operator, f"{call.__name__}()")
            yield from results


def in_one_table(
    left: pa.Table,
    right: pa.Table,
    keys: Sequence[str],
    right_keys: Sequence[str],
    times: tuple[TimeColumn | None, TimeColumn | None] = (None, None),
    *,
    clock: OperatorClock = NO_CLOCK,
) -> pa.Table:
    """Left rows first, then right ones; each has nulls in the columns of the other. A time that is not believed of its input is null."""
    kinds = [left.schema.field(name).type for name in keys]
    renamed = [
        name if name == SORT_KEY else f"{_RIGHT_KEY if name in right_keys else _RIGHT}{name}"
        for name in right.column_names
    ]
    other = right.rename_columns(renamed)
    for key, right_key, kind in zip(keys, right_keys, kinds, strict=True):
        other = other.append_column(key, right.column(right_key).cast(kind))
    if any(times):
        left, other = (
            table.append_column(TIME, _times(rows, column, clock))
            for table, rows, column in ((left, left, times[0]), (other, right, times[1]))
        )
    return pa.concat_tables([left, other], promote_options="default")


def _times(rows: pa.Table, time: TimeColumn | None, clock: OperatorClock) -> pa.ChunkedArray:
    if time is None:
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.timestamp("us"))])
    moments = rows.column(time.column)
    numbers = moments.cast(pa.timestamp("us", moments.type.tz)).cast(pa.int64())
    believed = pc.less_equal(numbers, clock.judging(time).latest_us)
    moments = pc.subtract(numbers, time.earlier_us).cast(pa.timestamp("us"))
    return pc.if_else(believed, moments, pa.scalar(None, moments.type))


def row_table(columns: pa.Table) -> RowTable:
    """The rows of a piece, as calls see them."""
    two = any(name.startswith((_RIGHT, _RIGHT_KEY)) for name in columns.column_names)
    return TwoInputTable(columns) if two else RowTable(columns)


class TwoInputTable(RowTable):
    """Rows of two inputs, ordered by key, of each key the left ones first."""

    def __init__(self, columns: pa.Table) -> None:
        super().__init__(columns)
        names = [name for name in columns.column_names if name != TIME]
        of_right = [name for name in names if name.startswith((_RIGHT, _RIGHT_KEY))]
        own = [name.split(":", 1)[1] for name in of_right]
        self._right_keys = [name.split(":", 1)[1] for name in of_right if name.startswith(_RIGHT_KEY)]
        self._left = RowTable(columns.select([name for name in names if name not in of_right]))
        self._right = RowTable(columns.select(of_right).rename_columns(own), self._right_keys)
        # a key column of the right input is never null
        is_left = columns.column(f"{_RIGHT_KEY}{self._right_keys[0]}").is_null().to_numpy()
        self._lefts_before: list[int] = np.concatenate(([0], np.cumsum(is_left))).tolist()

    @override
    def of_inputs(self, start: int, stop: int) -> tuple[tuple[RowTable, int, int], tuple[RowTable, int, int]]:
        middle = start + self._lefts_before[stop] - self._lefts_before[start]
        return (self._left, start, middle), (self._right, middle, stop)

    @override
    def as_they_came(self, start: int, stop: int) -> Iterator[CameAs]:
        (left, _, middle), (right, _, _) = self.of_inputs(start, stop)
        yield from left.as_they_came(start, middle)
        yield from right.as_they_came(middle, stop)
