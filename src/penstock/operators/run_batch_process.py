"""Run a `BatchProcess` over the rows of a task: columns in, columns out. Executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.array_like import as_column, as_columns
from penstock.operators.batch_process import BatchKeys, BatchProcess, BatchRows
from penstock.operators.batch_state import BatchState
from penstock.operators.grouping import group_rows
from penstock.operators.keyed_process import Context
from penstock.operators.pieces import PieceLimits, pieces_with_state
from penstock.operators.run_process import write_values
from penstock.operators.side_outputs import SideRows
from penstock.operators.states import column_lifetimes, column_states, table_states, value_schema
from penstock.state.backends.base import OpenState, with_stamps
from penstock.state.sizes import in_batches

LIMITS = PieceLimits(bytes=256 << 20)
"""Rows and state that user code gets at once: it will make copies of them."""

OUTPUT_ROWS = 1 << 16


def run_batch_process(
    operator: BatchProcess,
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    output: pa.Schema,
    context: Context,
) -> list[pa.RecordBatch]:
    """Process every key of the table once; returns the results in batches."""
    declared, tables = column_states(operator), table_states(operator)
    schema = with_stamps(value_schema(operator), column_lifetimes(operator))
    who = f"operator {context.operator}"
    results: list[pa.RecordBatch] = []
    for piece in pieces_with_state(group_rows(table, key_names), state if declared else None, LIMITS):
        grouped = piece.grouped
        own = {
            name: one.in_columns(name, state, grouped.keys, context.operator) for name, one in tables.items()
        }
        view = BatchState(declared, piece.stored, context, own, state.now_us)
        keys = BatchKeys(pa.Table.from_batches([grouped.keys.columns]))
        returned = operator.process_batch(keys, BatchRows(grouped.table, grouped.starts), view)
        for result in _each(returned, who):
            results.extend(_to_batches(result, output, who))
        if declared:
            values = pa.Table.from_arrays(view.values(), schema=schema)
            write_values(state, grouped.keys, values, view.changed())
        for table_of_keys in own.values():
            table_of_keys.write()
    return results


class SideColumns(SideRows):
    """What `process_batch` emits: checked at once, so that an error has the line that emitted it."""

    call = "process_batch()"

    def take(self, name: str, given: Any) -> None:
        """See `SideRows.take`. `given` is what a result may be."""
        if name not in self._given:
            raise self._refusal(name, given)
        for columns in _each(given, self.who(name)):
            self.keep(name, _to_batches(columns, self.schemas[name], self.who(name)))


def _each(returned: Any, who: str) -> Iterator[dict[str, Any]]:
    """The results one by one, each as columns by name; `who` begins the message when they are something else."""
    if returned is None:
        return
    columns = as_columns(returned)
    if columns is not None:
        yield columns
        return
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
        raise _not_columns(returned, who)
    for result in returned:
        if result is None:
            continue
        columns = as_columns(result)
        if columns is None:
            raise _not_columns(result, who)
        yield columns


def _not_columns(result: Any, who: str) -> BadRecordError:
    return BadRecordError(
        f"{who}: process_batch() gave {result!r}; give an Arrow table, a DataFrame of pandas or polars, or a "
        "dictionary of columns"
    )


def _to_batches(columns: dict[str, Any], output: pa.Schema, who: str) -> list[pa.RecordBatch]:
    missing = [name for name in output.names if name not in columns]
    unknown = [str(name) for name in columns if name not in output.names]
    if missing or unknown:
        wrong = " and ".join(
            f"{what} {', '.join(names)}"
            for what, names in (("lacks", missing), ("has too much:", unknown))
            if names
        )
        raise BadRecordError(
            f"{who}: a result of process_batch() {wrong}; its schema has {', '.join(output.names)}"
        )
    what = f"{who}: process_batch() set the column"
    arrays = [as_column(columns[field.name], field, what) for field in output]
    lengths = {name: len(array) for name, array in zip(output.names, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise BadRecordError(
            f"{who}: a result of process_batch() has columns of different lengths: {lengths}"
        )
    table = pa.Table.from_arrays(arrays, schema=output)
    parts = (table.slice(start, OUTPUT_ROWS) for start in range(0, table.num_rows, OUTPUT_ROWS))
    return [batch for part in parts for batch in in_batches(part)]
