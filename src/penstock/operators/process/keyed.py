"""Own code that is called key by key: what a user writes, and the state of all keys of a piece while it runs. Driver and executors."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.process.user_code import Context, OpensAndCloses, TakesBroadcast
from penstock.operators.state.cells import Cell, ColumnCell, PieceKeys
from penstock.operators.state.declarations import (
    HoldsCells,
    OperatorType,
    column_stamps,
    keyed_states,
    lives_by_event_time,
    value_schema,
)
from penstock.operators.state.table_cells import TableCell
from penstock.operators.state.task_time import TimedPiece
from penstock.operators.state.timer_cell import TimersCell
from penstock.operators.state.timers import TakesTimers
from penstock.operators.state.ttl import ColumnStamps, TouchTimes
from penstock.operators.values.encoding import to_array
from penstock.operators.values.rows import Rows
from penstock.state.backends.base import OpenState
from penstock.state.keys import Flags, KeyBatch
from penstock.state.sizes import in_batches

Output = Sequence[Any] | Mapping[str, Any]


class KeyedCode(OpensAndCloses, TakesBroadcast, TakesTimers, HoldsCells, metaclass=OperatorType):
    """Own code that is called key by key, with rows of one stream (`KeyedProcess`) or of two (`KeyedCoProcess`)."""

    @abstractmethod
    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key in one batch."""


class KeyedProcess(KeyedCode):
    """Own Python code that sees the rows of one key at a time and remembers what it likes about the key.

    An instance is pickled into tasks: keep settings in it. What must survive belongs into state; anything else an
    instance remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key in one batch, and yield results (tuples in the order of the schema, or dictionaries).

        Called once per key and batch, for keys that have rows; called again with the same or other rows after a recovery, on the
        state as it was at the checkpoint. `key` is the value of the key column, a tuple for several. `rows` has a length, can
        be iterated (each row acts as a named tuple) and indexed. In no promised order, unless `order_by` is given.
        `ctx.emit` gives rows to a declared `SideOutput`.
        The classic mistake: changing the outside world here. After a failure that happens again; use a sink.
        """


# ── the state of the keys of a piece ───────────────────────────────────────────────────────────────


class Cells:
    """The cells of one operator, by the names of its states."""

    def __init__(
        self,
        by_name: Mapping[str, Cell],
        stamps: Mapping[str, ColumnStamps],
        timers: TimersCell | None = None,
        *,
        lives_by_event_time: bool = False,
    ) -> None:
        self.timers = timers
        """Those of the current key, where the operator takes any."""
        self.all = [*by_name.values(), *([] if timers is None else [timers])]
        self.touches = TouchTimes()
        self.lives_by_event_time = lives_by_event_time
        self.ending = [cell for cell in self.all if cell.ends]
        self.columns = {name: cell for name, cell in by_name.items() if isinstance(cell, ColumnCell)}
        """Those that are kept in the row of the key."""
        self.stamps = stamps
        """When those among them that expire were last touched."""
        self.tables = [cell for cell in self.all if isinstance(cell, TableCell)]
        """Those with a table of their own."""

    def load(self, timed: TimedPiece, state: OpenState, context: Context) -> None:
        """Take what is stored of the keys that come next."""
        piece, self.touches = timed.piece, timed.touches
        keys = piece.grouped.keys
        if self.timers is not None:
            self.timers.load(keys, timed.due)
        named = PieceKeys(context.operator, keys.columns)
        for name, cell in self.columns.items():
            cell.load(piece.stored.column(name), named)
        for stamps in self.stamps.values():
            stamps.load(piece.stored)
        for table in self.tables:
            table.load(state.table(table.name), keys, context.operator, state.generation, self.touches)

    def touched(self) -> dict[str, Flags]:
        """For each column in the row of the key: which keys have a value that was written, or read where reading renews it."""
        found: dict[str, Flags] = {}
        for name, cell in self.columns.items():
            found[name] = np.frombuffer(cell.dirty, dtype=np.bool_)
            if name in self.stamps and self.stamps[name].renews:
                looked = np.frombuffer(cell.looked, dtype=np.bool_)
                found[name] = found[name] | (looked & self.stamps[name].known)
        return found

    def end_call(self) -> None:
        """Called when the call for the current key is over; the loop of calls checks first whether any cell is `ending`."""
        for cell in self.ending:
            cell.end_call()

    def fired(self) -> None:
        """A timer of the current key fires: what is touched from now on is touched at its moment, or later."""
        if self.lives_by_event_time and self.timers is not None:
            self.touches.fired(np.array([self.timers.at]), np.array([self.timers.fired_us]))

    def undo(self, index: int) -> None:
        """Make all state of a key what it was before its call."""
        for cell in self.all:
            cell.undo(index)

    def memo(self) -> list[Any]:
        """A copy of all state of the current key, taken between two of its calls."""
        return [cell.memo() for cell in self.all]

    def back_to(self, memo: list[Any]) -> None:
        """Make all state of the current key what it was then."""
        for cell, one in zip(self.all, memo, strict=True):
            cell.back_to(one)

    def unfit_rows(self) -> Iterator[tuple[int, BadRecordError]]:
        """The keys, by their position, for which rows were written that do not fit, and what it is."""
        for table in self.tables:
            for index in sorted(table.touched()):
                try:
                    table.check(index)
                except BadRecordError as error:
                    yield index, error

    def write_tables(self) -> None:
        """Write the rows that were changed; raises `BadRecordError` for a value that does not fit."""
        for table in self.tables:
            table.write()
        if self.timers is not None:
            self.timers.write()


