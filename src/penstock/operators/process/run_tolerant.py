"""Run a `KeyedProcess` that may fail for a key: its call is undone and made again without the rows at fault. Executors.

A row is at fault if the call fails with the rows up to it, and does not with those before it; it is bad, as if it had never come.
What a key did becomes visible only when its call has returned, all it gave to results and side outputs fits their schemas and its state
fits its types. Rows are encoded for many keys at a time; only where that fails are they looked at key by key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.bad_records import BadRows, Rejected, RejectedRows, Tolerates, reason_of, take_over
from penstock.operators.calls import (
    LIMITS,
    ON_TIMER,
    OUTPUT_ROWS,
    PROCESS,
    emitted,
    not_iterable,
    rare_collections,
    to_table,
    yielded,
)
from penstock.operators.grouping import Piece
from penstock.operators.outputs import SideRows
from penstock.operators.process.co import row_table
from penstock.operators.process.keyed import Cells, KeyedCode, check_state, unfit_state, write_back
from penstock.operators.process.run_keyed import bound
from penstock.operators.process.user_code import Context
from penstock.operators.state.cells import copy_emitted
from penstock.operators.state.task_time import NO_TIME, TaskTime
from penstock.operators.state.timer_cell import TimersCell
from penstock.operators.state.timers import Timer
from penstock.operators.values.python_values import Unreadable, readable
from penstock.operators.values.rows import RowTable, WatchedRows
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches

Called = tuple[int, list[Any], Mapping[str, list[Any]]]
"""A key by its position in the piece, the results of one of its calls, and what it emitted, by side output."""
Encoded = tuple[pa.Table, npt.NDArray[np.int64]]
"""Rows, and the position of the key of each row."""

TRIED_ROWS, TRIED_TIMES = 1_000_000, 20
"""How many rows a task hands to calls that look for rows at fault: this number, and the same again for each row that it has."""

_RESULTS = ""
"""In place of the name of a side output."""
_NOTHING: Mapping[str, list[Any]] = {}


def run_process_tolerantly(
    operator: KeyedCode,
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    output: pa.Schema,
    context: Context,
    bad: BadRows,
    tolerates: Tolerates,
    sides: SideRows | None = None,
    time: TaskTime = NO_TIME,
) -> list[pa.RecordBatch]:
    """Process every key of the table once, and then its timers that are due; returns the results of the calls that were not bad.

    `sides` has what they emitted.
    """
    cells, context = bound(operator, context, time)
    rejected = RejectedRows(context.operator)
    context = replace(context, _rejected=rejected)
    tries = _Tries(TRIED_ROWS + TRIED_TIMES * table.num_rows)
    results: list[pa.RecordBatch] = []
    with rare_collections():
        for timed in time.pieces(table, key_names, state, LIMITS, reads=bool(cells.columns)):
            cells.load(timed, state, context)
            calls = _PieceCalls(
                operator,
                timed.piece,
                cells,
                key_names,
                output,
                context,
                bad,
                tolerates,
                sides,
                time,
                rejected,
                tries,
            )
            for name, encoded in calls.run(state):
                if name == _RESULTS:
                    results.extend(in_batches(encoded))
                elif sides is not None:
                    sides.keep(name, in_batches(encoded))
    return results


@dataclass
class _Tries:
    """How many rows may still be handed to calls that look for rows at fault."""

    left: int


@dataclass
class _PieceCalls:
    """The calls for the keys of one piece."""

    operator: KeyedCode
    piece: Piece
    cells: Cells
    key_names: list[str]
    output: pa.Schema
    context: Context
    bad: BadRows
    tolerates: Tolerates
    sides: SideRows | None
    time: TaskTime
    rejected: RejectedRows
    tries: _Tries
    _refused: set[int] = field(default_factory=set)
    """Keys whose results, encoded already, count for nothing."""
    _rejections: dict[int, list[Rejected]] = field(default_factory=dict)
    """What the calls of keys have rejected."""
    _again: list[Called] = field(default_factory=list)
    """Calls of refused keys that were made again."""

    def run(self, state: OpenState) -> list[tuple[str, pa.Table]]:
        """The rows of the keys that are not bad, by side output or as results."""
        encoded = [part for chunk in _in_chunks(self._called()) for part in self._encoded(chunk)]
        if self.cells.all:
            self._write_state(state)
        for rejections in self._rejections.values():
            take_over(rejections, self.bad, self.key_names)
        found = [(name, self._without_refused(rows, keys)) for name, (rows, keys) in encoded]
        again = self._all_encoded(self._again) if self._again else []
        return [*found, *((name, rows) for name, (rows, _) in again)]

    @cached_property
    def _table(self) -> RowTable:
        return row_table(self.piece.grouped.table)

    @cached_property
    def _later(self) -> Context:
        return self.context.when_timers_fire(self.time.clock.watermark_us)

    # ── calling ────────────────────────────────────────────────────────────────────────────────

    def _called(self) -> Iterator[Called]:
        """The calls of all keys. Everything in this loop costs once per key."""
        grouped = self.piece.grouped
        table, process = self._table, self.operator.process
        every, ends, timers = self.cells.all, bool(self.cells.ending), self.cells.timers
        starts, sides, rejected = grouped.starts.tolist(), self.sides, self.rejected
        for index, key in enumerate(self._keys):
            for cell in every:
                cell.at = index
            if type(key) is Unreadable:
                self._refuse_key(index, key.error())
                continue
            if timers is not None:
                # All at once: while a part of them is encoded, calls for other keys may be made again.
                yield from list(self._called_in_time(index, key, timers))
                continue
            rows = rejected.rows = WatchedRows(table, starts[index], starts[index + 1])
            try:
                results = _listed(process(key, rows, self.context), self.context.operator)
                if ends:
                    self.cells.end_call()
            except Exception as error:
                if not self.tolerates(error):
                    raise
                self._forget_call()
                yield from self._called_again(index, error, rows.at_fault)
                continue
            if rejected:
                self._rejections[index] = self.rejected.withdrawn()
                self._touch(index, range(starts[index], starts[index + 1]), starts[index])
            yield index, results, _NOTHING if sides is None else sides.withdrawn()

    def _called_in_time(self, index: int, key: Any, timers: TimersCell) -> Iterator[Called]:
        """The calls of one key that may have several. What the next one builds upon is judged before it."""
        starts = self.piece.grouped.starts
        start, stop = int(starts[index]), int(starts[index + 1])
        if start < stop:
            rows = self.rejected.rows = WatchedRows(self._table, start, stop)
            called = self._tried(index, partial(self.operator.process, key, rows, self.context), PROCESS)
            if not isinstance(called, Exception) and timers.is_due():
                called = self._judged(called, PROCESS)
            self.rejected.rows = None
            if index in self._rejections:
                self._touch(index, range(start, stop), start)
            if isinstance(called, Exception):
                yield from self._called_again(index, called, rows.at_fault)
            else:
                yield called
        yield from self._fired(index, timers)

    def _fired(self, index: int, timers: TimersCell) -> Iterator[Called]:
        """The calls for the timers of the current key that are due."""
        key, on_timer = self._keys[index], self.operator.on_timer
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
        """The results of a call, or the exception that it raises."""
        sides = self.sides
        try:
            results = _listed(call(), self.context.operator, name)
            self.cells.end_call()
        except Exception as error:
            if not self.tolerates(error):
                raise
            self._forget_call()
            return error
        if self.rejected:
            self._rejections[index] = self.rejected.withdrawn()
        return index, results, _NOTHING if sides is None else sides.withdrawn()

    def _touch(self, index: int, rows: Sequence[int], first: int = 0) -> None:
        """Set when the state of a key is touched: by these rows of the piece, except rejected ones. `first` is the number of the first."""
        if not self.cells.lives_by_event_time:
            return
        bad = {row._at - first for row, _ in self._rejections.get(index, ())}  # noqa: SLF001 - not to be taken for a column
        good = [row for at, row in enumerate(rows) if at not in bad]
        key, grouped = self.piece.grouped.keys.slice(index, index + 1), self.piece.grouped
        self.cells.touches.only(
            index, self.time.newest_of(key, grouped.table.take(pa.array(good, pa.int64())))
        )

    def _forget_call(self) -> None:
        """Drop the rows that a failed call has emitted and rejected."""
        if self.sides is not None:
            self.sides.withdrawn()
        self.rejected.withdrawn()

    def _judged(self, called: Called, name: str) -> Called | Exception:
        """The call, if its results and the state it leaves fit their types; else the error."""
        try:
            self._all_encoded([called], name)
            check_state(self.operator, self.cells, called[0], self.context.operator)
        except BadRecordError as error:
            return error
        return called

    @cached_property
    def _keys(self) -> list[Any]:
        """The keys as user code sees them; a key with an unreadable part is that part."""
        columns = self.piece.grouped.keys.columns
        parts = [
            readable(column, name) for name, column in zip(columns.schema.names, columns.columns, strict=True)
        ]
        if len(parts) == 1:
            return parts[0]
        return [
            next((part for part in key if type(part) is Unreadable), key) for key in zip(*parts, strict=True)
        ]

    # ── calling again ──────────────────────────────────────────────────────────────────────────

    def _called_again(self, index: int, error: Exception, at: int | None) -> Iterator[Called]:
        """Call again without the rows at fault, which are bad. All rows are bad where none is left or too many were tried."""
        starts = self.piece.grouped.starts
        good, found = list(range(int(starts[index]), int(starts[index + 1]))), []
        for cell in self.cells.all:
            cell.at = index
        while self.tries.left > 0:
            culprit, reason = self._culprit(index, good, error, at)
            found.append((good.pop(culprit), reason))
            called, at = self._tried_with(index, good) if good else (None, None)
            if not isinstance(called, Exception):
                break
            error = called
        else:
            self.bad.note(reason_of(error))
            found += zip(good, _reasons(error, len(good), at), strict=True)
            called, good = None, []
        if called is None:
            self._undo(index)
        self._refuse_rows(sorted(found))
        self._touch(index, good)
        if called is not None:
            yield called
        if self.cells.timers is not None:  # with fewer rows, timers may be due that were not
            yield from self._fired(index, self.cells.timers)

    def _culprit(self, index: int, rows: list[int], error: Exception, at: int | None) -> tuple[int, str]:
        """The position of a row at fault, and why. The call was seen to fail with all rows, at `at` if that is known."""
        passes, fails = 0, len(rows)
        guesses = [] if at is None else [at, at + 1]
        while fails - passes > 1:
            middle = guesses.pop() if guesses else (passes + fails) // 2
            if not passes < middle < fails:
                continue
            called, _ = self._tried_with(index, rows[:middle])
            if isinstance(called, Exception):
                fails, error = middle, called
            else:
                passes = middle
        return fails - 1, reason_of(error)

    def _tried_with(self, index: int, rows: list[int]) -> tuple[Called | Exception, int | None]:
        """The judged results of a call with some rows of the key; or the error, and the row at fault where it is known."""
        self._undo(index)
        table = row_table(self.piece.grouped.table.take(pa.array(rows, pa.int64())))
        given = self.rejected.rows = WatchedRows(table, 0, len(rows))
        called = self._tried(
            index, partial(self.operator.process, self._keys[index], given, self.context), PROCESS
        )
        self.tries.left -= len(rows) if given.at_fault is None else given.at_fault + 1
        if not isinstance(called, Exception):
            called = self._judged(called, PROCESS)
        self.rejected.rows = None
        return called, given.at_fault

    def _undo(self, index: int) -> None:
        """Undo the call for a key: its state is what it was before."""
        self.cells.undo(index)
        self._rejections.pop(index, None)

    # ── encoding ───────────────────────────────────────────────────────────────────────────────

    def _encoded(self, chunk: list[Called]) -> list[tuple[str, Encoded]]:
        """The results, and what went to each side output."""
        try:
            return self._all_encoded(chunk)
        except BadRecordError:
            return self._all_encoded([fitting for called in chunk for fitting in self._fitting(called)])

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

    def _fitting(self, called: Called) -> Iterator[Called]:
        """The call, or a repeated one with the rows whose results fit."""
        try:
            self._all_encoded([called])
        except BadRecordError as error:
            yield from self._called_again(called[0], error, None)
        else:
            yield called

    def _to_table(self, name: str, rows: list[Any], call: str) -> pa.Table:
        if self.sides is None or name == _RESULTS:
            schema, prefix = self.output, yielded(self.context.operator, call)
        else:
            schema, prefix = self.sides.schemas[name], emitted(self.sides, name)
        return to_table(rows, schema, prefix) if rows else schema.empty_table()

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
        """Refuse a call whose results are encoded already."""
        self._refused.add(index)
        self._again += self._called_again(index, error, None)

    def _refuse_key(self, index: int, error: Exception) -> None:
        """No call can be made for a key that Python cannot read: its rows are bad, and so are its timers that are due."""
        starts, timers = self.piece.grouped.starts, self.cells.timers
        rows = range(int(starts[index]), int(starts[index + 1]))
        self._refuse_rows([(row, reason_of(error)) for row in rows])
        while timers is not None and (timer := timers.next_due()) is not None:
            self._refuse_timer(index, timer, error)

    def _refuse_rows(self, found: list[tuple[int, str]]) -> None:
        """Add these rows of the piece to the bad rows."""
        rows, reasons = [row for row, _ in found], [reason for _, reason in found]
        table = row_table(self.piece.grouped.table.take(pa.array(rows, pa.int64())))
        for came in table.as_they_came(0, len(rows)):
            if came.rows.num_rows:
                self.bad.add(came.rows, reasons[: came.rows.num_rows], came.keys or self.key_names)
                reasons = reasons[came.rows.num_rows :]

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
        return [copy_emitted(result) for result in results]
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
