"""One subtask of an operator in one batch: opens its state, runs its task, freezes the state, answers, uploads. Executors.

An operator does all its work, freezes its state and answers before it returns a single result. Whatever Spark does with the results
(reads only some of them, stops early), the state has seen every row of the batch.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace

import msgspec
import pyarrow as pa

from penstock.checkpoint.model import SubtaskReport
from penstock.clock import Stopwatch
from penstock.config import OnBadRecord
from penstock.ids import SubtaskId
from penstock.operators.bad_records import LETTER, BadRows
from penstock.operators.base import Spec, Task, TaskContext
from penstock.operators.event_time import LateRows
from penstock.operators.grouping import check_rows
from penstock.operators.inputs import TaskRows, collected, divided
from penstock.operators.outputs import BAD, LATE, LATE_RIGHT, Tags, tagged
from penstock.run.assignment import Assignment, BadCount, Executor, OperatorAnswer
from penstock.run.task_failures import report_failure, tolerates
from penstock.snapshot.merger import Merge
from penstock.snapshot.uploader import Upload, remember_newest
from penstock.state.backends.base import StateLayout, Workplace
from penstock.state.handle import StateHandle
from penstock.state.keys import SORT_KEY, key_groups, owner
from penstock.state.local_files import begin_run, forget_earlier_runs, forget_unnamed


@dataclass
class Subtask:
    """One operator in one batch. Spark calls it in a task, with the rows of one subtask. The rows say which subtask it is."""

    uid: str
    spec: Spec
    assignment: Assignment
    executor: Executor
    on_bad_record: OnBadRecord
    late: pa.Schema | None = field(default=None, kw_only=True)
    """The columns of late rows, if the job reads them."""
    late_right: pa.Schema | None = field(default=None, kw_only=True)
    """The columns of late rows of the second input, if the job reads them."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:  # noqa: D102 - Spark calls it
        attempt = self.executor.attempt()
        waiting = Stopwatch()
        layout = self.spec.layout()
        table = collected(batches, layout.key)
        alignment_ms = waiting.ms
        if table is None:
            self.executor.answer(OperatorAnswer(self.uid, attempt, None, None))
            return
        subtask = self._subtask_of(table)
        try:
            results = self._work(table, layout, subtask, attempt, alignment_ms)
        except Exception as error:
            report_failure(self.executor, self.assignment, subtask, error)
            raise
        yield from results

    @property
    def tags(self) -> Tags:
        """The outputs that travel with the results, where the job reads them. `spark/operators/base.py` has them in the same order."""
        bad = {BAD: LETTER} if self.on_bad_record is OnBadRecord.KEEP else {}
        late = {LATE: self.late, LATE_RIGHT: self.late_right}
        return {
            **bad,
            **{tag: columns for tag, columns in late.items() if columns is not None},
            **self.spec.sides(),
        }

    def _work(
        self, table: pa.Table, layout: StateLayout, subtask: SubtaskId, attempt: int, alignment_ms: float
    ) -> list[pa.RecordBatch]:
        assignment = self.assignment
        begin_run(
            assignment.place.local_dir, assignment.keep if assignment.place.local_recovery else frozenset()
        )
        before = assignment.handles.get(subtask)
        context = self._context(layout, subtask, before)
        task = self.spec.task(context)
        right = self.spec.second_input
        rows = divided(table, self.spec.broadcast, None if right is None else right.columns)
        if rows.broadcast is not None:
            check_rows(
                table, [], operator=self.uid, subtask=subtask.index, parallelism=assignment.place.parallelism
            )
        received, given = len(rows), task.rows_given(rows.own)
        given += 0 if rows.right is None else int(rows.right.num_rows)
        rows = self._checked(rows, task)
        workplace = Workplace.of(
            assignment.place,
            subtask,
            version=assignment.batch,
            attempt=attempt,
            merging=assignment.merging,
            arriving=assignment.undurable,
            clock=self.executor.clock,
            time=assignment.time_of(self.uid),
        )
        opening = Stopwatch()
        with closing(assignment.place.backend.open(workplace, layout, before)) as state:
            opening_ms = opening.ms
            outputs = task.apply(rows, state) if bool(rows) or task.uses_time else {}
            due = task.due()
            if assignment.ends_event_time:
                state.purge()
            freezing = Stopwatch()
            handle = msgspec.structs.replace(state.freeze(), due=due, over_us=task.over_us())
        report = self._report(handle, before, received, alignment_ms, freezing.ms)
        report = msgspec.structs.replace(report, **asdict(workplace.origins))
        bad, late, late_right = context.bad, context.late, context.late_right
        count = BadCount(bad.count, given + task.timers_fired, bad.first_reason)
        late_count = late.count + late_right.count
        state_ms = opening_ms + report.sync_ms
        self.executor.answer(
            OperatorAnswer(self.uid, attempt, handle, report, count, late_count, state_ms=state_ms)
        )
        self._upload(handle, before)
        self._merge(workplace, layout)
        self._tidy(handle)
        beside = {BAD: bad.letters(), LATE: late.batches(), LATE_RIGHT: late_right.batches()}
        return tagged({**beside, **outputs}, self.spec.output, self.tags)

    def _context(self, layout: StateLayout, subtask: SubtaskId, before: StateHandle | None) -> TaskContext:
        assignment = self.assignment
        return TaskContext(
            uid=self.uid,
            keys=tuple(layout.key.names),
            subtask=subtask.index,
            parallelism=assignment.place.parallelism,
            batch=assignment.batch,
            clock=assignment.clock_of(self.uid),
            over_us=None if before is None else before.over_us,
            on_bad_record=self.on_bad_record,
            bad=BadRows(self.uid, assignment.batch, kept=self.on_bad_record is OnBadRecord.KEEP),
            late=LateRows(self.late),
            late_right=LateRows(self.late_right),
            tolerates=tolerates,
        )

    def _checked(self, rows: TaskRows, task: Task) -> TaskRows:
        """Check that all rows belong to this subtask and have a key. Rows without a key are refused, or left out if the job allows it."""
        context = task.context
        right = self.spec.second_input
        right_keys = () if right is None else right.keys
        if self.on_bad_record is not OnBadRecord.FAIL and not task.takes_null_keys:
            rows = replace(rows, own=task.without_null_keys(rows.own, context.keys))
            if rows.right is not None:
                rows = replace(rows, right=task.without_null_keys(rows.right, right_keys))
        for table, keys in ((rows.own, context.keys), (rows.right, right_keys)):
            if table is not None:
                check_rows(
                    table,
                    [] if task.takes_null_keys else list(keys),
                    operator=self.uid,
                    subtask=context.subtask,
                    parallelism=context.parallelism,
                    shown=task.shown_columns(table),
                )
        return rows

    def _subtask_of(self, table: pa.Table) -> SubtaskId:
        """The subtask of these rows. Spark's partition number is of no use: it counts through all operators of a union."""
        group = int(key_groups(table.column(SORT_KEY).slice(0, 1).to_numpy())[0])
        return SubtaskId(self.uid, owner(group, self.assignment.place.parallelism))

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
        assignment = self.assignment
        durable = frozenset() if before is None else before.files - assignment.undurable
        if handle.files <= durable:
            return
        if assignment.newest_will_do:
            remember_newest(assignment.place.local_dir, handle)
        self.executor.upload(
            Upload(
                assignment.place.storage,
                assignment.place.local_dir,
                assignment.place.mailbox,
                assignment.place.run,
                handle,
                durable,
                required=assignment.required,
                newest_will_do=assignment.newest_will_do,
                awaited=assignment.awaited,
            )
        )

    def _merge(self, workplace: Workplace, layout: StateLayout) -> None:
        assignment = self.assignment
        order = assignment.merges.get(workplace.subtask)
        if order is not None:
            self.executor.merge(
                Merge(
                    assignment.place.backend,
                    workplace,
                    layout,
                    order,
                    assignment.place.mailbox,
                    assignment.place.run,
                )
            )

    def _tidy(self, handle: StateHandle) -> None:
        assignment = self.assignment
        if assignment.forget_earlier_runs:
            forget_earlier_runs(assignment.place.local_dir)
        subtask = handle.subtask
        forget_unnamed(
            assignment.place.local_dir,
            run=assignment.place.run,
            batch=assignment.batch,
            uid=subtask.uid,
            subtask=subtask.index,
            named=handle.files | assignment.keep,
            merging=subtask in assignment.expecting,
        )
