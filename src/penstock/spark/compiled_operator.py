"""Operators that `spark/operators` does not have yet. Driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from penstock.errors import InternalError
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.clock import OperatorClock
from penstock.spark.operator_times import OperatorTimes
from penstock.spark.operators.base import CompiledOperator, OperatorInput, shown_schema
from penstock.spark.windows import CompiledWindow, TimeWindowAggregate
from penstock.state.backends.base import StateLayout

_P = TypeVar("_P")


@dataclass(frozen=True)
class FormerOperator(CompiledOperator):
    """An operator whose task is still made in `spark/frames.py`."""

    window: CompiledWindow | None = None
    times: OperatorTimes = field(default_factory=OperatorTimes)

    @property
    def finds_late_rows(self) -> bool:
        """Of aggregates of tumbling and sliding windows."""
        return isinstance(self.window, TimeWindowAggregate)

    def late_rows(self, rows: DataFrame, clock: OperatorClock) -> DataFrame:
        """Late rows as the window finds them."""
        if not isinstance(self.window, TimeWindowAggregate):
            raise InternalError(f"operator {self.node.uid!r} finds no late rows")
        return self.window.late_rows(rows, clock)

    @property
    def compiled_window(self) -> CompiledWindow:
        """What was compiled for a `Window`."""
        return known(self.window)


@dataclass(frozen=True)
class LayoutOnly(Spec):
    """What is known of an operator whose task is made elsewhere."""

    of: StateLayout

    def layout(self) -> StateLayout:
        """The layout of its state."""
        return self.of

    @property
    def output(self) -> pa.Schema:
        """Only the task knows it."""
        raise InternalError("the columns of its results are known to its task")

    def task(self, context: TaskContext) -> Task:
        """The task is made in `spark/frames.py`."""
        raise InternalError(f"the task of {context.uid!r} is made in spark/frames.py")


def known(part: _P | None) -> _P:
    """A part of a compiled operator that operators of its kind have."""
    if part is None:
        raise InternalError("an operator was compiled as one of another kind")
    return part


def former(
    given: OperatorInput, layout: StateLayout, result: StructType, *, late: bool = True
) -> FormerOperator:
    """What all kinds have; the caller adds what its own has."""
    return FormerOperator(
        given.node,
        LayoutOnly(layout),
        result,
        given.outputs(late=late),
        given.on_bad_record,
        given.float_keys,
        shown_schema(given.frame),
    )
