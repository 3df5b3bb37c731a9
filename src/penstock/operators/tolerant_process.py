"""Run a `KeyedProcess` that may fail for a key: its call is undone, its rows are bad, and the others go on. Executors.

What a key did becomes visible only when its call has returned, all its results fit the schema and its state fits its types. Results
are encoded for many keys at a time; only where that fails are they looked at key by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.bad_records import BadRecords, Tolerates, reason_of
from penstock.operators.grouping import group_rows
from penstock.operators.keyed_process import Context, KeyedProcess, ValueCell, bind
from penstock.operators.pieces import Piece, pieces_with_state
from penstock.operators.python_values import python_values
from penstock.operators.rows import RowTable, WatchedRows
from penstock.operators.run_process import (
    LIMITS,
    OUTPUT_ROWS,
    not_iterable,
    rare_collections,
    to_table,
    unfit_state,
    write_back,
)
from penstock.operators.unreadable import Unreadable, readable
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches

Called = tuple[int, list[Any]]
"""A key by its position in the piece, and what its call gave."""


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
) -> list[pa.RecordBatch]:
    """Process every key of the table once; returns the results of those that were not bad."""
    cells = bind(operator)
    results: list[pa.RecordBatch] = []
    with rare_collections():
        for piece in pieces_with_state(group_rows(table, key_names), state if cells else None, LIMITS):
            calls = _PieceCalls(operator, piece, cells, key_names, output, context, bad, tolerates)
            for encoded in calls.run(state):
                results.extend(in_batches(encoded))
    return results


@dataclass
class _PieceCalls:
    """The calls for the keys of one piece."""

    operator: KeyedProcess
    piece: Piece
    cells: dict[str, ValueCell]
    key_names: list[str]
    output: pa.Schema
    context: Context
    bad: BadRecords
    tolerates: Tolerates
    _refused: set[int] = field(default_factory=set)

    def run(self, state: OpenState) -> list[pa.Table]:
        for name, cell in self.cells.items():
            cell.load(python_values(self.piece.stored.column(name)))
        encoded = [self._encoded(chunk) for chunk in _in_chunks(self._called())]
        if self.cells:
            self._write_state(state)
        return [self._without_refused(results, keys) for results, keys in encoded]

    # ── calling ────────────────────────────────────────────────────────────────────────────────

    def _called(self) -> Iterator[Called]:
        """Whatever stands in this loop is paid once per key."""
        grouped = self.piece.grouped
        table, cells, process = RowTable(grouped.table), list(self.cells.values()), self.operator.process
        starts = grouped.starts.tolist()
        for index, key in enumerate(self._keys()):
            if type(key) is Unreadable:
                self._refuse(index, key.error())
                continue
            for cell in cells:
                cell.index = index
            rows = WatchedRows(table, starts[index], starts[index + 1])
            try:
                results = _listed(process(key, rows, self.context), self.context.operator)
            except Exception as error:
                if not self.tolerates(error):
                    raise
                self._refuse(index, error, rows.at)
                continue
            yield index, results

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

    def _encoded(self, chunk: list[Called]) -> tuple[pa.Table, npt.NDArray[np.int64]]:
        """The results, and of which key each is."""
        try:
            results = self._to_table(chunk)
        except BadRecordError:
            chunk = [called for called in chunk if self._fits(called)]
            results = self._to_table(chunk)
        indexes, lengths = [index for index, _ in chunk], [len(given) for _, given in chunk]
        return results, np.repeat(np.array(indexes, dtype=np.int64), lengths)

    def _fits(self, called: Called) -> bool:
        try:
            self._to_table([called])
        except BadRecordError as error:
            self._refuse(called[0], error)
            return False
        return True

    def _to_table(self, chunk: list[Called]) -> pa.Table:
        results = [result for _, given in chunk for result in given]
        return to_table(results, self.output, self.context.operator) if results else self.output.empty_table()

    def _without_refused(self, results: pa.Table, keys: npt.NDArray[np.int64]) -> pa.Table:
        late = np.isin(keys, list(self._refused))
        return results.filter(pa.array(~late)) if late.any() else results

    # ── state ──────────────────────────────────────────────────────────────────────────────────

    def _write_state(self, state: OpenState) -> None:
        keys, uid = self.piece.grouped.keys, self.context.operator
        try:
            write_back(self.operator, keys, self.cells, state, uid)
        except BadRecordError:
            self._refuse_unfit_state()
            write_back(self.operator, keys, self.cells, state, uid)

    def _refuse_unfit_state(self) -> None:
        for index, error in unfit_state(self.operator, self.cells, self.context.operator):
            self._refuse(index, error)

    # ── what is bad ────────────────────────────────────────────────────────────────────────────

    def _refuse(self, index: int, error: Exception, at: int | None = None) -> None:
        """The call for a key counts for nothing: its state is what it was, and all its rows are bad."""
        self._refused.add(index)
        self._undo(index)
        grouped = self.piece.grouped
        start, stop = int(grouped.starts[index]), int(grouped.starts[index + 1])
        rows = grouped.table.slice(start, stop - start)
        self.bad.add(rows, _reasons(error, rows.num_rows, at), self.key_names, at_fault=at or 0)

    def _undo(self, index: int) -> None:
        """Read the state of the key again: what was changed in place is changed in the objects that were read before."""
        for name, cell in self.cells.items():
            stored = self.piece.stored.column(name).slice(index, 1)
            cell.values[index] = python_values(stored)[0]
            cell.dirty[index] = 0


def _reasons(error: Exception, rows: int, at: int | None) -> list[str]:
    """For each row; where it is known which of them it was, the others say that it was another."""
    reason = reason_of(error)
    if at is None:
        return [reason] * rows
    other = f"another row of this key in the batch: {reason}"
    return [reason if position == at else other for position in range(rows)]


def _listed(results: Any, operator: str) -> list[Any]:
    if results is None:
        return []
    try:
        return list(results)
    except TypeError as error:
        if not isinstance(results, Iterable):
            raise not_iterable(results, operator) from error
        raise


def _in_chunks(called: Iterator[Called]) -> Iterator[list[Called]]:
    """Whole keys, as many as have the results that are encoded together."""
    chunk: list[Called] = []
    results = 0
    for one in called:
        chunk.append(one)
        results += len(one[1])
        if results >= OUTPUT_ROWS:
            yield chunk
            chunk, results = [], 0
    if chunk:
        yield chunk
