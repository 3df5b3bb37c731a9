"""Run a `KeyedProcess` over the rows of a task: state of all keys is read and written in one go. Executors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.bad_records import EndsTheRun
from penstock.operators.calls import (
    LIMITS,
    ON_TIMER,
    OUTPUT_ROWS,
    PROCESS,
    encode_calls,
    encode_sides,
    not_iterable,
    python_keys,
    rare_collections,
)
from penstock.operators.grouping import Grouped
from penstock.operators.outputs import SideRows
from penstock.operators.process.co import row_table
from penstock.operators.process.keyed import Cells, KeyedCode, bind, unfit_state, write_back
from penstock.operators.process.user_code import Context
from penstock.operators.state.cells import copy_emitted, copy_emitted_flat, may_change
from penstock.operators.state.task_time import NO_TIME, TaskTime
from penstock.operators.state.timer_cell import TimersCell
from penstock.operators.state.timers import Timer
from penstock.operators.values.rows import Rows
from penstock.places import place_of_function
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches


def run_process(
    operator: KeyedCode,
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    output: pa.Schema,
    context: Context,
    sides: SideRows | None = None,
    time: TaskTime = NO_TIME,
) -> list[pa.RecordBatch]:
    """Process every key of the table once, and then its timers that are due; returns the results in batches.

    Emitted rows are added to `sides`.
    """
    cells, context = bound(operator, context, time)
    rejected = EndsTheRun(context.operator)
    context = replace(context, _rejected=rejected)
    contexts = context, context.when_timers_fire(time.clock.watermark_us)
    results: list[pa.RecordBatch] = []
    with rare_collections():
        for timed in time.pieces(table, key_names, state, LIMITS, reads=bool(cells.columns)):
            cells.load(timed, state, context)
            calls = _Calls(operator, timed.piece.grouped, cells, contexts, sides)
            for chunk in calls.run(output):
                results.extend(in_batches(calls.encoded(chunk, output)))
            if sides is not None:
                encode_sides(sides)
            if cells.all:
                calls.write_state(state)
    rejected.check()
    return results


def bound(operator: KeyedCode, context: Context, time: TaskTime) -> tuple[Cells, Context]:
    """The cells of an operator's states, and the context of its `process`."""
    if time.timers is None:
        return bind(operator), context
    timers = TimersCell(time.timers, context.operator)
    return bind(operator, timers), replace(context, _timers=timers)


class _Chunk:
    """Results that are encoded together. `began` has the number of results at the start of each call."""

    __slots__ = ("before", "began", "results")

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.began: list[int] = []
        self.before = 0
        """The number of calls in earlier chunks; the last of them may have results in this one, too."""

    @property
    def newest(self) -> int:
        """The number of the current call in the piece."""
        return self.before + len(self.began) - 1

    def clear(self) -> None:
        """Make room for the next results."""
        self.before += len(self.began)
        self.began.clear()
        self.results.clear()

    def by_call(self) -> Iterator[tuple[int, list[Any]]]:
        """The results of each call that has any, with its number in the piece."""
        for at, (start, end) in enumerate(pairwise([0, *self.began, len(self.results)])):
            if start < end:
                yield self.before + at - 1, self.results[start:end]


