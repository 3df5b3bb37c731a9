"""Own code that is called with many keys at once, in columns: what a user writes, and how it is called. Driver and executors.

Nothing is copied until it is asked for. Calls see some keys of a piece, one call after the other; the state is written once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError
from penstock.operators.calls import blamed_on
from penstock.operators.columns import Positions
from penstock.operators.grouping import PieceLimits
from penstock.operators.outputs import SideRows
from penstock.operators.process.column_state import BatchState, ColumnTimers
from penstock.operators.process.keyed import write_values
from penstock.operators.process.user_code import Context, OpensAndCloses, TakesBroadcast
from penstock.operators.state.batch_tables import BatchColumns
from penstock.operators.state.declarations import (
    OperatorType,
    column_stamps,
    column_states,
    lives_by_event_time,
    refuse_state_assignment,
    table_states,
    value_schema,
)
from penstock.operators.state.task_time import NO_TIME, TaskTime, TimedPiece
from penstock.operators.state.timers import TakesTimerColumns
from penstock.operators.values.array_like import as_column, as_columns
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches

LIMITS = PieceLimits(bytes=256 << 20)
"""Rows and state that user code gets at once: it will make copies of them."""
OUTPUT_ROWS = 1 << 16
_PROCESS_BATCH, _ON_TIMERS = "process_batch()", "on_timers()"


class BatchKeys(BatchColumns):
    """The distinct keys of the rows, under the names of the key columns. State has one value for each of them, in this order."""


class BatchRows(BatchColumns):
    """The rows, ordered by key: those of key i are the rows `starts[i]` up to `starts[i + 1]`, or to the end for the last key."""

    def __init__(self, table: pa.Table, bounds: npt.NDArray[np.int64]) -> None:
        super().__init__(table)
        self._bounds = bounds

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """The first row of every key, as `np.add.reduceat(values, starts)` takes it."""
        return self._bounds[:-1]

    @cached_property
    def key_index(self) -> npt.NDArray[np.int64]:
        """For every row the position of its key in `keys`, as `np.bincount(key_index)` takes it."""
        counts = np.diff(self._bounds)
        return np.repeat(np.arange(len(counts), dtype=np.int64), counts)


class BatchTimers(BatchRows):
    """Timers that fire, ordered by key and moment: `timers["at"]` has the moments, `timers["by"]` is "event_time" or "clock".

    Those of key i are the rows `starts[i]` up to `starts[i + 1]`, or to the end for the last key.
    """


class BatchProcess(OpensAndCloses, TakesBroadcast, TakesTimerColumns, metaclass=OperatorType):
    """Own Python code that sees many keys at once: their rows and their state as columns, for Arrow, NumPy, pandas or polars.

    State is declared as in a `KeyedProcess` and stored the same way, so a job can change from one to the other and keep its state.
    An instance is pickled into tasks: keep settings in it. What must survive belongs into state.
    """

    @abstractmethod
    def process_batch(self, keys: BatchKeys, batch: BatchRows, state: BatchState) -> Any:
        """Handle the rows of many keys, and return or yield results: an Arrow table, a DataFrame of pandas or polars, or a
        dictionary of columns, with the columns of the schema in any order; or None.

        Called once per subtask and batch that has rows; with a very large batch several times, each time with other keys and all
        rows of those keys. Called again with the same or other rows after a recovery, on the state as it was at the checkpoint.
        Rows are ordered by key; within a key in no promised order, unless `order_by` is given.
        The classic mistake: changing the outside world here. After a failure that happens again; use a sink.
        """  # noqa: D205 - the sentence is long

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_state_assignment(self, name, f'state["{name}"] = ...')
        super().__setattr__(name, value)


# ── how it is called ───────────────────────────────────────────────────────────────────────────────


class BatchPiece:
    """Some keys with all their rows and all their state."""

    def __init__(
        self, operator: BatchProcess, timed: TimedPiece, state: OpenState, context: Context, time: TaskTime
    ) -> None:
        self._schema = value_schema(operator)
        self._grouped, self._stored = timed.piece.grouped, timed.piece.stored
        self._touches, self._context, self._clock = timed.touches, context, time.clock
        keys, uid = self._grouped.keys, context.operator
        self._declared = column_states(operator)
        self._stamps = column_stamps(operator)
        self._tables = {
            name: one.in_columns(name, state, keys, uid, timed.touches)
            for name, one in table_states(operator).items()
        }
        timers = time.timers
        self._timers = None if timers is None else ColumnTimers(timers, keys, timed.due, uid)
        self._lives_by_event_time = lives_by_event_time(operator)
        self._values: dict[str, pa.Array] = {name: self._stored.column(name) for name in self._declared}
        self._touched = {name: np.zeros(len(keys), dtype=np.bool_) for name in self._declared}

    def with_rows(self) -> tuple[BatchKeys, BatchRows, BatchState] | None:
        """The arguments of `process_batch`; None where no key has a row."""
        starts = self._grouped.starts
        positions = np.flatnonzero(starts[1:] > starts[:-1])
        if not len(positions):
            return None
        bounds = np.append(starts[positions], starts[-1])
        rows = BatchRows(self._grouped.table, bounds)
        return self._keys(positions), rows, self._view(positions, self._context, "process_batch()")

    def firing(self) -> Iterator[tuple[BatchKeys, BatchTimers, BatchState]]:
        """The arguments of `on_timers`, as often as timers are due."""
        for fires in self._timers.firing() if self._timers is not None else ():
            positions, first = np.unique(fires.key, return_index=True)
            if self._lives_by_event_time:
                moments = np.where(fires.kind == 0, fires.at_us, self._clock.touched_us)
                self._touches.fired(fires.key, moments)
            timers = BatchTimers(fires.table(), np.append(first, len(fires.key)))
            context = self._context.when_timers_fire(self._clock.watermark_us)
            yield self._keys(positions), timers, self._view(positions, context, "on_timers()")

    def _keys(self, positions: Positions) -> BatchKeys:
        columns = self._grouped.keys.columns
        whole = len(positions) == columns.num_rows
        return BatchKeys(pa.Table.from_batches([columns if whole else columns.take(pa.array(positions))]))

    def _view(self, positions: Positions, context: Context, call: str) -> BatchState:
        whole = len(positions) == len(self._grouped.keys)
        at = pa.array(positions)
        stored = self._stored if whole else self._stored.take(at)
        values = self._values if whole else {name: one.take(at) for name, one in self._values.items()}
        tables = {
            name: table if whole else table.seen_by(positions, call) for name, table in self._tables.items()
        }
        return BatchState(
            self._declared,
            stored,
            context,
            tables,
            values=values,
            expiring=self._stamps,
            positions=positions,
            timers=self._timers,
            call=call,
        )

    def take(self, view: BatchState) -> None:
        """Called when a call is over, and all its results are known: what it has changed the next one sees."""
        positions = view.positions
        whole = len(positions) == len(self._grouped.keys)
        for name, before in self._values.items():
            self._touched[name][positions] |= view.touched(name)
            new = view.values[name]
            self._values[name] = new if whole else _scattered(before, new, positions)

    def write(self, state: OpenState) -> None:
        """Write all that was changed; called once."""
        if self._declared:
            changed = np.zeros(len(self._grouped.keys), dtype=np.bool_)
            for flags in self._touched.values():
                changed |= flags
            write_values(state, self._grouped.keys, self._stamped(), changed)
        for table in self._tables.values():
            table.write()
        if self._timers is not None:
            self._timers.write()

    def _stamped(self) -> pa.Table:
        columns = {name: self._values[name] for name in self._schema.names}
        for stamp in self._stamps.values():
            stamp.load(self._stored)
        stamps = {
            stamp.name: stamp.column(columns[name], self._touched[name], self._touches)
            for name, stamp in self._stamps.items()
        }
        return pa.table({**columns, **stamps})


def _scattered(before: pa.Array, new: pa.Array, positions: Positions) -> pa.Array:
    """The values of all keys, with new ones at some places."""
    at = np.arange(len(before), dtype=np.int64)
    at[positions] = len(before) + np.arange(len(new), dtype=np.int64)
    return pa.concat_arrays([before, new]).take(pa.array(at))


def run_batch_process(
    operator: BatchProcess,
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    output: pa.Schema,
    context: Context,
    time: TaskTime = NO_TIME,
) -> list[pa.RecordBatch]:
    """Process every key of the table once; returns the results in batches."""
    who = f"operator {context.operator}"
    results: list[pa.RecordBatch] = []

    def take(returned: Any, call: str) -> None:
        for result in _each(returned, who, call):
            results.extend(_to_batches(result, output, who, call))

    reads = bool(column_states(operator))
    for timed in time.pieces(table, key_names, state, LIMITS, reads=reads):
        piece = BatchPiece(operator, timed, state, context, time)
        if (with_rows := piece.with_rows()) is not None:
            take(operator.process_batch(*with_rows), _PROCESS_BATCH)
            piece.take(with_rows[-1])
        for firing in piece.firing():
            with blamed_on(operator.on_timers):
                take(operator.on_timers(*firing), _ON_TIMERS)
            piece.take(firing[-1])
        piece.write(state)
    return results


class SideColumns(SideRows):
    """The columns that `process_batch` emits: checked at once, so that an error has the line that emitted them."""

    call = _PROCESS_BATCH

    @override
    def take(self, name: str, given: Any) -> None:
        """`given` is what a result may be."""
        if name not in self._given:
            raise self._refusal(name, given)
        for columns in _each(given, self.who(name), self.call):
            self.keep(name, _to_batches(columns, self.schemas[name], self.who(name), self.call))


def _each(returned: Any, who: str, call: str) -> Iterator[dict[str, Any]]:
    """The results one by one, each as columns by name; `who` begins the message when they are something else."""
    if returned is None:
        return
    columns = as_columns(returned)
    if columns is not None:
        yield columns
        return
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
        raise _not_columns(returned, who, call)
    for result in returned:
        if result is None:
            continue
        columns = as_columns(result)
        if columns is None:
            raise _not_columns(result, who, call)
        yield columns


def _not_columns(result: Any, who: str, call: str) -> BadRecordError:
    return BadRecordError(
        f"{who}: {call} gave {result!r}; give an Arrow table, a DataFrame of pandas or polars, or a "
        "dictionary of columns"
    )


def _to_batches(columns: dict[str, Any], output: pa.Schema, who: str, call: str) -> list[pa.RecordBatch]:
    missing = [name for name in output.names if name not in columns]
    unknown = [str(name) for name in columns if name not in output.names]
    if missing or unknown:
        wrong = " and ".join(
            f"{what} {', '.join(names)}"
            for what, names in (("lacks", missing), ("has too much:", unknown))
            if names
        )
        raise BadRecordError(f"{who}: a result of {call} {wrong}; its schema has {', '.join(output.names)}")
    what = f"{who}: {call} set the column"
    arrays = [as_column(columns[field.name], field, what) for field in output]
    lengths = {name: len(array) for name, array in zip(output.names, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise BadRecordError(f"{who}: a result of {call} has columns of different lengths: {lengths}")
    table = pa.Table.from_arrays(arrays, schema=output)
    parts = (table.slice(start, OUTPUT_ROWS) for start in range(0, table.num_rows, OUTPUT_ROWS))
    return [batch for part in parts for batch in in_batches(part)]
