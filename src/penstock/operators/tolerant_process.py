"""Run a `KeyedProcess` that may fail for a key: its call is undone, its rows are bad, and the others go on. Executors.

What a key did becomes visible only when its call has returned, all it gave to results and side outputs fits their schemas and its state
fits its types. Rows are encoded for many keys at a time; only where that fails are they looked at key by key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.bad_records import BadRecords, Tolerates, reason_of
from penstock.operators.given_rows import as_given
from penstock.operators.grouping import group_rows
from penstock.operators.keyed_process import Cells, Context, KeyedProcess, bind
from penstock.operators.pieces import Piece, pieces_with_state
from penstock.operators.rows import RowTable, WatchedRows
from penstock.operators.run_process import (
    LIMITS,
    OUTPUT_ROWS,
    emitted,
    not_iterable,
    rare_collections,
    to_table,
    unfit_state,
    write_back,
    yielded,
)
from penstock.operators.side_outputs import SideRows
from penstock.operators.unreadable import Unreadable, readable
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches

Called = tuple[int, list[Any], Mapping[str, list[Any]]]
"""A key by its position in the piece, the results of its call, and what it emitted, by side output."""
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
) -> list[pa.RecordBatch]:
    """Process every key of the table once; returns the results of those that were not bad, `sides` has what they emitted."""
    cells = bind(operator)
    results: list[pa.RecordBatch] = []
    with rare_collections():
        for piece in pieces_with_state(
            group_rows(table, key_names), state if cells.columns else None, LIMITS
        ):
            calls = _PieceCalls(operator, piece, cells, key_names, output, context, bad, tolerates, sides)
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
    _refused: set[int] = field(default_factory=set)

    def run(self, state: OpenState) -> list[tuple[str, pa.Table]]:
        """The rows of the keys that are not bad, by side output or as results."""
        self.cells.load(self.piece, state, self.context)
        encoded = [part for chunk in _in_chunks(self._called()) for part in self._encoded(chunk)]
        if self.cells.all:
            self._write_state(state)
        return [(name, self._without_refused(rows, keys)) for name, (rows, keys) in encoded]

    # ── calling ────────────────────────────────────────────────────────────────────────────────

    def _called(self) -> Iterator[Called]:
        """Whatever stands in this loop is paid once per key."""
        grouped = self.piece.grouped
        table, process = RowTable(grouped.table), self.operator.process
        every, ends = self.cells.all, bool(self.cells.ending)
        starts, sides = grouped.starts.tolist(), self.sides
        for index, key in enumerate(self._keys()):
            if type(key) is Unreadable:
                self._refuse(index, key.error())
                continue
            for cell in every:
                cell.at = index
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
                self._refuse(index, error, rows.at)
                continue
            yield index, results, _NOTHING if sides is None else sides.withdrawn()

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

    def _all_encoded(self, chunk: list[Called]) -> list[tuple[str, Encoded]]:
        emitted_by: dict[str, list[Called]] = {}
        for index, _, by_side in chunk if self.sides is not None else ():
            for name, rows in by_side.items():
                emitted_by.setdefault(name, []).append((index, rows, _NOTHING))
        parts = {_RESULTS: chunk, **emitted_by}
        return [(name, self._encoded_rows(name, of_keys)) for name, of_keys in parts.items()]

    def _encoded_rows(self, name: str, of_keys: list[Called]) -> Encoded:
        rows = [row for called in of_keys for row in called[1]]
        indexes, lengths = [called[0] for called in of_keys], [len(called[1]) for called in of_keys]
        return self._to_table(name, rows), np.repeat(np.array(indexes, dtype=np.int64), lengths)

    def _fits(self, called: Called) -> bool:
        try:
            self._all_encoded([called])
        except BadRecordError as error:
            self._refuse(called[0], error)
            return False
        return True

    def _to_table(self, name: str, rows: list[Any]) -> pa.Table:
        if self.sides is None or name == _RESULTS:
            schema, said = self.output, yielded(self.context.operator)
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
            self._refuse(index, error)

    def _refuse_unfit_state(self) -> None:
        for index, error in unfit_state(self.operator, self.cells.columns, self.context.operator):
            self._refuse(index, error)

    # ── what is bad ────────────────────────────────────────────────────────────────────────────

    def _refuse(self, index: int, error: Exception, at: int | None = None) -> None:
        """The call for a key counts for nothing: its state is what it was, and all its rows are bad."""
        self._refused.add(index)
        self.cells.undo(index)
        grouped = self.piece.grouped
        start, stop = int(grouped.starts[index]), int(grouped.starts[index + 1])
        rows = grouped.table.slice(start, stop - start)
        self.bad.add(rows, _reasons(error, rows.num_rows, at), self.key_names, at_fault=at or 0)


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
        return [as_given(result) for result in results]
    except TypeError as error:
        if not isinstance(results, Iterable):
            raise not_iterable(results, operator) from error
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
