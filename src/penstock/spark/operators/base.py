"""The Spark side of an operator: what it is compiled from, and how the rows of a batch reach its tasks and leave them. Driver.

Rows of a broadcast stream, of a second input, and rows that only wake a subtask travel in one DataFrame with the rows of the operator.
Each row has nulls in the columns of the other kinds; `operators/inputs.py` takes them apart in the task. Late rows, dead letters and side
outputs travel among the results in the same way; `operators/outputs.py` is the other half of that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.config import OnBadRecord
from penstock.errors import ConfigError, InternalError
from penstock.graph import Graph
from penstock.operators.base import LEFT, RIGHT, Node, Operator, SecondInput, Spec
from penstock.operators.event_time import OperatorClock, TimeColumn
from penstock.operators.inputs import (
    BROADCAST,
    EVERYTHING,
    FROM_RIGHT,
    WAKE,
    KeyColumn,
    RightInput,
    check_order_columns,
    check_same_keys,
    travelling_names,
)
from penstock.operators.outputs import BAD, LATE, LATE_RIGHT, side_tags
from penstock.operators.values.row_order import Order
from penstock.spark.dead_letters import LETTERS, all_nullable
from penstock.spark.key_columns import check_keys, float_keys, normalised, quoted, with_key
from penstock.spark.versions import arrow_schema, arrow_type
from penstock.state.backends.base import StateLayout
from penstock.state.keys import GROUP_SHIFT, SORT_KEY
from penstock.state.subtask_rows import subtask_sort_key

ClockValue = Callable[[Callable[[OperatorClock], int]], Column]
"""Returns the column for a number that depends on the operator's clock in a batch. It is no literal: plans and generated code are kept."""
Beside = Mapping[str, StructType]
"""The columns of the other outputs, by tag."""


def tagged(result: StructType, beside: Beside) -> StructType:
    """The columns of results and other outputs in one DataFrame."""
    return StructType([*result.fields, *(StructField(tag, columns) for tag, columns in beside.items())])


def results_of(frame: DataFrame, tags: Collection[str]) -> DataFrame:
    """The results: the rows that have none of the tags."""
    return frame.where(reduce(and_, (F.col(tag).isNull() for tag in tags))).drop(*tags)


def rows_of(frame: DataFrame, tag: str) -> DataFrame:
    """The rows of one other output, by its tag."""
    return frame.where(F.col(tag).isNotNull()).select(f"{tag}.*")


@dataclass(frozen=True)
class OperatorInput:
    """What is known of an operator before it is compiled: the columns of its rows, their key, and the policy for bad rows."""

    node: Operator
    graph: Graph
    frame_of: Callable[[Node], DataFrame]
    """Returns an empty DataFrame with the columns of any stream before the operator."""
    frame: DataFrame
    """An empty DataFrame of its own stream, with the constant key column of an operator without a key."""
    key: pa.Schema
    float_keys: tuple[str, ...]
    on_bad_record: OnBadRecord

    @classmethod
    def of(cls, node: Operator, graph: Graph, frame_of: Callable[[Node], DataFrame]) -> OperatorInput:
        """Read the columns of its stream; raises `ConfigError` for unsupported keys."""
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

    def outputs(self, *, late: bool = True) -> OtherOutputs:
        """The other outputs of its tasks that are read. `late`: whether tasks, and not Spark, find late rows."""
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
        return OtherOutputs(
            self.on_bad_record is OnBadRecord.KEEP,
            late_rows,
            {tags[name]: from_arrow_schema(declared[name].schema) for name in read},
        )


@dataclass(frozen=True)
class OtherOutputs:
    """The outputs of an operator's tasks besides its results, if the job reads them: bad rows, late rows, side outputs."""

    bad: bool = False
    late: dict[str, StructType] = field(default_factory=dict)
    """The columns of late rows, by input."""
    sides: dict[str, StructType] = field(default_factory=dict)
    """The columns of side outputs, by tag."""

    @property
    def tags(self) -> Beside:
        """All of them, in the order of `run.subtask.Subtask`."""
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
    """The input of an operator in one batch."""

    rows: DataFrame
    """The rows of its stream, with the constant key of an operator without a key, and with one zero and one NaN in key columns."""
    clock_value: ClockValue
    second: Callable[[SecondInput], DataFrame]
    """Returns the rows of its second input."""
    frame_of: Callable[[Node], DataFrame]
    """Returns the rows of any other stream."""
    sort_key: Callable[[tuple[str, ...]], Column]
    """Returns the sort key of a row, by its key columns; without a key, by the partition in which the row was read."""
    every_subtask: Callable[[], Column]
    """Returns the sort key of a row of which every subtask gets a copy."""


