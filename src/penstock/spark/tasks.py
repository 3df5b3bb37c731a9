"""What runs inside Spark tasks: an operator's subtask, and a sink's writer. Executors.

An operator does all its work, freezes its state and answers before it hands on a single result: whatever Spark does with the results
(reads only some of them, stops early), the state has seen every row of the batch.
"""

from __future__ import annotations

import logging
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from penstock.checkpoint.completed import PreCommitted, SubtaskReport
from penstock.errors import InternalError, PenstockError
from penstock.ids import SubtaskId
from penstock.operators.aggregates import AggregateSpec
from penstock.operators.batch_process import BatchProcess
from penstock.operators.grouping import SORT_KEY, check_rows
from penstock.operators.keyed_process import Context, KeyedProcess
from penstock.operators.run_aggregate import run_aggregate
from penstock.operators.run_batch_process import run_batch_process
from penstock.operators.run_process import run_process
from penstock.recovery.repeated import may_pass, place_of
from penstock.sinks.checked_write import write_checked
from penstock.sinks.two_phase_commit import Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.snapshot.mailbox import send
from penstock.snapshot.merger import MERGER, Merge
from penstock.snapshot.messages import TaskFailed
from penstock.snapshot.uploader import UPLOADER, Upload, remember_newest
from penstock.spark.assignment import Assignment, OperatorAnswer, SinkAnswer, add_answer
from penstock.state.backends.base import OpenState, StateLayout, Workplace
from penstock.state.handle import StateHandle, state_stem
from penstock.state.keys import key_groups, owner
from penstock.state.local_files import begin_run, forget_earlier_runs, forget_unnamed

_log = logging.getLogger(__name__)

Task = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What Spark calls with the rows of a partition."""


@dataclass
class OperatorTask(ABC):
    """One keyed operator in one batch. Called by Spark with the rows of one subtask."""

    uid: str
    keys: tuple[str, ...]
    layout: StateLayout
    assignment: Assignment
    answers: Accumulator[list[bytes]]

    @abstractmethod
    def apply(self, table: pa.Table, state: OpenState, subtask: int) -> list[pa.RecordBatch]:
        """Update the state with the rows, return the results."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        attempt = _attempt()
        started = time.monotonic()
        table = _collect(batches, self.layout.key)
        alignment_ms = _ms_since(started)
        if table is None:
            add_answer(self.answers, OperatorAnswer(self.uid, attempt, None, None))
            return
        subtask = self._subtask_of(table)
        try:
            results = self._work(table, subtask, attempt, alignment_ms)
        except Exception as error:
            _tell_failure(self.assignment, subtask, error)
            raise
        yield from results

    def _work(
        self, table: pa.Table, subtask: SubtaskId, attempt: int, alignment_ms: float
    ) -> list[pa.RecordBatch]:
        plan = self.assignment
        begin_run(plan.local_dir, plan.keep)
        check_rows(
            table, list(self.keys), operator=self.uid, subtask=subtask.index, parallelism=plan.parallelism
        )
        before = plan.handles.get(subtask)
        workplace = self._workplace(subtask, attempt)
        with closing(plan.backend.open(workplace, self.layout, before)) as state:
            results = self.apply(table, state, subtask.index)
            freezing = time.monotonic()
            handle = state.freeze()
        report = self._report(handle, before, table.num_rows, alignment_ms, _ms_since(freezing))
        report = msgspec.structs.replace(report, **asdict(workplace.origins))
        add_answer(self.answers, OperatorAnswer(self.uid, attempt, handle, report))
        self._upload(handle, before)
        self._merge(workplace)
        self._tidy(handle)
        return results

    def _subtask_of(self, table: pa.Table) -> SubtaskId:
        """Which subtask this is. Not Spark's partition number: in a union of several operators that counts through all of them."""
        group = int(key_groups(table.column(SORT_KEY).slice(0, 1).to_numpy())[0])
        return SubtaskId(self.uid, owner(group, self.assignment.parallelism))

    def _workplace(self, subtask: SubtaskId, attempt: int) -> Workplace:
        plan = self.assignment
        return Workplace(
            storage=plan.storage,
            local_dir=plan.local_dir,
            subtask=subtask,
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            version=plan.batch,
            stem=state_stem(plan.run, plan.batch, subtask.index, attempt),
            merging=plan.merging,
        )

    def _report(
        self, handle: StateHandle, before: StateHandle | None, rows: int, alignment_ms: float, sync_ms: float
    ) -> SubtaskReport:
        known = set(before.refs) if before else set()
        return SubtaskReport(
            subtask=handle.subtask,
            rows=rows,
            alignment_ms=alignment_ms,
            sync_ms=sync_ms,
            state_bytes=handle.size,
            new_bytes=sum(ref.size for ref in handle.refs if ref not in known),
            host=socket.gethostname(),
        )

    def _upload(self, handle: StateHandle, before: StateHandle | None) -> None:
        plan = self.assignment
        durable = frozenset() if before is None else before.files - plan.undurable
        if handle.files <= durable:
            return
        if plan.newest_will_do:
            remember_newest(plan.local_dir, handle)
        UPLOADER.submit(
            Upload(
                plan.storage,
                plan.local_dir,
                plan.mailbox,
                plan.run,
                handle,
                durable,
                required=plan.required,
                newest_will_do=plan.newest_will_do,
                awaited=plan.awaited,
            )
        )

    def _merge(self, workplace: Workplace) -> None:
        plan = self.assignment
        order = plan.merges.get(workplace.subtask)
        if order is not None:
            MERGER.submit(Merge(plan.backend, workplace, self.layout, order, plan.mailbox, plan.run))

    def _tidy(self, handle: StateHandle) -> None:
        plan = self.assignment
        if plan.forget_earlier_runs:
            forget_earlier_runs(plan.local_dir)
        subtask = handle.subtask
        forget_unnamed(
            plan.local_dir,
            run=plan.run,
            batch=plan.batch,
            uid=subtask.uid,
            subtask=subtask.index,
            named=handle.files | plan.keep,
            merging=subtask in plan.expecting,
        )


