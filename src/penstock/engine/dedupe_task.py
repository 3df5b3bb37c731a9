"""The task of `dedupe`: the first row of each value. Executors."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.engine.subtask import OperatorTask
from penstock.operators.bad_records import BadRecords
from penstock.operators.dedupe import DedupeSpec, run_dedupe
from penstock.operators.inputs import TaskRows
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.state.backends.base import OpenState


@dataclass
class DedupeTask(OperatorTask):
    """The first row of each value. Time brings nothing about in its state but that what nobody asks for is gone."""

    spec: DedupeSpec

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.spec.columns

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,  # noqa: ARG002
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,
    ) -> Outputs:
        """See `OperatorTask.apply`."""
        clock = self.assignment.clock_of(self.uid)
        given = run_dedupe(self.spec, rows.own, state, clock, operator=self.uid)
        late.add(given.late)
        return {RESULTS: given.passed}
