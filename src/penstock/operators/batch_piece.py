"""The state of all keys of a piece in columns, seen by calls with some of the keys, one after the other; written once. Executors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.batch_process import BatchKeys, BatchProcess, BatchRows, BatchTimers
from penstock.operators.batch_state import BatchState
from penstock.operators.column_timers import ColumnTimers
from penstock.operators.keyed_process import Context
from penstock.operators.stamps import ColumnStamps
from penstock.operators.states import column_states, lives_by_event_time, table_states, value_schema
from penstock.operators.task_time import TaskTime, TimedPiece
from penstock.operators.written_values import write_values
from penstock.state.backends.base import OpenState

Positions = npt.NDArray[np.int64]


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
        self._stamps = {
            name: ColumnStamps(lifetime, renews=one.ttl is not None and one.ttl.renews)
            for name, one in self._declared.items()
            for lifetime in one.lifetimes(name)
        }
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
        """What `process_batch` is called with; None where no key has a row."""
        starts = self._grouped.starts
        positions = np.flatnonzero(starts[1:] > starts[:-1])
        if not len(positions):
            return None
        bounds = np.append(starts[positions], starts[-1])
        rows = BatchRows(self._grouped.table, bounds)
        return self._keys(positions), rows, self._view(positions, self._context, "process_batch()")

    def firing(self) -> Iterator[tuple[BatchKeys, BatchTimers, BatchState]]:
        """What `on_timers` is called with, as often as there is something due."""
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
