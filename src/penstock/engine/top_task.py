"""The task of `top`: the first rows of each key. Executors."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.engine.subtask import OperatorTask
from penstock.operators.bad_records import BadRecords
from penstock.operators.inputs import TaskRows
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.run_top import run_top
from penstock.operators.top_rows import TopSpec
from penstock.state.backends.base import OpenState


@dataclass
class TopTask(OperatorTask):
    """The first rows of each key."""

    spec: TopSpec

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.spec.output

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,  # noqa: ARG002
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,  # noqa: ARG002
    ) -> Outputs:
        """See `OperatorTask.apply`."""
        return {RESULTS: run_top(self.spec, rows.own, state)}
