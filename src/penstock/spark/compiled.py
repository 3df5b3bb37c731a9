"""The job with every schema known: what `start` checks, and what each batch is built from. Driver.

Schemas are learned by running the graph over empty DataFrames, so every mistake in it shows before the query starts.

A keyed operator needs exactly as many partitions as its parallelism, whatever Spark learns about the rows. A batch is one plan with one
set of settings, so the settings depend on who shuffles:

    only operators              adaptive execution is off, and the number of partitions is the parallelism. Then the shuffle of an
                                aggregate itself brings every key to its subtask.
    the user's own SQL as well  the settings are those of the user's session. Before an operator, rows are placed by a shuffle with its
                                own number of partitions, which adaptive execution does not change.

Spark removes the shuffles of a plan that it finds to be empty, and operators would lose their subtasks. So the rules that look for empty
plans are off. The one of adaptive execution could also remove one side of a join from a running plan whose operators have already begun.
"""

from __future__ import annotations

import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from penstock.config import Mode
from penstock.errors import ConfigError, InternalError, PenstockError, UserCodeError
from penstock.graph import BadRecords, Graph, Late, Side, Source, Transform, Union
from penstock.guarantee import Guarantee
from penstock.job_spec import JobSpec
from penstock.operators.base import Node, Operator
from penstock.places import AT, Place, place_in_user_code
from penstock.recovery.progress_log import place_of_log
from penstock.spark.dead_letters import LETTERS
from penstock.spark.event_times import marked_in_both, with_marked_end
from penstock.spark.failure_messages import brief_text
from penstock.spark.inspection import (
    check_pickles,
    leaves,
    refuse_cleaning,
    refuse_stateful,
    replayable_positions,
    stream_numbers,
)
from penstock.spark.operators.base import CompiledOperator, OperatorInput
from penstock.spark.operators.registry import compile_operator
from penstock.spark.versions import arrow_schema
from penstock.state.local_files import job_dir
from penstock.status.plan import Plan, plan_nodes, plan_settings
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.job import Job


ADAPTIVE = "spark.sql.adaptive.enabled"
PARTITIONS = "spark.sql.shuffle.partitions"
_EXCLUDED = {
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation",
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}

_NODE = re.compile(r"^[\s:+-]*([A-Z]\w*)(.*)$", re.MULTILINE)
_SUBQUERY = re.compile(r"\b(?:list|exists|(?:scalar|lateral)-subquery)#")
_STAYS_IN_PLACE = {
    "CollectMetrics",
    "EventTimeWatermark",
    "Filter",
    "Generate",
    "LocalRelation",
    "LogicalRDD",
    "MapInArrow",
    "MapInPandas",
    "Project",
    "Repartition",
    "Sample",
    "SubqueryAlias",
    "Union",
}
"""Plan nodes that leave every row in its partition, or set their own number of partitions."""


def shuffles(plan: str) -> bool:
    """Whether an analysed plan may need a shuffle that Spark chooses; True if unknown."""
    return bool(_SUBQUERY.search(plan)) or any(
        name not in _STAYS_IN_PLACE and not _has_its_own_number(name, rest)
        for name, rest in _NODE.findall(plan)
    )


def _has_its_own_number(name: str, rest: str) -> bool:
    return (name == "Sort" and rest.endswith(", false")) or (
        name == "RepartitionByExpression" and re.search(r", \d+$", rest) is not None
    )


def batch_settings(session: SparkSession, *, own_shuffles: bool, parallelism: int) -> dict[str, str]:
    """The settings with which the batches of a job are planned. `own_shuffles`: whether the user's own SQL shuffles."""
    excluded = {
        name: ",".join(filter(None, (session.conf.get(name, None), rule))) for name, rule in _EXCLUDED.items()
    }
    if own_shuffles:
        return excluded | {name: str(session.conf.get(name)) for name in (ADAPTIVE, PARTITIONS)}
    return excluded | {ADAPTIVE: "false", PARTITIONS: str(parallelism)}


