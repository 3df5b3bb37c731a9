"""One batch as a single Spark action: sources -> Spark SQL -> operators -> Spark SQL -> sinks. Driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from penstock.engine.assignment import Assignment
from penstock.engine.executor import Executor
from penstock.engine.sink_writer import Fused, SinkWriter
from penstock.engine.subtask import AggregateTask, OperatorTask, ProcessTask
from penstock.errors import ConfigError
from penstock.graph import Aggregate, Keyed, Node, Order, Output, Process, Source, Transform, Union
from penstock.spark.compiled import Compiled, CompiledOperator
from penstock.spark.key_columns import normalised, placed_by_key, quoted, sort_key, subtask_of
from penstock.spark.tasks import Renamed, Task
from penstock.spark.versions import partition_by_number, repartitioned

SOURCE = "__source"
NOTHING = "nothing int"


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
    """Builds the DataFrames of one batch; each node once."""

    compiled: Compiled
    batch: DataFrame
    assignment: Assignment
    executor: Executor
    _frames: dict[int, DataFrame] = field(default_factory=dict)
    _persisted: list[DataFrame] = field(default_factory=list)

    def run(self) -> None:
        """Run the batch. When it returns, every kept attempt has answered."""
        sources = self.compiled.graph.sources
        if len(sources) > 1 or sources[0].uid in self.compiled.shared:
            self.batch = self._persist(self.batch)
        for operator in self.compiled.graph.operators:
            if operator.uid in self.compiled.shared:
                self._frames[id(operator)] = shared = self._persist(self._operator(operator))
                shared.count()  # every partition, now: two consumers must not compute one at the same time
        outputs = [self._output(output) for output in self.compiled.graph.outputs]
        reduce(DataFrame.union, outputs).collect()

    def run_operator(self, operator: Keyed) -> None:
        """Run an operator whose results nobody asked for: its state must see the rows all the same."""
        self._frame(operator).count()

    def release(self) -> None:
        """Free what was materialised."""
        for frame in self._persisted:
            frame.unpersist()

    def _persist(self, frame: DataFrame) -> DataFrame:
        self._persisted.append(frame.persist())
        return frame

    def _frame(self, node: Node) -> DataFrame:
        if id(node) not in self._frames:
            self._frames[id(node)] = self._make(node)
        return self._frames[id(node)]

    def _make(self, node: Node) -> DataFrame:
        match node:
            case Source():
                return self._source(node)
            case Transform():
                return self._transformed(node)
            case Union():
                return self._frame(node.left).unionByName(self._frame(node.right))
            case Aggregate() | Process():
                return self._operator(node)

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
            return self.batch
        index = sources.index(node)
        return self.batch.where(F.col(SOURCE) == index).select(f"__s{index}.*")

    def _operator(self, node: Keyed) -> DataFrame:
        rows, task, operator = self._keyed(node)
        return _in_arrow(rows, task, operator.result)

    def _output(self, output: Output) -> DataFrame:
        sink = SinkWriter(output.uid, output.sink, self.assignment, self.executor)
        upstream = output.upstream
        if isinstance(upstream, Aggregate | Process) and upstream.uid not in self.compiled.shared:
            rows, task, _ = self._keyed(upstream)
            return _in_arrow(rows, Fused(task, sink), NOTHING)
        return _in_arrow(self._frame(upstream), sink, NOTHING)

    def _keyed(self, node: Keyed) -> tuple[DataFrame, OperatorTask, CompiledOperator]:
        operator = self.compiled.operators[node.uid]
        frame = normalised(self._frame(node.upstream), operator.float_keys)
        common = (node.uid, node.keys, operator.layout, self.assignment, self.executor)
        if isinstance(node, Process):
            task: OperatorTask = ProcessTask(*common, node.operator, node.output)
            return self._placed_rows(node, frame), task, operator
        return self._placed_partials(node, operator, frame), AggregateTask(*common, operator.specs), operator

    def _placed_rows(self, node: Process, frame: DataFrame) -> DataFrame:
        placed = self._by_subtask(frame.select("*", self._sort_key(node)))
        return placed.sortWithinPartitions(*map(_order, node.order_by)) if node.order_by else placed

    def _placed_partials(self, node: Aggregate, operator: CompiledOperator, frame: DataFrame) -> DataFrame:
        plan = self.assignment.place
        rows = frame.groupBy(*map(quoted, node.keys)).agg(*operator.partials)
        rows = rows.select("*", self._sort_key(node))
        may_be_placed = not self.compiled.own_shuffles and plan.max_parallelism % plan.parallelism == 0
        if may_be_placed and placed_by_key(rows, node.keys, plan.parallelism):
            return rows  # Spark's own shuffle has put every key where it belongs
        return self._by_subtask(rows)

    def _sort_key(self, node: Keyed) -> Column:
        groups = self.assignment.place.max_parallelism
        return self.compiled.column(("sort key", node.keys), lambda: sort_key(node.keys, groups))

    def _by_subtask(self, rows: DataFrame) -> DataFrame:
        parallelism = self.assignment.place.parallelism
        subtask = self.compiled.column(
            "subtask", lambda: partition_by_number(rows.sparkSession, subtask_of(parallelism), parallelism)
        )
        return repartitioned(rows, parallelism, subtask)


def _in_arrow(rows: DataFrame, task: Task, result: StructType | str) -> DataFrame:
    """`mapInArrow`, which in PySpark cannot find columns with a dot or a backtick in their name: they get plain names on the way."""
    names = rows.columns
    if any("." in name or "`" in name for name in names):
        rows = rows.toDF(*(f"c{at}" for at in range(len(names))))
        task = Renamed(tuple(names), task)
    return rows.mapInArrow(task, result)


def _order(order: Order) -> Column:
    column = F.col(quoted(order.column))
    return column.desc() if order.descending else column.asc()
