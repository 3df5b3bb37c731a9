"""Call the user's code for windows with all their rows. Executors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.calls import (
    OUTPUT_ROWS,
    blamed_on,
    not_iterable,
    python_keys,
    rare_collections,
    to_table,
    yielded,
)
from penstock.operators.event_time import OperatorClock
from penstock.operators.grouping import Grouped, PieceLimits, pieces
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.process.user_code import Context, OpenedCode
from penstock.operators.python_values import as_moments, python_values
from penstock.operators.rows import Rows, RowTable
from penstock.operators.state.cells import copy_emitted
from penstock.operators.window.base import WindowTask
from penstock.operators.window.kinds import Numbers, TimeWindow, WindowProcess
from penstock.state.backends.base import OpenState
from penstock.state.handle import Due
from penstock.state.keys import KeyBatch
from penstock.state.sizes import in_batches

LIMITS = PieceLimits(rows=1 << 18, bytes=256 << 20)
"""Rows that are Python objects at the same time."""


@dataclass(frozen=True)
class WindowRows:
    """Windows with their rows: window i has the rows `bounds[i]` up to `bounds[i + 1]`, and the key in row i of `keys`."""

    keys: pa.RecordBatch
    bounds: Numbers
    rows: pa.Table
    starts: Numbers | None = None
    """The first moments of the windows; None where time has nothing to do with them."""
    ends: Numbers | None = None
    """Behind their last moments."""


@dataclass(frozen=True)
class WindowCode:
    """The user's code, and what it is called with and gives."""

    operator: WindowProcess
    output: pa.Schema
    time: pa.DataType | None
    """Of the moments of a window."""

    def results(self, windows: WindowRows, context: Context) -> Iterator[pa.RecordBatch]:
        """Call it for each window; raises `BadRecordError` with the key whose results do not fit the schema."""
        times = [] if windows.starts is None or windows.ends is None else [windows.starts, windows.ends]
        columns = [*windows.keys.columns, *(as_moments(one, self.time) for one in times)]
        named = pa.RecordBatch.from_arrays(columns, names=[str(at) for at in range(len(columns))])
        numbers = np.zeros(len(named), dtype=np.int64)
        if len(named):
            context.before_calls()
        with rare_collections():
            for piece in pieces(Grouped(KeyBatch(numbers, named), windows.bounds, windows.rows), LIMITS):
                yield from self._piece(piece, windows.keys.num_columns, context)

    def _piece(self, piece: Grouped, keys: int, context: Context) -> Iterator[pa.RecordBatch]:
        columns = piece.keys.columns.columns
        names = python_keys(pa.RecordBatch.from_arrays(columns[:keys], names=[str(at) for at in range(keys)]))
        windows: list[TimeWindow | None] = [None] * len(names)
        if len(columns) > keys:
            starts, ends = (python_values(column) for column in columns[keys:])
            windows = list(map(TimeWindow, starts, ends))
        table, given = RowTable(piece.table), _Given(self, context)
        for key, window, (start, stop) in zip(names, windows, pairwise(piece.starts.tolist()), strict=True):
            rows = Rows(table, start, stop)
            results = self.operator.process(key, window, rows, context)
            yield from given.take(key, rows, results)
        yield from given.encoded()


@dataclass(frozen=True)
class RowsRun:
    """What a batch gives: results, and the rows that came too late."""

    results: list[pa.RecordBatch]
    late: pa.Table
    waits_for: int | None


class WindowCodeSpec(Spec):
    """Own code over windows of one kind, with the columns of its stream."""

    code: WindowCode

    @property
    def output(self) -> pa.Schema:
        """The columns that the user has declared."""
        return self.code.output

    @property
    def allowed_lateness_us(self) -> int | None:
        """How long windows are kept after their end; None where they count rows."""
        return None

    @abstractmethod
    def run(self, rows: pa.Table, state: OpenState, clock: OperatorClock, context: Context) -> RowsRun:
        """Take in the rows of a batch (those of the stream, and the sort key), and call the user's code for windows that are over."""

    def task(self, context: TaskContext) -> Task:
        """The work of one subtask."""
        return WindowProcessTask(context, self)


@dataclass
class WindowProcessTask(WindowTask):
    """Calls own code over windows of any kind. What it raises ends the run."""

    spec: WindowCodeSpec

    @property
    def lateness_us(self) -> int | None:
        """The lateness that the user has allowed."""
        return self.spec.allowed_lateness_us

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """What own code gives for the windows that are over, or have late rows."""
        told, clock = self.context, self.clock
        context = Context(
            told.uid,
            told.batch,
            told.subtask,
            told.parallelism,
            _watermark_us=clock.watermark_us if self.uses_time else clock.before_us,
            _now_us=clock.now_us,
        )
        code = self.spec.code.operator
        with OpenedCode(code, context) as opened, blamed_on(code.process):
            given = self.spec.run(rows.own, state, clock, replace(context, _opened=opened))
        told.late.add(given.late)
        self._due = Due(event_us=given.waits_for)
        return {RESULTS: given.results}


class _Given:
    """Results that are encoded together. Of which key one is that does not fit is looked for only when one is met."""

    def __init__(self, code: WindowCode, context: Context) -> None:
        self._code, self._uid = code, context.operator
        self._calls: list[tuple[Any, Rows, int]] = []
        self._results: list[Any] = []

    def take(self, key: Any, rows: Rows, results: Any) -> Iterator[pa.RecordBatch]:
        """Take what a call gave. A generator runs only now."""
        if results is not None:
            if not isinstance(results, Iterable):
                raise _of(not_iterable(results, self._uid), key, rows)
            self._results += map(copy_emitted, results)
        self._calls.append((key, rows, len(self._results)))
        if len(self._results) >= OUTPUT_ROWS:
            yield from self.encoded()

    def encoded(self) -> Iterator[pa.RecordBatch]:
        """All so far as columns."""
        if self._results:
            yield from in_batches(self._table())
        self._calls, self._results = [], []

    def _table(self) -> pa.Table:
        output, said = self._code.output, yielded(self._uid)
        try:
            return to_table(self._results, output, said)
        except BadRecordError:
            start = 0
            for key, rows, stop in self._calls:
                try:
                    if start < stop:
                        to_table(self._results[start:stop], output, said)
                except BadRecordError as error:
                    raise _of(error, key, rows) from None
                start = stop
            raise


def _of(error: BadRecordError, key: Any, rows: Rows) -> BadRecordError:
    error.facts.update(key=key, row=rows)
    return error
