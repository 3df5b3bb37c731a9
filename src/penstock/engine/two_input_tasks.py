"""Tasks of operators with two inputs. Executors."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from penstock.engine.operator_task import OperatorTask
from penstock.errors import InternalError
from penstock.operators.bad_records import BadRecords
from penstock.operators.inputs import RightInput, TaskRows
from penstock.operators.join.interval import run_join
from penstock.operators.join.lookup import LookupSpec, run_lookup
from penstock.operators.join.spec import JoinSpec
from penstock.operators.late_rows import LateRows
from penstock.operators.outputs import LATE_RIGHT, RESULTS, Outputs
from penstock.state.backends.base import OpenState
from penstock.state.handle import Due


@dataclass
class TwoInputTask(OperatorTask):
    """An operator of Penstock's own that puts rows of two streams side by side."""

    right: RightInput
    late_right: pa.Schema | None = field(default=None, kw_only=True)
    """The columns of the late rows of its right input, where somebody reads them."""

    takes_null_keys = True
    """A row without a key is not bad: null equals nothing, and so it has no partner."""

    @property
    def right_input(self) -> RightInput | None:
        """See `OperatorTask.right_input`."""
        return self.right

    @property
    def late_right_columns(self) -> pa.Schema | None:
        """See `OperatorTask.late_right_columns`."""
        return self.late_right


def both(rows: TaskRows) -> tuple[pa.Table, pa.Table]:
    """The rows of both inputs."""
    if rows.right is None:
        raise InternalError("an operator with two inputs was given one")
    return rows.own, rows.right


@dataclass
class JoinTask(TwoInputTask):
    """Rows of two streams side by side."""

    spec: JoinSpec
    _due: Due = field(default_factory=Due, init=False)

    @property
    def result_schema(self) -> pa.Schema:
        """See `OperatorTask.result_schema`."""
        return self.spec.output

    @property
    def uses_time(self) -> bool:
        """See `OperatorTask.uses_time`."""
        return self.spec.uses_time

    def apply(
        self,
        rows: TaskRows,
        state: OpenState,
        subtask: int,  # noqa: ARG002
        bad: BadRecords,  # noqa: ARG002
        late: LateRows,
    ) -> Outputs:
        """See `OperatorTask.apply`."""
        left, right = both(rows)
        joined = run_join(
            self.spec, left, right, state, self.assignment.clock_of(self.uid), operator=self.uid
        )
        self._due = joined.due
        late.add(joined.late_left)
        of_right = LateRows(self.late_right)
        of_right.add(joined.late_right)
        late.add_number(of_right.count)
        return {RESULTS: joined.results, LATE_RIGHT: of_right.batches()}

    def due(self, state: OpenState) -> Due:  # noqa: ARG002
        """See `OperatorTask.due`."""
        return self._due


@dataclass
class LookupTask(TwoInputTask):
    """Rows of a stream with the latest row of their key in another beside them."""

    spec: LookupSpec

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
        return {RESULTS: run_lookup(self.spec, *both(rows), state)}