@contextmanager
def with_settings(session: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Use these settings inside the block, and restore the session after it: Spark plans the sources of the next batch in it."""
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, old)


@dataclass(frozen=True)
class Compiled:
    """Everything about a job that does not change from batch to batch."""

    session: SparkSession
    graph: Graph
    operators: dict[str, CompiledOperator]
    shared: frozenset[str]
    """Sources and operators whose rows are used more than once: they are materialised, and not computed again.

    This includes operators before a transform that makes Spark read their rows before the batch runs: a global sort, for which Spark
    takes a sample, or an action in the function.
    """
    eager: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The columns at the start of transforms that contain an action, by `id`: they may depend on the data."""
    own_shuffles: bool = False
    """Whether the user's own SQL shuffles, in addition to operators; see `shuffles`."""
    _columns: dict[object, Column] = field(default_factory=dict)

    def column(self, name: object, make: Callable[[], Column]) -> Column:
        """A column that is the same in every batch. It takes dozens of calls into the JVM, so it is made once."""
        if name not in self._columns:
            self._columns[name] = make()
        return self._columns[name]


def compile_job(graph: Graph) -> Compiled:
    """Check the whole graph and learn its types; raises `ConfigError`."""
    if not graph.sources:
        raise ConfigError("the job has no source: call job.read(...)")
    if not graph.outputs:
        raise ConfigError("the job has no sink: end a stream with write_to(...)")
    session = graph.sources[0].frame.sparkSession
    for source in graph.sources:
        refuse_stateful(source)
        refuse_cleaning(source)
    graph.check_bad_records()
    check_pickles(graph)
    compiler = _Compiler(session, graph)
    uses: Counter[str] = Counter()
    plans: list[str] = []
    inputs = [(part.uid, node) for part in graph.consumers() for node in part.inputs]
    for part_uid, node in inputs:
        plan = compiler.frame(node)._jdf.queryExecution().analyzed().toString()
        plans.append(plan)
        _refuse_unknown_pivot(plan, part_uid)
        used = {uid: plan.count(_mark(uid)) // 2 for uid in compiler.marked}
        uses.update(used)
        if _SAMPLED.search(plan):
            compiler.looked_at.update(uid for uid in compiler.operators if used[uid])
    for operator in graph.operators:
        compiler.frame(operator)
    for output in graph.outputs:
        frame = compiler.frame(output.upstream)
        with graph.saying_where(output.uid):
            output.sink.validate(arrow_schema(frame.schema))
    divided = {uid for uid, one in compiler.operators.items() if one.outputs.tags}
    shared = {uid for uid, n in uses.items() if n > 1} | compiler.looked_at | divided
    own_shuffles = bool(compiler.eager) or any(map(shuffles, plans))
    return Compiled(session, graph, compiler.operators, frozenset(shared), compiler.eager, own_shuffles)


def _refused(name: str, error: Exception, declared: Place | None) -> PenstockError:
    """The error for a transform that fails: the query is invalid, or the function itself raised."""
    kind = ConfigError if isinstance(error, AnalysisException) else UserCodeError
    refused = kind(f"transform {name}: {brief_text(error)}")
    place = place_in_user_code(error.__traceback__) or declared
    if place is not None:
        refused.add_note(f"{AT}{place}")
    return refused


_SAMPLED = re.compile(
    r"^\W*(?:Sort \[.*\], true|RepartitionByExpression \[.* (?:ASC|DESC) NULLS )", re.MULTILINE
)
"""In a plan: a global sort. Spark runs the plan below it twice, once for a sample."""
_PIVOT_WITHOUT_VALUES = re.compile(r"pivotfirst\(.*#\d+L?, 0, 0\)")


def _refuse_unknown_pivot(plan: str, uid: str) -> None:
    if _PIVOT_WITHOUT_VALUES.search(plan):
        raise ConfigError(
            f"what goes to {uid!r} has a pivot without values: its columns would come from the rows of each batch, and no sink or "
            "operator can be made for that. Name the values: pivot('column', ['a', 'b'])",
            uid=uid,
        )


def _operators_before(node: Node) -> Iterator[str]:
    match node:
        case Transform():
            yield from _operators_before(node.upstream)
        case Union():
            yield from _operators_before(node.left)
            yield from _operators_before(node.right)
        case Operator():
            yield node.uid
        case _:  # other outputs are materialised before a transform reads them
            return


def _mark(uid: str) -> str:
    return f"<penstock:{uid}>"


class _Compiler:
    def __init__(self, session: SparkSession, graph: Graph) -> None:
        self._session = session
        self._graph = graph
        self._frames: dict[int, DataFrame] = {}
        self.operators: dict[str, CompiledOperator] = {}
        self.marked: list[str] = []
        self.looked_at: set[str] = set()
        self.eager: dict[int, tuple[str, ...]] = {}

    def frame(self, node: Node) -> DataFrame:
        """An empty DataFrame with the columns of the node."""
        if id(node) not in self._frames:
            self._frames[id(node)] = self._make(node)
        return self._frames[id(node)]

    def _make(self, node: Node) -> DataFrame:  # noqa: PLR0911 - one for each kind
        match node:
            case Source():
                return self._empty(node.frame.schema, node.uid)
            case Transform():
                return self._transformed(node)
            case Union():
                return self._union(node)
            case Operator():
                with self._graph.saying_where(node.uid):
                    compiled = compile_operator(OperatorInput.of(node, self._graph, self.frame))
                self.operators[node.uid] = compiled
                return with_marked_end(node, self._empty(compiled.result, node.uid))
            case BadRecords():
                return self._empty(LETTERS, node.of.uid)
            case Late() if self._finds_late_rows(node.of):
                return self.frame(node.of.upstream)  # Spark finds them itself, in the same rows
            case Late():
                return self._empty(self.frame(node.stream).schema, node.of.uid)
            case Side():
                return self._empty(from_arrow_schema(node.of.side_outputs()[node.name].schema), node.of.uid)
            case _:
                raise InternalError(f"a {type(node).__name__} is no part of a job that Spark can run")

    def _finds_late_rows(self, node: Operator) -> bool:
        self.frame(node)
        return self.operators[node.uid].finds_late_rows

    def _empty(self, schema: StructType, uid: str) -> DataFrame:
        """An empty DataFrame. A filter that is always true leaves a mark in the plan, to count how many times the rows are used."""
        self.marked.append(uid)
        always = F.lit(_mark(uid)) == F.lit(_mark(uid))
        return self._session.createDataFrame([], schema).where(always)

    def _transformed(self, node: Transform) -> DataFrame:
        name = getattr(node.function, "__name__", repr(node.function))
        upstream = self.frame(node.upstream)
        jobs = self._jobs_so_far()
        try:
            result = node.function(upstream)
        except PenstockError:
            raise
        except Exception as error:
            raise _refused(name, error, node.place) from error
        if not isinstance(result, DataFrame):
            raise ConfigError(f"transform {name} returned {result!r}; it must return a DataFrame")
        if self._jobs_so_far() > jobs:
            self.looked_at.update(_operators_before(node))
            self.eager[id(node)] = tuple(result.columns)
        return result

    def _jobs_so_far(self) -> int:
        """The number of jobs in this session, of any user: one too many costs time, and never a result."""
        return int(self._session.sparkContext._jsc.sc().dagScheduler().numTotalJobs())

    def _union(self, node: Union) -> DataFrame:
        left, right = self.frame(node.left), self.frame(node.right)
        try:
            return marked_in_both(left, right)
        except AnalysisException as error:
            raise ConfigError(
                f"union: the streams have different columns ({left.columns} and {right.columns}): {error}"
            ) from error


def spec_of(job: Job, compiled: Compiled, owner: str) -> JobSpec:
    """The job as `run` and `recovery` see it."""
    at_most_once = job.checkpoint.delivery_mode is Mode.AT_MOST_ONCE
    numbers = stream_numbers(job.graph.sources)
    working_folder = job_dir(job.local_dir, job.name, job.storage.uri)
    return JobSpec(
        name=job.name,
        owner=owner,
        storage=job.storage,
        backend=job.backend,
        checkpoint=job.checkpoint,
        parallelism=job.parallelism,
        max_parallelism=job.max_parallelism,
        working_folder=working_folder,
        local_recovery=job.local_recovery,
        layouts={uid: operator.layout for uid, operator in compiled.operators.items()},
        upstream=job.graph.upstream_operators(),
        sinks={output.uid: output.sink for output in job.graph.outputs},
        event_times={
            source.uid: source.event_time for source in job.graph.sources if source.event_time is not None
        },
        timed_by={operator.uid: job.graph.event_time_sources(operator) for operator in job.graph.operators},
        lateness_us={
            node.uid: node.allowed_lateness_us
            for node in job.graph.operators
            if node.allowed_lateness_us is not None
        },
        streams={uid: len(own) for uid, own in numbers.items()},
        numbers=numbers,
        replayable=replayable_positions(job.graph.sources) if at_most_once else (),
        log_place=place_of_log(job.storage, working_folder, owner),
        shows_rows=job.show_rows,
    )


def plan_of(job: Job, compiled: Compiled, guarantee: Guarantee, *, available_now: bool) -> Plan:
    """The description of the job for status pages and the journal, the same for all runs of one start."""
    kinds = {
        source.uid: ", ".join(dict.fromkeys(leaf.kind for leaf in leaves(source.frame)))
        for source in job.graph.sources
    }
    return Plan(
        job=job.name,
        nodes=plan_nodes(job.graph, kinds, job.parallelism),
        settings=plan_settings(
            job.checkpoint,
            restart=str(job.restart),
            trigger_s=job.trigger_s,
            backend=job.backend.name,
            parallelism=job.parallelism,
            max_parallelism=job.max_parallelism,
            local_recovery=job.local_recovery,
        ),
        guarantee=guarantee.level.value if guarantee.level else "no guarantee",
        limited_by=guarantee.limited_by or "",
        reason=guarantee.reason,
        program=Path(sys.argv[0]).name if sys.argv else "",
        penstock=__version__,
        spark=compiled.session.version,
        python=platform.python_version(),
        available_now=available_now,
    )
