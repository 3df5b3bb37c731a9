"""A job as DataFrames: sources -> Spark SQL -> operators -> Spark SQL -> sinks. Driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructField, StructType

from penstock.config import OnBadRecord
from penstock.errors import ConfigError, InternalError
from penstock.graph import (
    BadRecords,
    Late,
    Output,
    Side,
    Source,
    Transform,
    Union,
    streams_that_meet,
)
from penstock.operators.base import LEFT, RIGHT, Node, Operator, SecondInput
from penstock.operators.event_time import TimeLimits
from penstock.operators.outputs import BAD, LATE, LATE_RIGHT, side_tags
from penstock.run.assignment import Assignment
from penstock.run.sink_writer import Fused, SinkWriter
from penstock.run.subtask import Subtask
from penstock.spark.compiled import Compiled
from penstock.spark.dead_letters import LETTERS
from penstock.spark.event_times import NewestTimes, with_trusted_times
from penstock.spark.key_columns import (
    normalised,
    placed_by_key,
    quoted,
    sort_key,
    sort_key_of_partition,
    subtask_of,
    with_key,
)
from penstock.spark.operators.base import (
    BatchInput,
    ClockValue,
    CompiledOperator,
    TaskFrame,
    every_subtask,
    results_of,
    rows_of,
    tagged,
    waking_all,
)
from penstock.spark.tasks import RenamedColumns, SparkExecutor, Task, WorkerTask
from penstock.spark.versions import partition_by_number, repartitioned

SOURCE = "__source"
NOTHING = StructType([StructField("nothing", IntegerType())])


def merged_sources(sources: list[Source], columns: list[StructType]) -> DataFrame:
    """These columns of all sources as one streaming DataFrame, so that one query, and one barrier, spans them."""
    frames = [
        frame if columns[at] == frame.schema else frame.select(*map(quoted, columns[at].fieldNames()))
        for at, frame in enumerate(source.frame for source in sources)
    ]
    if len(frames) == 1:
        return frames[0]
    return reduce(DataFrame.unionByName, (_tagged(frames, index) for index in range(len(frames))))


def _tagged(frames: list[DataFrame], index: int) -> DataFrame:
    columns: list[Column] = [F.lit(index).alias(SOURCE)]
    for number, frame in enumerate(frames):
        own = F.struct(*(F.col(quoted(name)) for name in frame.columns))
        columns.append((own if number == index else F.lit(None)).cast(frame.schema).alias(f"__s{number}"))
    return frames[index].select(*columns)


def rows_of_source(merged: DataFrame, sources: int, index: int) -> DataFrame:
    """The rows of one source, with the columns that are read of it."""
    return merged if sources == 1 else merged.where(F.col(SOURCE) == index).select(f"__s{index}.*")


def with_unread_columns(rows: DataFrame, columns: StructType) -> DataFrame:
    """The rows with all columns of their source. Using one that is not read fails."""
    if rows.schema == columns:
        return rows
    read = set(rows.columns)
    return rows.select(
        *(
            F.col(quoted(one.name))
            if one.name in read
            else _unread(one.name).cast(one.dataType).alias(one.name)
            for one in columns.fields
        )
    )


def _unread(name: str) -> Column:
    return F.raise_error(F.lit(f"Penstock has not read the column {name}, for nothing seemed to use it"))


MakeTask = Callable[[Assignment, SparkExecutor], Task]
"""Makes a task for one batch."""


class BatchSlots(Protocol):
    """What differs from batch to batch, as the frames of a job use it: that of one batch, or a slot for that of any batch."""

    def rows(self, source: int) -> DataFrame:
        """The rows of a source, with all its columns."""
        ...

    def task(self, make: MakeTask, result: StructType) -> Task:
        """The task that Spark calls; `result` are its columns."""
        ...

    def value(self, make: Callable[[Assignment], int]) -> Column:
        """A number that depends on the batch."""
        ...

    def materialised(self, frame: DataFrame, sink: str | None = None) -> DataFrame:
        """The frame with every partition computed. Two consumers must not compute one at the same time.

        `sink` writes the frame's rows; the frame itself has those that it refuses.
        """
        ...


@dataclass(frozen=True)
class BatchShape:
    """What the plan of a batch depends on."""

    wake: frozenset[str]
    """See `Assignment.wake`."""
    times: NewestTimes

    @property
    def key(self) -> object:
        """Equal for batches with the same plan."""
        return self.wake, self.times.shape


@dataclass
class JobFrames:
    """The DataFrames of a job, each node once."""

    compiled: Compiled
    slots: BatchSlots
    parallelism: int
    max_parallelism: int
    shape: BatchShape
    _frames: dict[int, DataFrame] = field(default_factory=dict)
    built: set[str] = field(default_factory=set)
    """The operators that are part of a frame, by uid."""
    _divided: dict[str, DataFrame] = field(default_factory=dict)
    """The results of operators with further outputs, together with these, by uid."""

    def outputs(self) -> DataFrame:
        """All sinks in one frame without rows. Running it runs the batch."""
        for operator in self.compiled.graph.operators:
            if operator.uid in self.compiled.shared:
                self.frame(operator)
        outputs = [self._output(output) for output in self.compiled.graph.outputs if not self._keeps(output)]
        return reduce(DataFrame.union, outputs)

    def unread(self, operator: Operator) -> DataFrame:
        """A frame that runs an operator whose results are not used: its state must still see the rows."""
        return self.frame(operator).groupBy().count()

    def frame(self, node: Node) -> DataFrame:
        """The rows of a node."""
        if id(node) not in self._frames:
            self._frames[id(node)] = self._make(node)
        return self._frames[id(node)]

    def _make(self, node: Node) -> DataFrame:  # noqa: PLR0911 - one for each kind
        match node:
            case Source():
                return self._source(node)
            case Transform():
                return self._transformed(node)
            case Union():
                return self.frame(node.left).unionByName(self.frame(node.right))
            case Operator():
                tags = self.compiled.operators[node.uid].outputs.tags
                return results_of(self._tagged(node), tags) if tags else self._untagged(node)
            case BadRecords():
                of = node.of
                return self._refused(of) if isinstance(of, Output) else rows_of(self._tagged(of), BAD)
            case Late() if self.compiled.operators[node.of.uid].finds_late_rows:
                operator = self.compiled.operators[node.of.uid]
                return operator.late_rows(self._input(node.of), self._clock_value(node.of))
            case Late():
                return rows_of(self._tagged(node.of), LATE if node.input == LEFT else LATE_RIGHT)
            case Side():
                return rows_of(self._tagged(node.of), side_tags(node.of.side_outputs())[node.name])
            case _:
                raise InternalError(f"a {type(node).__name__} is no part of a job that Spark can run")

    def _keeps(self, node: Output) -> bool:
        return self.compiled.graph.policy(node) is OnBadRecord.KEEP

    def _clock_value(self, node: Operator) -> ClockValue:
        return lambda make: self.slots.value(lambda assignment: make(assignment.clock_of(node.uid)))

    def _untagged(self, node: Operator) -> DataFrame:
        frame = self._operator(node)
        return self.slots.materialised(frame) if node.uid in self.compiled.shared else frame

    def _tagged(self, node: Operator) -> DataFrame:
        """The results of an operator together with its other outputs; it runs once for all of them."""
        if node.uid not in self._divided:
            self._divided[node.uid] = self.slots.materialised(self._operator(node))
        return self._divided[node.uid]

    def _refused(self, output: Output) -> DataFrame:
        """Write to the sink now, whether or not anything reads the rows that it refuses. Returns these."""
        return self.slots.materialised(self._output(output), output.uid)

    def _transformed(self, node: Transform) -> DataFrame:
        result = node.function(self.frame(node.upstream))
        expected = self.compiled.eager.get(id(node))
        if expected is not None and tuple(result.columns) != expected:
            raise ConfigError(
                f"transform {getattr(node.function, '__name__', node.function)!s} had the columns {expected} when the job started, and has "
                f"{tuple(result.columns)} in this batch: they come from the rows. Name the columns in the function"
            )
        return result

    def _source(self, node: Source) -> DataFrame:
        rows = self.slots.rows(self.compiled.graph.sources.index(node))
        return self.shape.times.observed(node.uid, rows, self.slots.value)

    def _operator(self, node: Operator) -> DataFrame:
        operator = self.compiled.operators[node.uid]
        return self._keyed(node, self._task(operator), tagged(operator.result, operator.outputs.tags))

    def _output(self, output: Output) -> DataFrame:
        policy, upstream = self.compiled.graph.policy(output), output.upstream
        result = LETTERS if policy is OnBadRecord.KEEP else NOTHING

        def sink(assignment: Assignment, executor: SparkExecutor) -> SinkWriter:
            return SinkWriter(output.uid, output.sink, assignment, executor, policy)

        if isinstance(upstream, Operator) and upstream.uid not in self.compiled.shared:
            operator = self._task(self.compiled.operators[upstream.uid])
            return self._keyed(upstream, lambda *batch: Fused(operator(*batch), sink(*batch)), result)
        return self._in_arrow(self.frame(upstream), sink, result)

    def _keyed(self, node: Operator, task: MakeTask, result: StructType) -> DataFrame:
        """The results of an operator's tasks, or of a sink that writes these results in the same tasks."""
        self.built.add(node.uid)
        operator = self.compiled.operators[node.uid]
        rows = with_key(normalised(self._input(node), operator.float_keys), node.keys)
        batch = BatchInput(
            rows,
            self._clock_value(node),
            second=lambda second: self._input(node, second),
            frame_of=self.frame,
            sort_key=self._sort_key,
            every_subtask=self._every_subtask,
        )
        return self._placed(node, operator.prepared(batch), task, result)

    def _task(self, operator: CompiledOperator) -> Callable[[Assignment, SparkExecutor], Subtask]:
        return lambda assignment, executor: Subtask(
            operator.node.uid,
            operator.spec,
            assignment,
            executor,
            operator.on_bad_record,
            late=operator.outputs.late_schema(LEFT),
            late_right=operator.outputs.late_schema(RIGHT),
        )

    def _input(self, node: Operator, second: SecondInput | None = None) -> DataFrame:
        """The input rows of an operator. If it judges rows by their time, a time that the row's own source rejects is null.

        This concerns only unions of streams with different limits: after a union, the source of a row is unknown.
        """
        upstream = node.upstream if second is None else second.upstream
        meeting = streams_that_meet(upstream) if node.judges_by_time else []
        if len(meeting) <= 1:
            return self.frame(upstream)
        named = getattr(node if second is None else second, "event_time", None)
        return reduce(DataFrame.unionByName, (self._believed(*one, named) for one in meeting))

    def _believed(self, stream: Node, limits: TimeLimits, named: str | None) -> DataFrame:
        frame, ahead_us = self.frame(stream), limits.ahead_us
        time = stream.event_time_column() if named is None else None
        column = named if time is None else time.column
        if ahead_us is None or column is None:
            return frame
        return with_trusted_times(column, frame, self.slots.value(lambda batch: batch.now_us + ahead_us))

    def _placed(self, node: Operator, prepared: TaskFrame, task: MakeTask, result: StructType) -> DataFrame:
        """Rows in their subtasks. Spark's own shuffle may already place every key correctly.

        The plan of the whole frame is checked for that, because Spark plans it only once.
        """
        rows, parallelism = prepared.rows, self.parallelism
        may_be_placed = not self.compiled.own_shuffles and self.max_parallelism % parallelism == 0
        if prepared.grouped_by is not None and may_be_placed and node.uid not in self.shape.wake:
            frame = self._in_arrow(rows, task, result)
            if placed_by_key(frame, _plain_names(rows, prepared.grouped_by), parallelism):
                return frame
        placed = self._by_subtask(node, rows)
        if prepared.order_by:
            placed = placed.sortWithinPartitions(*prepared.order_by)
        return self._in_arrow(placed, task, result)

    def _sort_key(self, keys: tuple[str, ...]) -> Column:
        if not keys:
            return self.compiled.column("sort key", lambda: sort_key_of_partition(self.parallelism))
        return self.compiled.column(("sort key", keys), lambda: sort_key(keys, self.max_parallelism))

    def _every_subtask(self) -> Column:
        return self.compiled.column("every subtask", lambda: every_subtask(self.parallelism))

    def _by_subtask(self, node: Operator, rows: DataFrame) -> DataFrame:
        parallelism = self.parallelism
        if node.uid in self.shape.wake:
            rows = waking_all(rows, parallelism)
        subtask = self.compiled.column(
            "subtask", lambda: partition_by_number(rows.sparkSession, subtask_of(parallelism), parallelism)
        )
        return repartitioned(rows, parallelism, subtask)

    def _in_arrow(self, rows: DataFrame, make: MakeTask, result: StructType) -> DataFrame:
        """`mapInArrow`, with the columns renamed by position to the names in the plan."""
        names = tuple(rows.columns)
        plain = _plain_names(rows, names)
        if plain != names:
            rows = rows.toDF(*plain)
        task = self.slots.task(lambda *batch: WorkerTask(RenamedColumns(names, make(*batch))), result)
        return rows.mapInArrow(task, result)


def _plain_names(rows: DataFrame, names: tuple[str, ...]) -> tuple[str, ...]:
    """The names of columns on their way to Python: unchanged, unless one of them would not arrive.

    PySpark cannot find columns with a dot or a backtick in their name. If Spark groups by columns with a map, it names all of them
    `_groupingmapsort`, unless they are renamed.
    """
    every = rows.columns
    if not any("." in name or "`" in name for name in every) and not _has_map(rows.schema):
        return names
    return tuple(f"c{every.index(name)}" for name in names)


def _has_map(kind: DataType) -> bool:
    match kind:
        case StructType():
            return any(_has_map(field.dataType) for field in kind.fields)
        case ArrayType():
            return _has_map(kind.elementType)
        case _:
            return isinstance(kind, MapType)
