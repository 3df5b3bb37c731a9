"""The Spark side of an operator: from what it is compiled, and how it prepares the rows of a batch for its tasks. Driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.config import OnBadRecord
from penstock.errors import InternalError
from penstock.graph import Graph
from penstock.operators.base import LEFT, RIGHT, Node, Operator, SecondInput, Spec
from penstock.operators.event_time import OperatorClock
from penstock.operators.inputs import EVERYTHING, check_order_columns
from penstock.operators.outputs import BAD, LATE, LATE_RIGHT, side_tags
from penstock.operators.row_order import Order
from penstock.spark.dead_letters import LETTERS, all_nullable
from penstock.spark.key_columns import check_keys, float_keys, with_key
from penstock.spark.operators.outputs import Beside
from penstock.spark.versions import arrow_schema, arrow_type
from penstock.state.backends.base import StateLayout
from penstock.state.keys import SORT_KEY


@dataclass(frozen=True)
class OperatorInput:
    """What is known of an operator before it is compiled: the columns of its rows, their key, and what becomes of bad ones."""

    node: Operator
    graph: Graph
    frame_of: Callable[[Node], DataFrame]
    """An empty DataFrame with the columns of any stream before it."""
    frame: DataFrame
    """The same for its own stream, with the key column that an operator without a key has."""
    key: pa.Schema
    float_keys: tuple[str, ...]
    on_bad_record: OnBadRecord

    @classmethod
    def of(cls, node: Operator, graph: Graph, frame_of: Callable[[Node], DataFrame]) -> OperatorInput:
        """Raises `ConfigError` for keys that cannot be."""
        frame = with_key(frame_of(node.upstream), node.keys)
        if node.keys:
            check_keys(frame, node.keys, node.uid)
        key = pa.schema([pa.field(name, arrow_type(frame.schema[name].dataType)) for name in node.keys])
        return cls(node, graph, frame_of, frame, key, float_keys(frame, node.keys), graph.policy(node))

    @property
    def columns(self) -> pa.Schema:
        """The columns of its stream in Arrow."""
        return pa.schema(
            [pa.field(field.name, arrow_type(field.dataType)) for field in self.frame.schema.fields]
        )

    def outputs(self, *, late: bool = True) -> Outputs:
        """What its tasks give beside results, as far as it is read. `late`: whether they, and not Spark, find late rows."""
        node, graph = self.node, self.graph
        second = node.second_input
        streams = {LEFT: node.upstream} if second is None else {LEFT: node.upstream, RIGHT: second.upstream}
        late_rows = {
            name: all_nullable(self.frame_of(streams[name]).schema)
            for name in node.late_inputs
            if late and graph.gives_late_rows(node, name)
        }
        declared, read = node.side_outputs(), graph.sides_read(node)
        tags = side_tags(declared)
        return Outputs(
            self.on_bad_record is OnBadRecord.KEEP,
            late_rows,
            {tags[name]: from_arrow_schema(declared[name].schema) for name in read},
        )


@dataclass(frozen=True)
class Outputs:
    """What the tasks of an operator give beside results."""

    bad: bool = False
    late: dict[str, StructType] = field(default_factory=dict)
    """The columns of late rows, by input."""
    sides: dict[str, StructType] = field(default_factory=dict)
    """The columns of side outputs, by tag."""

    @property
    def tags(self) -> Beside:
        """All of them in the order in which `engine.subtask.Subtask` gives them."""
        late = {LATE: self.late.get(LEFT), LATE_RIGHT: self.late.get(RIGHT)}
        return {
            **({BAD: LETTERS} if self.bad else {}),
            **{tag: columns for tag, columns in late.items() if columns is not None},
            **self.sides,
        }

    def late_schema(self, name: str) -> pa.Schema | None:
        """The columns of late rows of an input in Arrow, where they are read."""
        return arrow_schema(self.late[name]) if name in self.late else None


@dataclass(frozen=True)
class BatchInput:
    """What an operator is given of one batch."""

    rows: DataFrame
    """Those of its stream, with the key of an operator that has none, and with one zero and one NaN in key columns."""
    clock: OperatorClock
    second: Callable[[SecondInput], DataFrame]
    """The rows of its second input."""
    frame_of: Callable[[Node], DataFrame]
    """The rows of any other stream."""
    sort_key: Callable[[tuple[str, ...]], Column]
    """The column that says where a row belongs, by its key columns; without any by the partition it was read in."""
    every_subtask: Callable[[], Column]
    """The same column for a row of which every subtask gets a copy."""


@dataclass(frozen=True)
class TaskFrame:
    """The rows for the tasks of an operator, with their `SORT_KEY`. What is made of them comes after."""

    rows: DataFrame
    order_by: tuple[Column, ...] = ()
    """The order of the rows within a task."""
    grouped_by: tuple[str, ...] | None = None
    """The columns by which Spark has grouped the rows, so that its own shuffle may have put each row where it belongs."""


@dataclass(frozen=True)
class CompiledOperator:
    """An operator with its types: what a start checks, and what each batch is built from. The same in all batches.

    Its rows go to tasks as they are. An operator for which Spark does part of the work, or that has two inputs, overrides `prepared`.
    """

    node: Operator
    spec: Spec
    result: StructType
    """The columns of its results."""
    outputs: Outputs
    on_bad_record: OnBadRecord
    float_keys: tuple[str, ...]
    columns: StructType
    """The columns of its stream."""

    @property
    def layout(self) -> StateLayout:
        """The layout of its state."""
        return self.spec.layout()

    @property
    def finds_late_rows(self) -> bool:
        """Whether Spark finds its late rows, before any task sees them."""
        return False

    def late_rows(self, rows: DataFrame, clock: OperatorClock) -> DataFrame:  # noqa: ARG002
        """The late ones of the rows of a batch, where `finds_late_rows`."""
        raise InternalError(
            f"operator {self.node.uid!r} was asked for what a {type(self).__name__} does not have"
        )

    @property
    def takes_history(self) -> bool:
        """Whether its state can be computed from rows of the past."""
        return False

    def grouped_history(self, rows: DataFrame) -> DataFrame:  # noqa: ARG002
        """Rows of the past as those of a batch are grouped, where `takes_history`."""
        raise InternalError(
            f"operator {self.node.uid!r} was asked for what a {type(self).__name__} does not have"
        )

    def history_tables(self, grouped: DataFrame) -> Mapping[str, DataFrame]:  # noqa: ARG002
        """The rows of the tables of its state, by name, of what `grouped_history` gives."""
        raise InternalError(
            f"operator {self.node.uid!r} was asked for what a {type(self).__name__} does not have"
        )

    def prepared(self, batch: BatchInput) -> TaskFrame:
        """The rows of a batch for its tasks."""
        return TaskFrame(batch.rows.withColumn(SORT_KEY, batch.sort_key(self.node.keys)))


def shown_schema(frame: DataFrame) -> StructType:
    """The columns of a stream that a user sees."""
    return frame.drop(EVERYTHING).schema


def compiled(
    given: OperatorInput,
    spec: Spec,
    result: StructType,
    kind: Callable[..., CompiledOperator] = CompiledOperator,
    *,
    late: bool = True,
    **own: Any,
) -> CompiledOperator:
    """An operator with its types; `own` are the fields of its kind. `late`: whether its tasks, and not Spark, find late rows."""
    return kind(
        given.node,
        spec,
        result,
        given.outputs(late=late),
        given.on_bad_record,
        given.float_keys,
        shown_schema(given.frame),
        **own,
    )


def check_order(of: str, order_by: tuple[Order, ...], frame: DataFrame) -> None:
    """Refuse an order by columns that are not there."""
    check_order_columns(of, order_by, frame.columns)