@dataclass(frozen=True)
class TaskFrame:
    """The rows for the tasks of an operator, with their `SORT_KEY`."""

    rows: DataFrame
    order_by: tuple[Column, ...] = ()
    """The order of the rows within a task."""
    grouped_by: tuple[str, ...] | None = None
    """The columns by which Spark has grouped the rows: its shuffle may already have put each row into its task."""


@dataclass(frozen=True)
class CompiledOperator:
    """An operator with its types: what a start checks, and what each batch is built from. The same in all batches.

    Its rows go to tasks as they are. An operator for which Spark does part of the work, or that has two inputs, overrides `prepared`.
    """

    node: Operator
    spec: Spec
    result: StructType
    """The columns of its results."""
    outputs: OtherOutputs
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
        """Whether Spark, and not a task, finds its late rows."""
        return False

    def late_rows(self, rows: DataFrame, clock_value: ClockValue) -> DataFrame:  # noqa: ARG002
        """The late rows of a batch, where `finds_late_rows`."""
        raise self._missing()

    @property
    def takes_history(self) -> bool:
        """Whether its state can be computed from rows of the past."""
        return False

    def grouped_history(self, rows: DataFrame) -> DataFrame:  # noqa: ARG002
        """Rows of the past, grouped as those of a batch, where `takes_history`."""
        raise self._missing()

    def history_tables(self, grouped: DataFrame) -> Mapping[str, DataFrame]:  # noqa: ARG002
        """The rows of the tables of its state by name, made of the result of `grouped_history`."""
        raise self._missing()

    def _missing(self) -> InternalError:
        return InternalError(
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
    """Make a compiled operator; `own` are the fields of its class. `late`: whether tasks, and not Spark, find late rows."""
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
    """Refuse an order by missing columns."""
    check_order_columns(of, order_by, frame.columns)


@dataclass(frozen=True)
class BroadcastSide:
    """The columns of a broadcast stream and of the operator's own stream. Made once: it takes many calls into the JVM."""

    names: tuple[str, ...]
    order_by: tuple[Column, ...]
    without_stream: tuple[Column, ...]
    """Nulls that rows of the broadcast stream have in the columns of the own stream."""
    without_side: tuple[Column, ...]
    """Nulls that rows of the own stream have in the columns of the broadcast stream."""

    @classmethod
    def of(cls, stream: DataFrame, side: DataFrame, order_by: tuple[Order, ...]) -> BroadcastSide:
        """Prepare the columns of both streams."""
        names = travelling_names(BROADCAST, side.columns)
        orders = [Order(names[side.columns.index(one.column)], one.descending) for one in order_by]
        return cls(
            tuple(side.columns),
            tuple(map(in_order, orders)),
            nulls_like(stream.schema, stream.columns),
            (F.lit(None).cast("long").alias(BROADCAST), *nulls_like(side.schema, names)),
        )

    def beside(self, rows: DataFrame, side: DataFrame, everyone: Column) -> DataFrame:
        """The rows of the stream, whose last column is their sort key, and a copy of each broadcast row for every subtask."""
        names = travelling_names(BROADCAST, self.names)
        told = side.toDF(*names)
        if self.order_by:
            told = told.repartition(1).sortWithinPartitions(*self.order_by)
        # Numbered before they are copied, so that all subtasks see them in one order.
        told = told.select("*", F.monotonically_increasing_id().alias(BROADCAST)).select("*", everyone)
        return rows.select("*", *self.without_side).union(
            told.select(*self.without_stream, SORT_KEY, BROADCAST, *names)
        )


def every_subtask(parallelism: int) -> Column:
    """Makes a copy of a row for each subtask."""
    sort_keys = [F.lit(subtask_sort_key(subtask)).cast("long") for subtask in range(parallelism)]
    return F.explode(F.array(*sort_keys)).alias(SORT_KEY)


def nulls_like(columns: StructType, names: Sequence[str]) -> tuple[Column, ...]:
    """Nulls that rows of another kind have in these columns, which travel under these names."""
    return tuple(
        F.lit(None).cast(field.dataType).alias(name)
        for field, name in zip(columns.fields, names, strict=True)
    )


def in_order(order: Order) -> Column:
    """The Spark column for an order."""
    column = F.col(quoted(order.column))
    return column.desc() if order.descending else column.asc()


@dataclass(frozen=True)
class SecondColumns:
    """The columns of both inputs of an operator. Made once: it takes many calls into the JVM."""

    names: tuple[str, ...]
    keys: tuple[str, ...]
    float_keys: tuple[str, ...]
    order_by: tuple[Column, ...]
    """The order of the second input. It comes after that of the first input, whose rows have null in these columns."""
    without_left: tuple[Column, ...]
    without_right: tuple[Column, ...]
    event_time: TimeColumn | None = None
    """The event time of its rows, where state has a time to live by it."""

    @classmethod
    def of(cls, node: Operator, second: SecondInput, left: DataFrame, right: DataFrame) -> SecondColumns:
        """Prepare the columns of both inputs; refuses keys of different types."""
        check_names(node.uid, "left", left)
        check_names(node.uid, "right", right)
        check_keys(right, second.keys, node.uid)
        check_same_keys(node.uid, _key_columns(left, node.keys), _key_columns(right, second.keys))
        names = travelling_names(FROM_RIGHT, right.columns)
        orders = [Order(names[right.columns.index(one.column)], one.descending) for one in second.order_by]
        return cls(
            tuple(right.columns),
            second.keys,
            float_keys(right, second.keys),
            tuple(map(in_order, orders)),
            nulls_like(left.schema, left.columns),
            (F.lit(None).cast("boolean").alias(FROM_RIGHT), *nulls_like(right.schema, names)),
        )

    @property
    def as_input(self) -> RightInput:
        """The second input as tasks see it."""
        return RightInput(self.names, self.keys, self.event_time)

    def beside(
        self, left: DataFrame, right: DataFrame, sort_key: Callable[[tuple[str, ...]], Column]
    ) -> DataFrame:
        """The rows of both inputs. The last column of the left rows is their sort key."""
        own = normalised(right, self.float_keys).withColumn(SORT_KEY, sort_key(self.keys))
        names = travelling_names(FROM_RIGHT, self.names)
        mark = F.lit("true").cast("boolean").alias(FROM_RIGHT)
        marked = own.toDF(*names, SORT_KEY).select(*self.without_left, SORT_KEY, mark, *names)
        return left.select("*", *self.without_right).union(marked)


def _key_columns(frame: DataFrame, keys: tuple[str, ...]) -> list[KeyColumn]:
    kinds = [(key, frame.schema[key].dataType) for key in keys]
    return [(key, kind, kind.simpleString()) for key, kind in kinds]


def check_names(uid: str, which: str, frame: DataFrame) -> None:
    """Refuse an input with two columns of one name, because they cannot be distinguished on the way to tasks."""
    times = Counter(name.lower() for name in frame.columns)
    twice = [name for name in frame.columns if times[name.lower()] > 1]
    if twice:
        raise ConfigError(
            f"operator {uid!r}: its {which} stream has two columns called {twice[0]!r}; give each a name of its own",
            operator=uid,
            column=twice[0],
        )


def waking_all(rows: DataFrame, parallelism: int) -> DataFrame:
    """Add a row for each subtask that has only a sort key, and wakes the subtask."""
    subtasks = rows.sparkSession.range(parallelism)
    own = F.shiftleft(F.col("id"), GROUP_SHIFT).alias(SORT_KEY)
    columns = [
        own if field.name == SORT_KEY else F.lit(None).cast(field.dataType).alias(field.name)
        for field in rows.schema.fields
    ]
    asleep, awake = (F.lit(given).cast("boolean").alias(WAKE) for given in (None, True))
    return rows.select("*", asleep).union(subtasks.select(*columns, awake))
