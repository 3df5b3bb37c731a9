"""Own code without a key: what a user writes, and how it is run; and `process_broadcast` of any operator."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.operators.bad_records import BadRows, EndsTheRun, RejectedRows, take_over
from penstock.operators.calls import (
    LIMITS,
    OUTPUT_ROWS,
    encode_sides,
    not_iterable,
    rare_collections,
    to_table,
    yielded,
)
from penstock.operators.grouping import PieceLimits
from penstock.operators.outputs import SideRows
from penstock.operators.process.keyed import Output
from penstock.operators.process.user_code import Context, OpensAndCloses, TakesBroadcast, check_no_results
from penstock.operators.state.cells import copy_emitted
from penstock.operators.state.declarations import HoldsCells, OperatorType
from penstock.operators.state.subtask_states import SubtaskCells
from penstock.operators.values.rows import Rows, RowTable
from penstock.state.sizes import cut, in_batches, row_bytes


class Process(OpensAndCloses, TakesBroadcast, HoldsCells, metaclass=OperatorType):
    """Own Python code that sees the rows of a subtask, without a key, and keeps what it needs in an `OperatorListState`.

    An instance is pickled into tasks: keep settings in it. What must survive belongs into state; anything else an
    instance remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(self, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one subtask in one batch, and yield results (tuples in the order of the schema, or dictionaries).

        Called once per subtask and batch that has rows; with a very large batch several times, each time with other rows. Called
        again with the same or other rows after a recovery, on the state as it was at the checkpoint. Rows of one partition
        of the input come to one subtask, and in their order, unless `order_by` gives another. `rows` has a length, can be iterated
        (each row acts as a named tuple) and indexed. `ctx.emit` gives rows to a declared `SideOutput`.
        The classic mistake: state about something that many subtasks see rows of. That needs `key_by` and a `KeyedProcess`.
        """


def run_unkeyed(
    operator: Process,
    table: pa.Table,
    own: SubtaskCells,
    *,
    output: pa.Schema,
    context: Context,
    sides: SideRows | None = None,
    bad: BadRows | None = None,
    limits: PieceLimits = LIMITS,
) -> list[pa.RecordBatch]:
    """Process all rows, in as few calls as memory allows; returns the results in batches. `sides` has what was emitted.

    `bad` takes the rows that it rejects; None where these end the run.
    """
    results: list[pa.RecordBatch] = []
    rejected = EndsTheRun(context.operator) if bad is None else RejectedRows(context.operator)
    context = replace(context, _rejected=rejected)
    with rare_collections():
        for part in _parts(table, limits):
            rejected.rows = _rows(part)
            for chunk in _chunks(operator.process(rejected.rows, context), context.operator):
                results.extend(in_batches(to_table(chunk, output, yielded(context.operator))))
                _encode(sides)
            _encode(sides)
            own.end_call()
            if isinstance(rejected, EndsTheRun):
                rejected.check()
            elif bad is not None:
                take_over(rejected.withdrawn(), bad, [])
    return results


def run_broadcast(operator: TakesBroadcast, table: pa.Table, own: SubtaskCells, context: Context) -> None:
    """Give an operator all rows of its broadcast side."""
    call: Callable[..., object] = operator.process_broadcast
    with own.broadcasting():
        check_no_results(call(_rows(table), context), context)


def _encode(sides: SideRows | None) -> None:
    if sides is not None:
        encode_sides(sides)


def _rows(table: pa.Table) -> Rows:
    return Rows(RowTable(table), 0, table.num_rows)


def _chunks(results: Any, operator: str) -> Iterator[list[Any]]:
    """The results of a call, in chunks that are encoded together."""
    if results is None:
        return
    try:
        left = map(copy_emitted, results)
    except TypeError as error:
        raise not_iterable(results, operator) from error
    while chunk := list(islice(left, OUTPUT_ROWS)):
        yield chunk


def _parts(table: pa.Table, limits: PieceLimits) -> Iterator[pa.Table]:
    """The rows in their order, cut where they would be too many at once."""
    sizes = np.zeros(table.num_rows, dtype=np.int64)
    if table.nbytes > limits.bytes:
        for column in table.columns:
            sizes += np.concatenate([row_bytes([chunk]) for chunk in column.chunks])
    for first, end in cut(sizes, limits.bytes):
        for start in range(first, end, limits.rows):
            yield table.slice(start, min(limits.rows, end - start))
