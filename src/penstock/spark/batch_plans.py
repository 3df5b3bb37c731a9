"""Runs batches of a job: each as one Spark action, or several where results are used more than once. Driver.

Spark plans a job once for each shape of its batches, and later batches fill this plan (`KeptPlan`). Where the plan may depend on the rows
or on the moment at which it is made, every batch is planned anew (`PlannedNow`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructType

from penstock.clock import Stopwatch
from penstock.errors import InternalError, UnavailableError
from penstock.job_spec import JobSpec
from penstock.operators.base import Operator
from penstock.run.assignment import Answer, Assignment, OperatorAnswer
from penstock.spark.compiled import Compiled, batch_settings, with_settings
from penstock.spark.event_times import NewestTimes
from penstock.spark.frames import (
    BatchShape,
    BatchSlots,
    JobFrames,
    MakeTask,
    rows_of_source,
    with_unread_columns,
)
from penstock.spark.plan_template import (
    PlanTemplate,
    RowSlot,
    cached_rows,
    frame_over,
    has_union,
    observed,
    parts_of_union,
    rows_of_batch,
    rows_of_frame,
    task_slot,
    value_slot,
    value_text,
)
from penstock.spark.tasks import SparkExecutor, Task

_log = logging.getLogger(__name__)

MOST_KEPT = 32
"""The most plans that are kept. Each `BatchShape` has its own."""


@dataclass
class BatchRun:
    """One batch that is about to run."""

    frame: DataFrame
    """The rows of all sources."""
    assignment: Assignment
    executor: SparkExecutor
    times: NewestTimes
    sources: dict[int, DataFrame] = field(default_factory=dict)
    """The rows of sources that are persisted, by number."""
    _persisted: list[DataFrame] = field(default_factory=list)
    _written: dict[str, int] = field(default_factory=dict)
    """The sinks that were written early because the job reads their bad rows, with the number of their tasks."""
    _tasks_ms: float = 0.0
    """How long its actions took."""
    _since_action: Stopwatch = field(default_factory=Stopwatch)

    def persist(self, frame: DataFrame) -> DataFrame:
        """Keep the rows of a frame until the end of the batch."""
        self._persisted.append(frame.persist())
        return frame

    def release(self) -> None:
        """Release the DataFrames that were persisted, and the answers."""
        for frame in self._persisted:
            frame.unpersist()
        self.executor.forget()

    @contextmanager
    def action(self) -> Iterator[None]:
        """An action of Spark runs inside: its time counts as that of tasks."""
        watch = Stopwatch()
        yield
        self._tasks_ms += watch.ms
        self._since_action = Stopwatch()

    def phases_ms(self, since_begin: Stopwatch, answers: Sequence[Answer]) -> dict[str, float]:
        """The phases of the batch, which ends now: `barrier` is what followed the last action, `plan` all else outside of actions."""
        state_ms = max((one.state_ms for one in answers if isinstance(one, OperatorAnswer)), default=0.0)
        barrier_ms = self._since_action.ms
        plan_ms = max(0.0, since_begin.ms - self._tasks_ms - barrier_ms)
        found = {"plan": plan_ms, "tasks": self._tasks_ms, "state": state_ms, "barrier": barrier_ms}
        return {name: round(ms, 3) for name, ms in found.items()}

    def ran(self, metrics: Mapping[str, list[int | None]], sink: str | None = None) -> None:
        """An action has ended; `sink` was written in it, and its bad rows are read."""
        self.times.take(metrics)
        if sink is not None:
            self._written[sink] = self._answers(sink)

    def _answers(self, uid: str) -> int:
        return sum(answer.uid == uid for answer in self.executor.given())

    def check_written_once(self) -> None:
        """Check that Spark has not written again: to recover lost bad rows, its tasks would write all other rows again."""
        for uid, tasks in self._written.items():
            if self._answers(uid) > tasks:
                raise UnavailableError(
                    f"batch {self.assignment.batch} is given up: Spark lost bad rows of the sink {uid} and wrote to it again; the job goes "
                    "back to its checkpoint",
                    sink=uid,
                )


class BatchPlans:
    """Runs the batches of one run, and keeps their plans."""

    def __init__(self, compiled: Compiled, spec: JobSpec) -> None:
        self._compiled = compiled
        self._spec = spec
        self._settings = batch_settings(
            compiled.session, own_shuffles=compiled.own_shuffles, parallelism=spec.parallelism
        )
        self._kept: dict[object, KeptPlan] = {}
        self.planned_anew = ""
        """Why Spark plans every batch anew; '' if plans are kept."""
        if compiled.own_shuffles:
            what = "runs an action" if compiled.eager else "shuffles its rows or reads a table"
            self._plan_anew(f"a transform {what}")
        self._session = _clone(compiled.session, self._settings)
        self._all = [source.frame.schema for source in compiled.graph.sources]
        self._cached = [source.uid in compiled.shared for source in compiled.graph.sources]
        self.columns = self._all
        """The columns that the job reads of its sources, by their number. The frames of batches must have these."""
        self.columns = self._read_columns()
        for plan in self._kept.values():
            plan.prune(self.columns)
        apart = not any(has_union(source.frame) for source in compiled.graph.sources)
        self._by_source = RowsBySource(len(self._all), apart=apart)

    def _read_columns(self) -> list[StructType]:
        """The columns that a plan uses, or all columns if plans are not kept."""
        times = NewestTimes.before(self._spec)
        try:
            plan = self._plan(BatchShape(frozenset(), times))
        except Exception as error:  # noqa: BLE001 - it comes again in the first batch, and counts as a failure of that
            _log.debug("the job could not be planned: %s", error)
            plan = None
            self._plan_anew(f"the job could not be planned when the run started: {type(error).__name__}")
        if plan is None:
            return self._all
        used = plan.columns_used()
        return [
            _pruned(columns, used[at], times.columns(source.uid))
            for at, (source, columns) in enumerate(zip(self._compiled.graph.sources, self._all, strict=True))
        ]

    def run(self, batch: BatchRun) -> list[Answer]:
        """Run the batch. When it returns, every kept attempt has answered; these answers are returned."""
        sources = self._compiled.graph.sources
        again = [at for at, source in enumerate(sources) if batch.times.needs_a_pass(source.uid)]
        shape = BatchShape(batch.assignment.wake, batch.times)
        plan = self._plan(shape)
        if plan is None:
            answers = self._planned_now(batch, shape, again)
        else:
            plan.run(batch, self._source_rows(batch, again))
            answers = self._with_unread(batch, plan.run_unread)
            plan.forget_batch()
        batch.check_written_once()
        for at in again:
            with batch.action():
                batch.times.look_through(sources[at].uid, batch.sources[at])
        return answers

    def _plan_anew(self, why: str) -> None:
        """From now on keep no plans."""
        self.planned_anew = why
        _log.debug("every batch is planned anew: %s", why)
        self.close()

    def close(self) -> None:
        """Forget all plans, and release what Spark keeps for them."""
        for plan in self._kept.values():
            plan.close()
        self._kept.clear()

    def _with_unread(self, batch: BatchRun, run: Callable[[Operator], None]) -> list[Answer]:
        """The answers of all operators. Spark leaves out operators whose results are not used; these are run for themselves."""
        answers = batch.executor.given()
        for operator in reversed(self._compiled.graph.operators):
            if not any(answer.uid == operator.uid for answer in answers):
                run(operator)
                answers = batch.executor.given()
        return answers

    def _frames(self, slots: BatchSlots, shape: BatchShape) -> JobFrames:
        return JobFrames(self._compiled, slots, self._spec.parallelism, self._spec.max_parallelism, shape)

    # ── a plan for this batch alone ────────────────────────────────────────────────────────────

    def _planned_now(self, batch: BatchRun, shape: BatchShape, again: list[int]) -> list[Answer]:
        count = len(self._all)
        with with_settings(batch.frame.sparkSession, self._settings):
            if again or count > 1 or any(self._cached):
                batch.persist(batch.frame)
            batch.sources = {at: rows_of_source(batch.frame, count, at) for at in range(count)}
            now = PlannedNow(batch, self._all)
            frames = self._frames(now, shape)
            now.perform(frames.outputs())
            return self._with_unread(batch, lambda operator: now.perform(frames.unread(operator)))

    # ── a plan for many batches ────────────────────────────────────────────────────────────────

    def _plan(self, shape: BatchShape) -> KeptPlan | None:
        """The plan for batches of this shape; None if plans of this job cannot be kept."""
        if self.planned_anew:
            return None
        if shape.key not in self._kept:
            if len(self._kept) >= MOST_KEPT:
                self.close()
            self._kept[shape.key] = plan = KeptPlan(self._session, self._all, self._cached)
            plan.build(self._frames(plan, shape))
            refusal = plan.refusal or plan.prune(self.columns)
            if refusal:
                self._plan_anew(refusal)
                return None
        return self._kept[shape.key]

    def _source_rows(self, batch: BatchRun, again: list[int]) -> list[Any]:
        """The rows of the sources for the slots of a plan."""
        rdds, count = self._by_source.rows(batch.frame), len(self._all)
        if rdds is None:
            batch.persist(batch.frame)
        given = []
        for at, cached in enumerate(self._cached):
            if rdds is not None and not cached and at not in again:
                given.append(rdds[at])
                continue
            if rdds is None or count == 1:
                frame = rows_of_source(batch.frame, count, at)
            else:
                frame = frame_over(batch.frame.sparkSession, rdds[at], self.columns[at])
            if cached or at in again:
                batch.sources[at] = batch.persist(frame)
            given.append(cached_rows(frame) if cached else rows_of_frame(frame))
        return given


def _clone(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session of its own to plan in: the settings of the user's session do not change."""
    own = SparkSession(session.sparkContext, session._jsparkSession.cloneSession())
    for name, value in settings.items():
        own.conf.set(name, value)
    return own