class _Calls:
    """The calls for the keys of one piece. Only when a result or a state does not fit is its key searched for."""

    def __init__(
        self,
        operator: KeyedCode,
        piece: Grouped,
        cells: Cells,
        contexts: tuple[Context, Context],
        sides: SideRows | None,
    ) -> None:
        self._operator = operator
        self._process = _encoding(operator.process, sides)
        self._on_timer = _encoding(operator.on_timer, sides)
        self._cells = cells
        self._context, self._later = contexts
        self._made: list[tuple[int, Timer | None]] = []
        """The key and timer of each call, if the operator takes timers. Otherwise there is one call for each key."""
        self._columns = piece.keys
        self._table = row_table(piece.table)
        self._starts: list[int] = piece.starts.tolist()
        self._keys = python_keys(piece.keys.columns)

    def run(self, output: pa.Schema) -> Iterator[_Chunk]:
        """Process the keys. The chunk is the same each time, with other results."""
        chunk = _Chunk()
        timers = self._cells.timers
        called = self._called(chunk) if timers is None else self._called_in_time(chunk, timers)
        results = map(copy_emitted if may_change(output) else copy_emitted_flat, chain.from_iterable(called))
        while True:
            try:
                chunk.results.extend(islice(results, OUTPUT_ROWS))
            except TypeError as error:
                self._check_iterable(called, chunk.newest, error)
                raise
            if not chunk.results:
                return
            yield chunk
            chunk.clear()

    def _called(self, chunk: _Chunk) -> Generator[Iterable[Any], None, None]:
        """The results of each key. Work in this loop is paid for every key. The length of a list is correct even while it is extended."""
        process, table, starts, context = self._process, self._table, self._starts, self._context
        every, ends = self._cells.all, bool(self._cells.ending)
        given, begin = chunk.results, chunk.began.append
        for index, key, start, stop in zip(
            range(len(self._keys)), self._keys, starts[:-1], starts[1:], strict=True
        ):
            begin(len(given))
            for cell in every:
                cell.at = index
            results = process(key, Rows(table, start, stop), context)
            if results is not None:
                yield results
            if ends:
                self._cells.end_call()

    def _called_in_time(self, chunk: _Chunk, timers: TimersCell) -> Generator[Iterable[Any], None, None]:
        """The results of each key of an operator with timers: rows first, then time. A key may have only timers."""
        process, on_timer, context, later = self._process, self._on_timer, self._context, self._later
        table, starts, cells = self._table, self._starts, self._cells
        ends, notes = bool(cells.ending), cells.lives_by_event_time
        made, begin, given = self._made.append, chunk.began.append, chunk.results
        for index, key, start, stop in zip(
            range(len(self._keys)), self._keys, starts[:-1], starts[1:], strict=True
        ):
            for cell in cells.all:
                cell.at = index
            if start < stop:
                made((index, None))
                begin(len(given))
                results = process(key, Rows(table, start, stop), context)
                if results is not None:
                    yield results
                if ends:
                    cells.end_call()
            while (timer := timers.next_due()) is not None:
                made((index, timer))
                begin(len(given))
                if notes:
                    cells.fired()
                results = on_timer(key, timer, later)
                if results is not None:
                    yield results
                if ends:
                    cells.end_call()

    def encoded(self, chunk: _Chunk, output: pa.Schema) -> pa.Table:
        """Results as columns; raises `BadRecordError` with the key whose results do not fit the schema."""
        calls = (
            (self._name(call), results, partial(self._of_call, call)) for call, results in chunk.by_call()
        )
        return encode_calls(chunk.results, output, self._context.operator, calls)

    def write_state(self, state: OpenState) -> None:
        """Write what was set; raises `BadRecordError` with the key whose value does not fit."""
        uid = self._context.operator
        try:
            write_back(self._operator, self._columns, self._cells, state, uid)
            self._cells.write_tables()
        except BadRecordError:
            columns = unfit_state(self._operator, self._cells.columns, uid)
            for index, error in chain(columns, self._cells.unfit_rows()):
                raise self._of(index, error) from None
            raise

    def _check_iterable(self, called: Generator[Any, None, None], call: int, cause: TypeError) -> None:
        """Raise a clear error if `process` returned something that cannot be iterated, and not merely failed while it was iterated."""
        results = inspect.getgeneratorlocals(called).get("results", ())
        if not isinstance(results, Iterable):
            wrong = not_iterable(results, self._context.operator, self._name(call))
            raise self._of_call(call, wrong) from cause

    def _call(self, number: int) -> tuple[int, Timer | None]:
        """The key for which a call was made, and the timer, where it was made for one."""
        return self._made[number] if self._made else (number, None)

    def _name(self, call: int) -> str:
        return PROCESS if self._call(call)[1] is None else ON_TIMER

    def _of_call(self, call: int, error: BadRecordError) -> BadRecordError:
        index, timer = self._call(call)
        if timer is None:
            return self._of(index, error)
        error.facts.update(key=self._keys[index], row=timer, code=place_of_function(self._operator.on_timer))
        return error

    def _of(self, index: int, error: BadRecordError) -> BadRecordError:
        rows = Rows(self._table, self._starts[index], self._starts[index + 1])
        error.facts.update(key=self._keys[index], row=rows if len(rows) else None)
        return error


def _encoding(process: Callable[..., Any], sides: SideRows | None) -> Callable[..., Any]:
    """Wrap the function: it first encodes emitted rows of earlier calls if there are many, so that their errors do not blame this key."""
    if sides is None:
        return process

    def call(*given: Any) -> Any:
        if sides.holds(OUTPUT_ROWS):
            encode_sides(sides)
        return process(*given)

    return call
