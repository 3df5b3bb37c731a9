"""A physical plan that Spark makes once, and that is filled for every batch: with its rows, its tasks, and changing numbers. Driver.

Building the DataFrames of a batch takes hundreds of calls into the JVM, and Spark then analyses, optimises and plans them. None of this
depends on the rows. `PlanTemplate.java` fills the slots of a finished plan instead; Spark brings the compiler for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import pyarrow as pa
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType
from pyspark.sql.udf import _wrap_function

from penstock.errors import InternalError, UnavailableError
from penstock.ids import secret_bytes
from penstock.spark.event_times import METRIC
from penstock.spark.tasks import Task
from penstock.spark.versions import package_of_logs

_TOKEN = int.from_bytes(secret_bytes(5))
"""Makes slots of this process unlike anything in a user's plan."""
FIRST_VALUE = -(9_000_000_000_000_000_000 + _TOKEN * 100_000)
"""The numbers of value slots go down from here."""
MOST_VALUES = 100_000
LONGEST_COMMAND = 1 << 20
"""A longer pickled task is broadcast, as Spark does by default."""

_PICKLER = CloudPickleSerializer()  # type: ignore[no-untyped-call]

TypedTask = tuple[Task, StructType]
"""A task with the columns of its results."""


def _compiled(gateway: Any, name: str) -> Any:
    """The compiler of a Java class that lies beside this module, after its work."""
    jvm = gateway.jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
    source = files(__package__).joinpath(f"{name}.java").read_text()
    compiler.cook(source.replace("STREAMING", package_of_logs(jvm)))
    return compiler


@cache
def _templates(gateway: Any) -> Any:
    """The Java object that makes templates. Its class is compiled once in each JVM."""
    loader = _compiled(gateway, "PlanTemplate").getClassLoader()
    return loader.loadClass("penstock.PlanTemplate").newInstance()


@cache
def plain_log(gateway: Any) -> str:
    """The name of the Java class that writes a progress log as plain files. From now on, all of Spark finds it."""
    package, jvm = package_of_logs(gateway.jvm), gateway.jvm
    name = f"{package}.PlainLog"
    neighbour = jvm.java.lang.Class.forName(f"{package}.CheckpointFileManager")
    handles = jvm.java.lang.invoke.MethodHandles
    handles.privateLookupIn(neighbour, handles.lookup()).defineClass(
        _compiled(gateway, "PlainLog").getBytecodes()[name]
    )
    return name


def _templates_of(session: SparkSession) -> Any:
    return _templates(session.sparkContext._gateway)


@dataclass(frozen=True)
class TaskSlot:
    """Stands for a task in a plan that is made before there is a task. It is never called."""

    __name__: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102, ARG002
        raise InternalError(f"the slot {self.__name__} of a plan was not filled")


def task_slot(number: int) -> TaskSlot:
    """Stands for a task in a plan."""
    return TaskSlot(f"penstock-{_TOKEN}-{number}")


def value_slot(number: int) -> Column:
    """Stands for a number in a plan."""
    return F.lit(FIRST_VALUE - number)


@dataclass(frozen=True)
class RowSlot:
    """Stands for the rows of a batch in a plan. Its frame has no property of a particular batch, such as the number of partitions."""

    number: int
    frame: DataFrame

    @classmethod
    def of(cls, session: SparkSession, columns: StructType, *, cached: bool) -> RowSlot:
        """A new slot. `cached`: it will get rows that are persisted, of which Spark reads only the columns that it needs."""
        context = session.sparkContext
        tags = getattr(getattr(context._jvm, "scala.reflect.ClassTag$"), "MODULE$")
        rdd = context._jsc.sc().emptyRDD(tags.Nothing())
        frame = frame_over(session, rdd, columns)
        return cls(int(rdd.id()), frame.persist() if cached else frame)


def frame_over(session: SparkSession, rdd: Any, columns: StructType) -> DataFrame:
    """A DataFrame over an RDD of Spark's internal rows."""
    kind = session._jsparkSession.parseDataType(columns.json())
    return DataFrame(session._jsparkSession.internalCreateDataFrame(rdd, kind, False), session)  # noqa: FBT003


def rows_of_batch(batch: DataFrame) -> Any:
    """The frame of a batch as an RDD of Spark's internal rows."""
    execution = batch._jdf.queryExecution()
    logical = execution.logical()
    return logical.rdd() if logical.nodeName() == "LogicalRDD" else execution.toRdd()