@dataclass
class ProcessTask(OperatorTask):
    """The user's own code."""

    operator: KeyedProcess | BatchProcess
    output: pa.Schema

    def apply(self, table: pa.Table, state: OpenState, subtask: int) -> list[pa.RecordBatch]:
        """See `OperatorTask.apply`."""
        plan = self.assignment
        context = Context(self.uid, plan.batch, subtask, plan.parallelism)
        keys, operator = list(self.keys), self.operator
        if isinstance(operator, BatchProcess):
            return run_batch_process(
                operator, table, state, key_names=keys, output=self.output, context=context
            )
        return run_process(operator, table, state, key_names=keys, output=self.output, context=context)


@dataclass
class AggregateTask(OperatorTask):
    """SQL aggregates, merged."""

    specs: Sequence[AggregateSpec]

    def apply(self, table: pa.Table, state: OpenState, subtask: int) -> list[pa.RecordBatch]:  # noqa: ARG002
        """See `OperatorTask.apply`."""
        return run_aggregate(self.specs, table, state, key_names=list(self.keys))


@dataclass
class SinkTask:
    """One sink in one batch: begin, write, pre-commit. Yields nothing; the transaction goes to the driver as an answer."""

    uid: str
    sink: TwoPhaseCommitSink
    assignment: Assignment
    answers: Accumulator[list[bytes]]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        context = self._context()
        transaction: Transaction | None = None
        rows = 0
        try:
            for batch in batches:
                if batch.num_rows:
                    if transaction is None:
                        transaction = self.sink.begin_transaction(context)
                    write_checked(self.sink, transaction, batch)
                    rows += batch.num_rows
            if transaction is not None:
                transaction = self.sink.pre_commit(transaction)
        except Exception as error:
            self._abort(transaction)
            _tell_failure(self.assignment, SubtaskId(self.uid, context.subtask), error)
            raise
        add_answer(
            self.answers,
            SinkAnswer(self.uid, context.attempt, self._pre_committed(context, transaction, rows)),
        )
        yield from ()

    def _context(self) -> TransactionContext:
        plan = self.assignment
        return TransactionContext(
            job=plan.job,
            sink=self.uid,
            run=plan.run,
            checkpoint=plan.batch,
            subtask=_task().partitionId(),
            attempt=_attempt(),
        )

    def _pre_committed(
        self, context: TransactionContext, transaction: Transaction | None, rows: int
    ) -> PreCommitted | None:
        if transaction is None:
            return None
        return PreCommitted(self.uid, context.checkpoint, context.subtask, dict(transaction), rows)

    def _abort(self, transaction: Transaction | None) -> None:
        if transaction is None:
            return
        try:
            self.sink.abort(transaction)
        except Exception as error:  # noqa: BLE001 - the task fails with its own reason; what is left is swept later
            _log.warning(
                "sink %s: a failed task could not abort its transaction, recovery will: %s", self.uid, error
            )
            _log.debug("sink %s: where its abort failed", self.uid, exc_info=error)


@dataclass
class Fused:
    """An operator whose results go straight into a sink, in one Python worker."""

    first: OperatorTask
    second: SinkTask

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        return self.second(self.first(batches))


@dataclass
class Renamed:
    """A task whose rows come under other names than their own."""

    names: tuple[str, ...]
    task: Task

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        return self.task(batch.rename_columns(list(self.names)) for batch in batches)


def _task() -> TaskContext:
    task = TaskContext.get()
    if task is None:
        raise InternalError("this runs only inside a Spark task")
    return task


def _attempt() -> int:
    return _task().taskAttemptId()


def _collect(batches: Iterable[pa.RecordBatch], keys: pa.Schema) -> pa.Table | None:
    """All rows of the task; keys in the types of the state, whatever the session's time zone."""
    received = [batch for batch in batches if batch.num_rows]
    if not received:
        return None
    table = pa.Table.from_batches(received)
    for field in keys:
        index = table.column_names.index(field.name)
        if table.schema.field(index).type != field.type:
            table = table.set_column(index, field.name, table.column(index).cast(field.type))
    return table


def _ms_since(started: float) -> float:
    return round((time.monotonic() - started) * 1000, 3)


def _tell_failure(plan: Assignment, subtask: SubtaskId, error: Exception) -> None:
    """Exceptions reach the driver only as text inside Spark's own; what it must decide on is sent as data."""
    kind = type(error).__name__ if isinstance(error, PenstockError) else ""
    file = error.facts.get("file", "") if isinstance(error, PenstockError) else ""
    cause = str(error) if kind else f"{type(error).__name__}: {error}"
    try:
        told = TaskFailed(
            plan.run, plan.batch, subtask, kind, cause, str(file), place_of(error), may_pass(error)
        )
        send(plan.mailbox, told)
    except OSError as unreachable:
        _log.warning("the driver could not be told why %s failed (%s): %s", subtask, cause, unreachable)
