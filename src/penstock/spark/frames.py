"""One batch as a single Spark action: sources -> Spark SQL -> operators -> Spark SQL -> sinks. Driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import ArrayType, DataType, IntegerType, MapType, StructField, StructType

from penstock.config import OnBadRecord
from penstock.errors import ConfigError, InternalError, UnavailableError
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
    CompiledOperator,
    TaskFrame,
    every_subtask,
    results_of,
    rows_of,
    tagged,
    waking_all,
)
from penstock.spark.tasks import ReadableErrors, RenamedColumns, SparkExecutor, Task
from penstock.spark.versions import partition_by_number, repartitioned

SOURCE = "__source"
NOTHING = StructType([StructField("nothing", IntegerType())])


def merged_sources(sources: list[Source]) -> DataFrame:
    """All sources as one streaming DataFrame, so that one query, and one barrier, spans them."""
    if len(sources) == 1:
        return sources[0].frame
    return reduce(DataFrame.unionByName, (_tagged(sources, index) for index in range(len(sources))))


def _tagged(sources: list[Source], index: int) -> DataFrame:
    columns: list[Column] = [F.lit(index).alias(SOURCE)]
    for number, source in enumerate(sources):
        schema = source.frame.schema
        own = F.struct(*(F.col(quoted(name)) for name in source.frame.columns))
        columns.append((own if number == index else F.lit(None)).cast(schema).alias(f"__s{number}"))
    return sources[index].frame.select(*columns)


@dataclass
class BatchFrames:
    """Builds the DataFrames of one batch, each node once."""

    compiled: Compiled
    batch: DataFrame
    assignment: Assignment
    executor: SparkExecutor
    times: NewestTimes = field(default_factory=NewestTimes)
    _frames: dict[int, DataFrame] = field(default_factory=dict)
    _persisted: list[DataFrame] = field(default_factory=list)
    _divided: dict[str, DataFrame] = field(default_factory=dict)
    """The results of operators with further outputs, together with these, by uid."""
    _written: dict[str, int] = field(default_factory=dict)
    """The sinks that were written early because the job reads their bad rows, with the number of their tasks."""

    def run(self) -> None:
        """Run the batch. When it returns, every kept attempt has answered."""
        sources = self.compiled.graph.sources
        again = any(self.times.needs_a_pass(source.uid) for source in sources)
        if again or len(sources) > 1 or sources[0].uid in self.compiled.shared:
            self.batch = self._persist(self.batch)
        for operator in self.compiled.graph.operators:
            if operator.uid in self.compiled.shared:
                self._frame(operator)
        outputs = [self._output(output) for output in self.compiled.graph.outputs if not self._keeps(output)]
        self._perform(reduce(DataFrame.union, outputs))
        self._check_written_once()
        for source in sources:
            if self.times.needs_a_pass(source.uid):
                self.times.look_through(source.uid, self._frame(source))

    def run_operator(self, operator: Operator) -> None:
        """Run an operator whose results are not used: its state must still see the rows."""
        self._perform(self._frame(operator).groupBy().count())

    def _perform(self, frame: DataFrame) -> None:
        frame.collect()
        self.times.take(frame)

    def release(self) -> None:
        """Release the DataFrames that were persisted."""
        for frame in self._persisted:
            frame.unpersist()

    def _persist(self, frame: DataFrame) -> DataFrame:
        self._persisted.append(frame.persist())
        return frame

    def _materialised(self, frame: DataFrame) -> DataFrame:
        """Compute every partition now: two consumers must not compute one at the same time."""
        self._perform(self._persist(frame).groupBy().count())
        return frame

    def _frame(self, node: Node) -> DataFrame:
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
                return self._frame(node.left).unionByName(self._frame(node.right))
            case Operator():
                tags = self.compiled.operators[node.uid].outputs.tags
                return results_of(self._tagged(node), tags) if tags else self._untagged(node)
            case BadRecords():
                of = node.of
                return self._refused(of) if isinstance(of, Output) else rows_of(self._tagged(of), BAD)
            case Late() if self.compiled.operators[node.of.uid].finds_late_rows:
                operator = self.compiled.operators[node.of.uid]
                return operator.late_rows(self._input(node.of), self.assignment.clock_of(node.of.uid))
            case Late():
                return rows_of(self._tagged(node.of), LATE if node.input == LEFT else LATE_RIGHT)
            case Side():
                return rows_of(self._tagged(node.of), side_tags(node.of.side_outputs())[node.name])
            case _:
                raise InternalError(f"a {type(node).__name__} is no part of a job that Spark can run")

    def _keeps(self, node: Output) -> bool:
        return self.compiled.graph.policy(node) is OnBadRecord.KEEP

    def _untagged(self, node: Operator) -> DataFrame:
        frame = self._operator(node)
        return self._materialised(frame) if node.uid in self.compiled.shared else frame

    def _tagged(self, node: Operator) -> DataFrame:
        """The results of an operator together with its other outputs; it runs once for all of them."""
        if node.uid not in self._divided:
            self._divided[node.uid] = self._materialised(self._operator(node))
        return self._divided[node.uid]

    def _refused(self, output: Output) -> DataFrame:
        """Write to the sink now, whether or not anything reads the rows that it refuses. Returns these."""
        letters = self._materialised(self._output(output))
        self._written[output.uid] = self._answers(output.uid)
        return letters

    def _answers(self, uid: str) -> int:
        return sum(answer.uid == uid for answer in self.executor.given())

    def _check_written_once(self) -> None:
        """Check that Spark has not written again: to recover lost bad rows, its tasks would write all other rows again."""
        for uid, tasks in self._written.items():
            if self._answers(uid) > tasks:
                raise UnavailableError(
                    f"batch {self.assignment.batch} is given up: Spark lost bad rows of the sink {uid} and wrote to it again; the job goes "
                    "back to its checkpoint",
                    sink=uid,
                )

    def _transformed(self, node: Transform) -> DataFrame:
        result = node.function(self._frame(node.upstream))
        expected = self.compiled.eager.get(id(node))
        if expected is not None and tuple(result.columns) != expected:
            raise ConfigError(
                f"transform {getattr(node.function, '__name__', node.function)!s} had the columns {expected} when the job started, and has "
                f"{tuple(result.columns)} in this batch: they come from the rows. Name the columns in the function"
            )
        return result

    def _source(self, node: Source) -> DataFrame:
        sources = self.compiled.graph.sources
        if len(sources) == 1:
            return self.times.observed(node.uid, self.batch)
        index = sources.index(node)
        own = self.batch.where(F.col(SOURCE) == index).select(f"__s{index}.*")
        return self.times.observed(node.uid, own)

    def _operator(self, node: Operator) -> DataFrame:
        operator = self.compiled.operators[node.uid]
        return self._keyed(node, tagged(operator.result, operator.outputs.tags))

    def _output(self, output: Output) -> DataFrame:
        policy = self.compiled.graph.policy(output)
        sink = SinkWriter(output.uid, output.sink, self.assignment, self.executor, policy)
        upstream, result = output.upstream, LETTERS if policy is OnBadRecord.KEEP else NOTHING
        if isinstance(upstream, Operator) and upstream.uid not in self.compiled.shared:
            return self._keyed(upstream, result, sink)
        return _in_arrow(self._frame(upstream), sink, result)

    def _keyed(self, node: Operator, result: StructType, sink: SinkWriter | None = None) -> DataFrame:
        """The results of an operator's tasks, or of a sink that writes these results in the same tasks."""
        operator = self.compiled.operators[node.uid]
        task = self._task(operator)
        fused = task if sink is None else Fused(task, sink)
        rows = with_key(normalised(self._input(node), operator.float_keys), node.keys)
        batch = BatchInput(
            rows,
            self.assignment.clock_of(node.uid),
            second=lambda second: self._input(node, second),
            frame_of=self._frame,
            sort_key=self._sort_key,
            every_subtask=self._every_subtask,
        )
        return self._placed(node, operator.prepared(batch), fused, result)

    def _task(self, operator: CompiledOperator) -> Subtask:
        return Subtask(
            operator.node.uid,
            operator.spec,
            self.assignment,
            self.executor,
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
            return self._frame(upstream)
        named = getattr(node if second is None else second, "event_time", None)
        return reduce(DataFrame.unionByName, (self._believed(*one, named) for one in meeting))

    def _believed(self, stream: Node, limits: TimeLimits, named: str | None) -> DataFrame:
        frame, ahead_us = self._frame(stream), limits.ahead_us
        time = stream.event_time_column() if named is None else None
        column = named if time is None else time.column
        if ahead_us is None or column is None:
            return frame
        return with_trusted_times(column, frame, self.assignment.now_us + ahead_us)

    def _placed(self, node: Operator, prepared: TaskFrame, task: Task, result: StructType) -> DataFrame:
        """Rows in their subtasks. Spark's own shuffle may already place every key correctly.

        The plan of the whole frame is checked for that, because Spark plans it only once.
        """
        rows, place = prepared.rows, self.assignment.place
        may_be_placed = not self.compiled.own_shuffles and place.max_parallelism % place.parallelism == 0
        if prepared.grouped_by is not None and may_be_placed and node.uid not in self.assignment.wake:
            frame = _in_arrow(rows, task, result)
            if placed_by_key(frame, _plain_names(rows, prepared.grouped_by), place.parallelism):
                return frame
        placed = self._by_subtask(node, rows)
        if prepared.order_by:
            placed = placed.sortWithinPartitions(*prepared.order_by)
        return _in_arrow(placed, task, result)

    def _sort_key(self, keys: tuple[str, ...]) -> Column:
        place = self.assignment.place
        if not keys:
            return self.compiled.column("sort key", lambda: sort_key_of_partition(place.parallelism))
        return self.compiled.column(("sort key", keys), lambda: sort_key(keys, place.max_parallelism))

    def _every_subtask(self) -> Column:
        parallelism = self.assignment.place.parallelism
        return self.compiled.column("every subtask", lambda: every_subtask(parallelism))

    def _by_subtask(self, node: Operator, rows: DataFrame) -> DataFrame:
        parallelism = self.assignment.place.parallelism
        if node.uid in self.assignment.wake:
            rows = waking_all(rows, parallelism)
        subtask = self.compiled.column(
            "subtask", lambda: partition_by_number(rows.sparkSession, subtask_of(parallelism), parallelism)
        )
        return repartitioned(rows, parallelism, subtask)


def _in_arrow(rows: DataFrame, task: Task, result: StructType) -> DataFrame:
    """`mapInArrow`, with the columns renamed by position to the names in the plan."""
    names = tuple(rows.columns)
    plain = _plain_names(rows, names)
    if plain != names:
        rows = rows.toDF(*plain)
    return rows.mapInArrow(ReadableErrors(RenamedColumns(names, task)), result)


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