def parts_of_union(session: SparkSession, rdd: Any, count: int) -> list[Any] | None:
    """The RDDs of a union of this many; None if it is another RDD."""
    parts = _templates_of(session).parts(rdd, count)
    return None if parts is None else list(parts)


def cached_rows(frame: DataFrame) -> Any:
    """The cached relation of a persisted frame, for a slot of cached rows."""
    relation = _planned_again(frame).withCachedData().collectLeaves().head()
    if relation.nodeName() != "InMemoryRelation":
        raise UnavailableError(
            "Spark lost rows that this batch keeps, perhaps by clearCache(); the job goes back to its checkpoint"
        )
    return relation


def rows_of_frame(frame: DataFrame) -> Any:
    """The rows of a frame as an RDD; of a persisted one those that are kept."""
    return _planned_again(frame).toRdd()


def _planned_again(frame: DataFrame) -> Any:
    # The frame itself may have been planned before it was persisted.
    return frame.select("*")._jdf.queryExecution()


def observed(session: SparkSession, metrics: Any) -> dict[str, list[int | None]]:
    """Our metrics among those that a query has observed, by name. Each has whole numbers."""
    return _numbers(_templates_of(session).lines(METRIC, metrics))


def has_union(frame: DataFrame) -> bool:
    """Whether the plan of a frame puts rows of several frames together."""
    plan = frame._jdf.queryExecution().analyzed()
    return bool(_templates_of(frame.sparkSession).has(plan, "Union"))


def value_text(values: Sequence[int]) -> str:
    """The values of all value slots, as a template takes them."""
    return " ".join(f"{FIRST_VALUE - number} {value}" for number, value in enumerate(values))


def _slots(lines: str) -> frozenset[str]:
    return frozenset(line for line in lines.splitlines() if not _is_literal(line))


def _is_literal(line: str) -> bool:
    kind, name = line.split()
    return kind == "value" and not FIRST_VALUE - MOST_VALUES < int(name) <= FIRST_VALUE


def _numbers(lines: str) -> dict[str, list[int | None]]:
    found = {}
    for line in lines.splitlines():
        name, *numbers = line.split("\t")
        found[name] = [None if number == "null" else int(number) for number in numbers]
    return found


class PlanTemplate:
    """The plan of a frame that was built over slots."""

    def __init__(self, frame: DataFrame, rows: Iterable[int]) -> None:
        """`rows`: the numbers of all row slots of the frame."""
        self._context = frame.sparkSession.sparkContext
        execution = frame._jdf.queryExecution()
        self._java = _templates_of(frame.sparkSession).of(execution.executedPlan())
        self.slots = _slots(self._java.slots())
        """The slots in the plan, each as its kind and its name."""
        lost = _slots(self._java.slots(execution.analyzed())) - self.slots
        slots = f" {' '.join(map(str, rows))} "
        self.refusal = "it has lost slots" if lost else str(self._java.refusal(execution.analyzed(), slots))
        """Why the template must not be used, if not empty."""

    def columns(self) -> dict[int, list[int]]:
        """The positions of the columns that the plan uses, by the number of their row slot."""
        lines = [list(map(int, line.split())) for line in self._java.columns().splitlines()]
        return {slot: positions for slot, *positions in lines}

    def prune(self, slot: int, positions: Sequence[int]) -> None:
        """The rows for a slot will have only the columns at these positions."""
        self._java.prune(slot, " ".join(map(str, positions)))

    def fill(self, rows: Mapping[int, Any], tasks: Mapping[str, TypedTask], values: str) -> Any:
        """The result of a batch as an RDD, which has not run yet."""
        for slot, given in rows.items():
            self._java.rows(slot, given)
        for name, task in tasks.items():
            self._java.task(name, self._command(task))
        self._java.values(values)
        return self._java.fill()

    def observed(self) -> dict[str, list[int | None]]:
        """The metrics that were observed while the rows of the last `fill` were computed. It can be called once."""
        return _numbers(self._java.observed(METRIC))

    def _command(self, task: TypedTask) -> Any:
        """The task as Spark takes it. A long one, or one that uses a broadcast variable, needs more than its pickled form."""
        pickled = _PICKLER.dumps(task)  # type: ignore[no-untyped-call]
        if len(pickled) > LONGEST_COMMAND or any(True for _ in self._context._pickled_broadcast_vars):
            return _wrap_function(self._context, *task)
        return bytearray(pickled)
