"""Run a `BatchProcess` over the rows of a task: columns in, columns out. Executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.array_like import as_column, as_columns
from penstock.operators.batch_piece import BatchPiece
from penstock.operators.batch_process import BatchProcess
from penstock.operators.failed_call import blamed_on
from penstock.operators.keyed_process import Context
from penstock.operators.pieces import PieceLimits
from penstock.operators.side_outputs import SideRows
from penstock.operators.states import column_states
from penstock.operators.task_time import NO_TIME, TaskTime
from penstock.state.backends.base import OpenState
from penstock.state.sizes import in_batches

LIMITS = PieceLimits(bytes=256 << 20)
"""Rows and state that user code gets at once: it will make copies of them."""

OUTPUT_ROWS = 1 << 16
_PROCESS_BATCH, _ON_TIMERS = "process_batch()", "on_timers()"


def run_batch_process(
    operator: BatchProcess,
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    output: pa.Schema,
    context: Context,
    time: TaskTime = NO_TIME,
) -> list[pa.RecordBatch]:
    """Process every key of the table once; returns the results in batches."""
    who = f"operator {context.operator}"
    results: list[pa.RecordBatch] = []

    def take(returned: Any, call: str) -> None:
        for result in _each(returned, who, call):
            results.extend(_to_batches(result, output, who, call))

    reads = bool(column_states(operator))
    for timed in time.pieces(table, key_names, state, LIMITS, reads=reads):
        piece = BatchPiece(operator, timed, state, context, time)
        if (with_rows := piece.with_rows()) is not None:
            take(operator.process_batch(*with_rows), _PROCESS_BATCH)
            piece.take(with_rows[-1])
        for firing in piece.firing():
            with blamed_on(operator.on_timers):
                take(operator.on_timers(*firing), _ON_TIMERS)
            piece.take(firing[-1])
        piece.write(state)
    return results


class SideColumns(SideRows):
    """What `process_batch` emits: checked at once, so that an error has the line that emitted it."""

    call = _PROCESS_BATCH

    def take(self, name: str, given: Any) -> None:
        """See `SideRows.take`. `given` is what a result may be."""
        if name not in self._given:
            raise self._refusal(name, given)
        for columns in _each(given, self.who(name), self.call):
            self.keep(name, _to_batches(columns, self.schemas[name], self.who(name), self.call))


def _each(returned: Any, who: str, call: str) -> Iterator[dict[str, Any]]:
    """The results one by one, each as columns by name; `who` begins the message when they are something else."""
    if returned is None:
        return
    columns = as_columns(returned)
    if columns is not None:
        yield columns
        return
    if not isinstance(returned, Iterable) or isinstance(returned, str | bytes):
        raise _not_columns(returned, who, call)
    for result in returned:
        if result is None:
            continue
        columns = as_columns(result)
        if columns is None:
            raise _not_columns(result, who, call)
        yield columns


def _not_columns(result: Any, who: str, call: str) -> BadRecordError:
    return BadRecordError(
        f"{who}: {call} gave {result!r}; give an Arrow table, a DataFrame of pandas or polars, or a "
        "dictionary of columns"
    )


def _to_batches(columns: dict[str, Any], output: pa.Schema, who: str, call: str) -> list[pa.RecordBatch]:
    missing = [name for name in output.names if name not in columns]
    unknown = [str(name) for name in columns if name not in output.names]
    if missing or unknown:
        wrong = " and ".join(
            f"{what} {', '.join(names)}"
            for what, names in (("lacks", missing), ("has too much:", unknown))
            if names
        )
        raise BadRecordError(f"{who}: a result of {call} {wrong}; its schema has {', '.join(output.names)}")
    what = f"{who}: {call} set the column"
    arrays = [as_column(columns[field.name], field, what) for field in output]
    lengths = {name: len(array) for name, array in zip(output.names, arrays, strict=True)}
    if len(set(lengths.values())) > 1:
        raise BadRecordError(f"{who}: a result of {call} has columns of different lengths: {lengths}")
    table = pa.Table.from_arrays(arrays, schema=output)
    parts = (table.slice(start, OUTPUT_ROWS) for start in range(0, table.num_rows, OUTPUT_ROWS))
    return [batch for part in parts for batch in in_batches(part)]
