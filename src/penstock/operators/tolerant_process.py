"""Run a `KeyedProcess` that may fail for a key: its call is undone, its rows are bad, and the others go on. Executors.

What a key did becomes visible only when its call has returned, all it gave to results and side outputs fits their schemas and its state
fits its types. Rows are encoded for many keys at a time; only where that fails are they looked at key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.bad_records import BadRecords, Tolerates, reason_of
from penstock.operators.given_rows import as_given
from penstock.operators.keyed_process import Cells, Context, KeyedProcess
from penstock.operators.pieces import Piece
from penstock.operators.rows import RowTable, WatchedRows
from penstock.operators.run_process import (
    LIMITS,
    ON_TIMER,
    OUTPUT_ROWS,
    PROCESS,
    bound,
    emitted,
    not_iterable,
    rare_collections,
    to_table,
    yielded,
)
from penstock.operators.side_outputs import SideRows
from penstock.operators.task_time import NO_TIME, TaskTime
from penstock.operators.timer_cell import TimersCell
from penstock.operators.timers import Timer
from penstock.operators.two_input_rows import row_table
from penstock.operators.unreadable import Unreadable, readable
from penstock.operators.written_values import check_state, unfit_state, write_back
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches

Called = tuple[int, list[Any], Mapping[str, list[Any]]]
"""A key by its position in the piece, the results of one of its calls, and what it emitted, by side output."""
Encoded = tuple[pa.Table, npt.NDArray[np.int64]]
"""Rows, and of which key each is."""

_RESULTS = ""
"""In place of the name of a side output."""
_NOTHING: Mapping[str, list[Any]] = {}


def run_process_tolerantly(
    operator: KeyedProcess,
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    output: pa.Schema,
    context: Context,
    bad: BadRecords,
    tolerates: Tolerates,
    sides: SideRows | None = None,
    time: TaskTime = NO_TIME,
) -> list[pa.RecordBatch]:
    """Process every key of the table once, and then its timers that are due; returns the results of the calls that were not bad.

    `sides` has what they emitted.
    """
    cells, context = bound(operator, context, time)
    results: list[pa.RecordBatch] = []
    with rare_collections():
        for timed in time.pieces(table, key_names, state, LIMITS, reads=bool(cells.columns)):
            cells.load(timed, state, context)
            calls = _PieceCalls(
                operator, timed.piece, cells, key_names, output, context, bad, tolerates, sides, time
            )
            for name, encoded in calls.run(state):
                if name == _RESULTS:
                    results.extend(in_batches(encoded))
                elif sides is not None:
                    sides.keep(name, in_batches(encoded))
    return results


@dataclass
class _PieceCalls:
    """The calls for the keys of one piece."""

    operator: KeyedProcess
    piece: Piece
    cells: Cells
    key_names: list[str]
    output: pa.Schema
    context: Context
    bad: BadRecords
    tolerates: Tolerates
    sides: SideRows | None
    time: TaskTime
    _refused: set[int] = field(default_factory=set)

    def run(self, state: OpenState) -> list[tuple[str, pa.Table]]:
        """The rows of the keys that are not bad, by side output or as results."""
        encoded = [part for chunk in _in_chunks(self._called()) for part in self._encoded(chunk)]
        if self.cells.all:
            self._write_state(state)
        return [(name, self._without_refused(rows, keys)) for name, (rows, keys) in encoded]

    @cached_property
    def _table(self) -> RowTable:
        return row_table(self.piece.grouped.table)

    @cached_property
    def _later(self) -> Context:
        return self.context.when_timers_fire(self.time.clock.watermark_us)

    # ── calling ────────────────────────────────────────────────────────────────────────────────

    def _called(self) -> Iterator[Called]:
        """Whatever stands in this loop is paid once per key."""
        grouped = self.piece.grouped
        table, process = self._table, self.operator.process
        every, ends, timers = self.cells.all, bool(self.cells.ending), self.cells.timers
        starts, sides = grouped.starts.tolist(), self.sides
        for index, key in enumerate(self._keys()):
            if type(key) is Unreadable:
                self._refuse(index, key.error())
                continue
            for cell in every:
                cell.at = index
            if timers is not None:
                yield from self._called_in_time(index, key, timers)
                continue
            rows = WatchedRows(table, starts[index], starts[index + 1])
            try:
                results = _listed(process(key, rows, self.context), self.context.operator)
                if ends:
                    self.cells.end_call()
            except Exception as error:
                if not self.tolerates(error):
                    raise
                if sides is not None:
                    sides.withdrawn()
                self._refuse(index, error, rows.at_fault)
                continue
            yield index, results, _NOTHING if sides is None else sides.withdrawn()

    def _called_in_time(self, index: int, key: Any, timers: TimersCell) -> Iterator[Called]:
        """The calls of one key that may have several. What the next one builds upon is judged before it."""
        process, on_timer = self.operator.process, self.operator.on_timer
        starts = self.piece.grouped.starts
        start, stop = int(starts[index]), int(starts[index + 1])
        if start < stop:
            rows = WatchedRows(self._table, start, stop)
            called = self._tried(index, partial(process, key, rows, self.context), PROCESS)
            if not isinstance(called, Exception) and timers.is_due():
                called = self._judged(called, PROCESS)
            if isinstance(called, Exception):
                self._refuse(index, called, rows.at_fault)
            else:
                yield called
        while (timer := timers.next_due()) is not None:
            memo, call = self.cells.memo(), partial(on_timer, key, timer, self._later)
            called = self._tried(index, call, ON_TIMER)
            if not isinstance(called, Exception):
                called = self._judged(called, ON_TIMER)
            if isinstance(called, Exception):
                self.cells.back_to(memo)
                self._refuse_timer(index, timer, called)
            else:
                self.cells.fired()
                yield called

    def _tried(self, index: int, call: Callable[[], Any], name: str) -> Called | Exception:
        """What a call gives, or what it raises."""
        sides = self.sides
        try:
            results = _listed(call(), self.context.operator, name)
            self.cells.end_call()
        except Exception as error:
            if not self.tolerates(error):
                raise
            if sides is not None:
                sides.withdrawn()
            return error
        return index, results, _NOTHING if sides is None else sides.withdrawn()

    def _judged(self, called: Called, name: str) -> Called | Exception:
        """The same, if all of it fits, and all state that it leaves; or why it counts for nothing."""
        try:
            self._all_encoded([called], name)
            check_state(self.operator, self.cells, called[0], self.context.operator)
        except BadRecordError as error:
            return error
        return called

    def _keys(self) -> list[Any]:
        """As user code sees them; one with a part that cannot be read is that part."""
        columns = self.piece.grouped.keys.columns
        parts = [
            readable(column, name) for name, column in zip(columns.schema.names, columns.columns, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return [
            next((part for part in key if type(part) is Unreadable), key) for key in zip(*parts, strict=True)
        ]

    # ── encoding ───────────────────────────────────────────────────────────────────────────────

    def _encoded(self, chunk: list[Called]) -> list[tuple[str, Encoded]]:
        """The results, and what went to each side output."""
        try:
            return self._all_encoded(chunk)
        except BadRecordError:
            return self._all_encoded([called for called in chunk if self._fits(called)])

    def _all_encoded(self, chunk: list[Called], call: str = PROCESS) -> list[tuple[str, Encoded]]:
        emitted_by: dict[str, list[Called]] = {}
        for index, _, by_side in chunk if self.sides is not None else ():
            for name, rows in by_side.items():
                emitted_by.setdefault(name, []).append((index, rows, _NOTHING))
        parts = {_RESULTS: chunk, **emitted_by}
        return [(name, self._encoded_rows(name, of_keys, call)) for name, of_keys in parts.items()]

    def _encoded_rows(self, name: str, of_keys: list[Called], call: str) -> Encoded:
        rows = [row for called in of_keys for row in called[1]]
        indexes, lengths = [called[0] for called in of_keys], [len(called[1]) for called in of_keys]
        return self._to_table(name, rows, call), np.repeat(np.array(indexes, dtype=np.int64), lengths)

    def _fits(self, called: Called) -> bool:
        try:
            self._all_encoded([called])
        except BadRecordError as error:
            self._refuse(called[0], error)
            return False
        return True

    def _to_table(self, name: str, rows: list[Any], call: str) -> pa.Table:
        if self.sides is None or name == _RESULTS:
            schema, said = self.output, yielded(self.context.operator, call)
        else:
            schema, said = self.sides.schemas[name], emitted(self.sides, name)
        return to_table(rows, schema, said) if rows else schema.empty_table()

    def _without_refused(self, results: pa.Table, keys: npt.NDArray[np.int64]) -> pa.Table:
        late = np.isin(keys, list(self._refused))
        return results.filter(pa.array(~late)) if late.any() else results

    # ── state ──────────────────────────────────────────────────────────────────────────────────

    def _write_state(self, state: OpenState) -> None:
        keys, uid = self.piece.grouped.keys, self.context.operator
        self._refuse_unfit_rows()
        try:
            write_back(self.operator, keys, self.cells, state, uid)
        except BadRecordError:
            self._refuse_unfit_state()
            write_back(self.operator, keys, self.cells, state, uid)
        self.cells.write_tables()

    def _refuse_unfit_rows(self) -> None:
        """Before anything is written: all state of a key counts, or none of it."""
        for index, error in self.cells.unfit_rows():
            self._refuse_given(index, error)

    def _refuse_unfit_state(self) -> None:
        for index, error in unfit_state(self.operator, self.cells.columns, self.context.operator):
            self._refuse_given(index, error)

    # ── what is bad ────────────────────────────────────────────────────────────────────────────

    def _refuse_given(self, index: int, error: Exception) -> None:
        """The same when its results are encoded already."""
        self._refused.add(index)
        self._refuse(index, error)

    def _refuse(self, index: int, error: Exception, at: int | None = None) -> None:
        """The call for a key counts for nothing: its state is what it was, and all its rows are bad."""
        self.cells.undo(index)
        grouped = self.piece.grouped
        start, stop = int(grouped.starts[index]), int(grouped.starts[index + 1])
        reasons = _reasons(error, stop - start, at)
        self.bad.note(reasons[at or 0] if reasons else "")
        for rows, keys in self._table.as_they_came(start, stop):
            if rows.num_rows:
                self.bad.add(rows, reasons[: rows.num_rows], keys or self.key_names)
                reasons = reasons[rows.num_rows :]

    def _refuse_timer(self, index: int, timer: Timer, error: Exception) -> None:
        """A call for a timer counts for nothing. The timer has fired all the same: its letter has key and moment in place of a row."""
        key = pa.Table.from_batches([self.piece.grouped.keys.columns.slice(index, 1)])
        row = key.append_column("timer_at", pa.array([timer.at], pa.timestamp("us", "UTC")))
        row = row.append_column("timer_by", pa.array([timer.by]))
        self.bad.add(row, [f"{ON_TIMER}: {reason_of(error)}"], self.key_names)


def _reasons(error: Exception, rows: int, at: int | None) -> list[str]:
    """For each row; where it is known which of them it was, the others say that it was another."""
    reason = reason_of(error)
    if at is None:
        return [reason] * rows
    other = f"another row of this key in the batch: {reason}"
    return [reason if position == at else other for position in range(rows)]


def _listed(results: Any, operator: str, call: str = PROCESS) -> list[Any]:
    if results is None:
        return []
    try:
        return [as_given(result) for result in results]
    except TypeError as error:
        if not isinstance(results, Iterable):
            raise not_iterable(results, operator, call) from error
        raise


def _in_chunks(called: Iterator[Called]) -> Iterator[list[Called]]:
    """Whole keys, as many as have the rows that are encoded together."""
    chunk: list[Called] = []
    rows = 0
    for one in called:
        chunk.append(one)
        rows += len(one[1])
        if one[2]:
            rows += sum(map(len, one[2].values()))
        if rows >= OUTPUT_ROWS:
            yield chunk
            chunk, rows = [], 0
    if chunk:
        yield chunk