def bind(operator: KeyedCode, timers: TimersCell | None = None) -> Cells:
    """Put a cell in place of every state that a key has."""
    cells = {name: state.make_cell(name) for name, state in keyed_states(operator).items()}
    operator.__dict__.update(cells)
    lives = lives_by_event_time(operator)
    return Cells(cells, column_stamps(operator), timers, lives_by_event_time=lives)


def write_back(operator: KeyedCode, keys: KeyBatch, cells: Cells, state: OpenState, uid: str) -> None:
    """Write what was set; raises `BadRecordError`, with nothing written, for a value that does not fit."""
    by_column = cells.touched()
    touched = np.zeros(len(keys), dtype=np.bool_)
    for flags in by_column.values():
        touched |= flags
    if not touched.any():
        return
    schema = value_schema(operator)
    columns = {
        field.name: to_array(
            cells.columns[field.name].values, field, f"operator {uid}: {cells.columns[field.name].made}"
        )
        for field in schema
    }
    stamps = {
        stamp.name: stamp.column(columns[name], by_column[name], cells.touches)
        for name, stamp in cells.stamps.items()
    }
    write_values(state, keys, pa.table({**columns, **stamps}), touched)


def unfit_state(
    operator: KeyedCode, cells: Mapping[str, ColumnCell], uid: str
) -> Iterator[tuple[int, BadRecordError]]:
    """The keys, by their position, to whose state something was set that does not fit, and what it is."""
    for column in value_schema(operator):
        cell = cells[column.name]
        for index in np.flatnonzero(np.frombuffer(bytes(cell.dirty), dtype=np.bool_)).tolist():
            try:
                to_array([cell.values[index]], column, f"operator {uid}: {cell.made}")
            except BadRecordError as error:
                yield index, error


def check_state(operator: KeyedCode, cells: Cells, index: int, uid: str) -> None:
    """Raise `BadRecordError` if something was set to the state of a key that does not fit."""
    for column in value_schema(operator):
        cell = cells.columns[column.name]
        if cell.dirty[index]:
            to_array([cell.values[index]], column, f"operator {uid}: {cell.made}")
    for table in cells.tables:
        if index in table.touched():
            table.check(index)


def write_values(state: OpenState, keys: KeyBatch, values: pa.Table, touched: npt.NDArray[np.bool_]) -> None:
    """Write the values of the keys that were touched; a key without any value is forgotten."""
    if not touched.any():
        return
    if not touched.all():
        at = pa.array(np.flatnonzero(touched))
        keys, values = KeyBatch(keys.sort_keys[touched], keys.columns.take(at)), values.take(at)
    start = 0
    for batch in in_batches(values):
        state.write(keys.slice(start, start + batch.num_rows), batch, _all_null(batch))
        start += batch.num_rows


def _all_null(values: pa.RecordBatch) -> Any:
    empty = np.ones(values.num_rows, dtype=np.bool_)
    for column in values.columns:
        empty &= column.is_null().to_numpy(zero_copy_only=False)
    return empty if empty.any() else None
