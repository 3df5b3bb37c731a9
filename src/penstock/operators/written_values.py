"""What the calls of a piece have left in the rows of their keys, written in one go. Executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.encoding import to_array
from penstock.operators.process.keyed import Cells, KeyedCode
from penstock.operators.state.cells import ColumnCell
from penstock.operators.state.declarations import value_schema
from penstock.state.backends.base import OpenState
from penstock.state.keys import KeyBatch
from penstock.state.sizes import in_batches


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