def _pruned(columns: StructType, used: set[int], named: Collection[str]) -> StructType:
    """The columns at these positions and with these names, at least one."""
    if len({name.lower() for name in columns.fieldNames()}) < len(columns):
        return columns  # two columns of one name cannot be selected
    kept = [one for at, one in enumerate(columns.fields) if at in used or one.name in named]
    return StructType(kept or columns.fields[:1])


class RowsBySource:
    """Takes the merged frame of a batch apart."""

    def __init__(self, count: int, *, apart: bool) -> None:
        self._count = count
        self._apart = apart
        """Whether each source is at most one part of the union: Spark leaves out a source without rows, and takes unions apart."""
        self._slot: RowSlot | None = None
        self._templates: list[PlanTemplate] = []

    def rows(self, merged: DataFrame) -> list[Any] | None:
        """An RDD for each source; None if Spark has not read the sources one after the other."""
        rdd, session = rows_of_batch(merged), merged.sparkSession
        if self._count == 1 or rdd.getNumPartitions() == 0:
            return [rdd] * self._count
        parts = parts_of_union(session, rdd, self._count) if self._apart else None
        if parts is None:
            return None
        if self._slot is None:
            self._slot = slot = RowSlot.of(session, merged.schema, cached=False)
            frames = [rows_of_source(slot.frame, self._count, at) for at in range(self._count)]
            self._templates = [PlanTemplate(frame, [slot.number]) for frame in frames]
        number = self._slot.number
        return [
            template.fill({number: part}, {}, "")
            for template, part in zip(self._templates, parts, strict=True)
        ]


