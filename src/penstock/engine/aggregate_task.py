"""What a subtask of `aggregate` does with what Spark has made of the rows of a batch. Executors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.engine.dead_letters import ROW, ROWS
from penstock.engine.operator_task import OperatorTask
from penstock.errors import InternalError
from penstock.operators.aggregates import AggregateSpec
from penstock.operators.bad_records import BadRecords
from penstock.operators.distinct_values import WHOSE
from penstock.operators.everything import shown_key
from penstock.operators.grouping import null_keys
from penstock.operators.inputs import TaskRows
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.run_aggregate import run_aggregate
from penstock.operators.task_time import TaskTime
from penstock.operators.time_column import TimeColumn
from penstock.state.backends.base import OpenState
from penstock.wording import counted

EVENT_TIME_US = "__penstock_event_time"
"""The newest event time of the rows of a key, where its state lives by it."""


@dataclass
class AggregateTask(OperatorTask):
    """SQL aggregates, merged. Spark has reduced the rows of a key to one; those without a key it has only counted, or left as they are."""

    specs: Sequence[AggregateSpec]

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return pa.schema(
            [*shown_key(self.layout.key), *(pa.field(spec.name, spec.output) for spec in self.specs)]
        )

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,  # noqa: ARG002
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,  # noqa: ARG002
    ) -> Outputs:
        """See `OperatorTask.apply`. A sum that overflows is about all rows of a key so far, and stays a failure."""
        newest = EVENT_TIME_US if EVENT_TIME_US in rows.own.column_names else None
        believed = TimeColumn(EVENT_TIME_US, of_results=True)  # Spark has taken no other times
        results = run_aggregate(
            self.specs,
            rows.own,
            state,
            key_names=list(self.keys),
            lifetimes=self.layout.lifetimes,
            time=TaskTime(self.assignment.clock_of(self.uid).judging(believed), newest),
        )
        return {RESULTS: results}

    def rows_given(self, table: pa.Table) -> int:
        """See `OperatorTask.rows_given`."""
        return rows_stood_for(table)

    def shown_columns(self, table: pa.Table) -> list[str]:  # noqa: ARG002
        """See `OperatorTask.shown_columns`. Of the rows of a key only the key is left; one with one column is null, as is said."""
        return list(self.keys) if len(self.keys) > 1 else []

    def without_null_keys(self, table: pa.Table, bad: BadRecords, keys: Sequence[str]) -> pa.Table:
        """See `OperatorTask.without_null_keys`."""
        left = without_null_keys(table, keys, bad)
        return left.drop_columns([name for name in (ROW, ROWS) if name in left.column_names])


def rows_stood_for(table: pa.Table) -> int:
    """For how many rows of the stream those stand that Spark has aggregated."""
    if ROWS not in table.column_names:
        return int(table.num_rows)
    if WHOSE in table.column_names:  # a row that has a value, too, is counted once
        table = table.filter(pc.equal(table.column(WHOSE), 0))
    return int(pc.sum(table.column(ROWS), min_count=0).as_py())


def without_null_keys(table: pa.Table, keys: Sequence[str], bad: BadRecords) -> pa.Table:
    """Leave out the rows that have no key, of those that Spark has aggregated."""
    flags, reasons = null_keys(table, list(keys))
    numbers = table.column(ROWS).to_numpy()[flags].tolist()
    if ROW in table.column_names and reasons:
        rows = table.column(ROW).filter(pa.array(flags)).combine_chunks()
        rows = rows.take(pa.array(np.repeat(np.arange(len(rows)), numbers)))
        repeated = [reason for reason, number in zip(reasons, numbers, strict=True) for _ in range(number)]
        bad.add(pa.RecordBatch.from_struct_array(rows), repeated, keys)
    elif reasons and bad.kept:
        raise InternalError(
            f"{counted(sum(numbers), 'row')} without a key came to operator {bad.uid} without {ROW}: they are to be kept and could only "
            "be counted"
        )
    elif reasons:
        bad.add_number(sum(numbers), reasons[0])
    return table.filter(pa.array(~flags))