@dataclass(frozen=True)
class PlannedNow:
    """Plans one batch over its own rows."""

    batch: BatchRun
    columns: list[StructType]
    """All columns of the sources."""

    def rows(self, source: int) -> DataFrame:
        """The rows of a source in this batch."""
        return with_unread_columns(self.batch.sources[source], self.columns[source])

    def task(self, make: MakeTask, result: StructType) -> Task:  # noqa: ARG002
        """The task for this batch."""
        return make(self.batch.assignment, self.batch.executor)

    def value(self, make: Callable[[Assignment], int]) -> Column:
        """The number in this batch."""
        return F.lit(make(self.batch.assignment))

    def materialised(self, frame: DataFrame, sink: str | None = None) -> DataFrame:
        """Compute the frame now, and keep its rows until the end of the batch."""
        self.perform(self.batch.persist(frame).groupBy().count(), sink)
        return frame

    def perform(self, frame: DataFrame, sink: str | None = None) -> None:
        """Run a frame now, as an action of the batch."""
        execution = frame._jdf.queryExecution()
        execution.executedPlan()  # else Spark plans in the action, whose time counts as that of tasks
        with self.batch.action():
            frame.collect()
        self.batch.ran(observed(frame.sparkSession, execution.observedMetrics()), sink)


@dataclass(frozen=True)
class _Stage:
    """One action of a batch."""

    template: PlanTemplate
    columns: StructType
    result: RowSlot | None = None
    """The slot for its rows in later stages."""
    sink: str | None = None


class KeptPlan:
    """The plan of all batches of one shape: slots for what differs between them, and the actions in their order."""

    def __init__(self, session: SparkSession, columns: list[StructType], cached: list[bool]) -> None:
        self._session = session
        self._columns = columns
        """All columns of the sources."""
        self._cached = cached
        """Whether the rows of a source are used more than once."""
        self._read: dict[int, list[int]] = {}
        """The positions of the columns that are read of a source, by its number."""
        self._sources: dict[int, RowSlot] = {}
        self._tasks: dict[str, tuple[MakeTask, StructType]] = {}
        self._values: list[Callable[[Assignment], int]] = []
        self._stages: list[_Stage] = []
        self._unread: dict[str, _Stage] = {}
        self._batch: BatchRun | None = None
        self._rows: dict[int, Any] = {}

    # ── building ───────────────────────────────────────────────────────────────────────────────

    def build(self, frames: JobFrames) -> None:
        """Plan all outputs of these frames, which use the slots of this plan, and the operators whose results are not read."""
        self._stages.append(self._stage(frames.outputs()))
        for operator in reversed(frames.compiled.graph.operators):
            if operator.uid not in frames.built:
                self._unread[operator.uid] = self._stage(frames.unread(operator))

    @property
    def refusal(self) -> str:
        """Why this plan must not be used for other batches, if not empty."""
        return next((stage.template.refusal for stage in self._all_stages() if stage.template.refusal), "")

    def _all_stages(self) -> list[_Stage]:
        return [*self._stages, *self._unread.values()]

    def columns_used(self) -> list[set[int]]:
        """The positions of the columns that the plan uses of each source."""
        used: list[set[int]] = [set() for _ in self._columns]
        for stage in self._all_stages():
            columns = stage.template.columns()
            for at, slot in self._sources.items():
                used[at].update(columns.get(slot.number, ()))
        return used

    def prune(self, read: Sequence[StructType]) -> str:
        """From now on sources have only these columns. Returns why the plan must not be used with them, if not empty."""
        for at, columns in enumerate(read):
            names = set(columns.fieldNames())
            self._read[at] = [i for i, one in enumerate(self._columns[at].names) if one in names]
        for stage in self._all_stages():
            for at, slot in self._sources.items():
                stage.template.prune(slot.number, self._read[at])
        unread = [
            self._columns[at].names[i]
            for at, used in enumerate(self.columns_used())
            for i in sorted(used.difference(self._read[at]))
        ]
        return f"it uses columns that are not read: {', '.join(unread)}" if unread else ""

    def rows(self, source: int) -> DataFrame:
        """A slot for the rows of a source."""
        if source not in self._sources:
            self._sources[source] = RowSlot.of(
                self._session, self._columns[source], cached=self._cached[source]
            )
        return self._sources[source].frame

    def task(self, make: MakeTask, result: StructType) -> Task:
        """A slot for a task."""
        slot = task_slot(len(self._tasks))
        self._tasks[slot.__name__] = make, result
        return slot

    def value(self, make: Callable[[Assignment], int]) -> Column:
        """A slot for a number."""
        self._values.append(make)
        return value_slot(len(self._values) - 1)

    def materialised(self, frame: DataFrame, sink: str | None = None) -> DataFrame:
        """A slot for the rows of this frame. An action computes them before the actions that use them."""
        slot = RowSlot.of(self._session, frame.schema, cached=True)
        self._stages.append(self._stage(frame, slot, sink))
        return slot.frame

    def _stage(self, frame: DataFrame, result: RowSlot | None = None, sink: str | None = None) -> _Stage:
        rows = [slot.number for slot in self._slots()]
        return _Stage(PlanTemplate(frame, rows), frame.schema, result, sink)

    def _slots(self) -> list[RowSlot]:
        results = [stage.result for stage in self._stages]
        return [*self._sources.values(), *(slot for slot in results if slot is not None)]

    def close(self) -> None:
        """Release the frames of slots for cached rows."""
        for slot in self._slots():
            slot.frame.unpersist()

    # ── running ────────────────────────────────────────────────────────────────────────────────

    def run(self, batch: BatchRun, rows: list[Any]) -> None:
        """Run a batch with these rows of its sources."""
        self._batch = batch
        self._rows = {slot.number: rows[at] for at, slot in self._sources.items()}
        for stage in self._stages:
            self._run(batch, stage)

    def run_unread(self, operator: Operator) -> None:
        """Run an operator of this batch whose results are not used."""
        if self._batch is None or operator.uid not in self._unread:
            raise InternalError(
                f"operator {operator.uid!r} is part of the plan of this batch, and has not answered"
            )
        self._run(self._batch, self._unread[operator.uid])

    def forget_batch(self) -> None:
        """Let go of the rows of the last batch: Spark deletes the files of its shuffles when nothing refers to them."""
        self._batch = None
        self._rows = {}

    def _run(self, batch: BatchRun, stage: _Stage) -> None:
        assignment, slots = batch.assignment, stage.template.slots
        rows = {number: rdd for number, rdd in self._rows.items() if f"rows {number}" in slots}
        tasks = {
            name: (make(assignment, batch.executor), result)
            for name, (make, result) in self._tasks.items()
            if f"task {name}" in slots
        }
        values = value_text([make(assignment) for make in self._values])
        result = stage.template.fill(rows, tasks, values)
        if stage.result is None:
            with batch.action():
                result.count()
        else:
            frame = batch.persist(frame_over(self._session, result, stage.columns))
            cached = cached_rows(frame)
            with batch.action():
                cached.cacheBuilder().cachedColumnBuffers().count()
            self._rows[stage.result.number] = cached
        batch.ran(stage.template.observed(), stage.sink)
