"""One run of a job: assigns its batches, collects the answers of tasks, and passes them to the coordinator. Driver.

The caller (Spark's query, or the simulation) calls `begin_batch` and `end_batch` for each batch in turn, `deliver` for every message, from
any thread, and `look_after` at short intervals. When something `is_due` and there is no batch to read, the caller begins a tick: a batch
that reads nothing and only advances time. Batches are numbered here, including ticks; Spark numbers only the batches that read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from penstock.checkpoint.commits import Post
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import BatchFinished, SnapshotDeclined, SnapshotDurable
from penstock.checkpoint.model import Barrier
from penstock.clock import Clock
from penstock.config import Mode
from penstock.ids import NO_CHECKPOINT, CheckpointId, SparkBatch, SubtaskId
from penstock.job_spec import JobSpec
from penstock.operators.event_time import OperatorClock
from penstock.operators.state.timers import moment, watermark
from penstock.recovery.start import Start, log_origins
from penstock.run.acknowledgements import BadRecordCounts, LateRowCounts, acknowledged
from penstock.run.assignment import Answer, Assignment, RunPlace
from penstock.run.reading import Reading, moved, named_partitions
from penstock.run.task_failures import FailureReports, RepeatReporter, as_error, repeated_tasks
from penstock.run.watermarks import (
    Newest,
    Watermarks,
    due_operators,
    expiring_by_event_time,
    refuse_pending_timers,
    waiting_in_event_time,
)
from penstock.snapshot.mailbox import (
    Address,
    MergeDone,
    MergeFailed,
    Message,
    TaskFailed,
    UploadDone,
    UploadFailed,
)
from penstock.snapshot.transfer import Rescue, Room
from penstock.state.handle import FileRef, StateHandle
from penstock.state.lifetimes import Moment, in_microseconds
from penstock.state.merge_orders import RETRY_AFTER_S, Merged, MergeOrders
from penstock.status.observer import Observer
from penstock.wording import duration

_log = logging.getLogger(__name__)

MOST_WAITING_COMMITS = 10_000
"""Each checkpoint's metadata names every uncommitted transaction, so a sink that stays down must stop the batches at some point."""


@dataclass(frozen=True)
class BatchUnderWay:
    """A batch that has begun and is not acknowledged yet."""

    assignment: Assignment
    barrier: Barrier
    began: float
    reads: bool = True
    """Whether Spark planned it to read rows; otherwise it is a tick."""


class Run:
    """One attempt to run the job, from its first batch to its last."""

    def __init__(
        self,
        spec: JobSpec,
        start: Start,
        coordinator: Coordinator,
        *,
        post: Post,
        clock: Clock,
        observer: Observer,
        in_background: Callable[[Callable[[], None]], None],
        room: Room | None = None,
        choose_merge: Callable[[Sequence[FileRef], Moment], range | None] | None = None,
        wake: Callable[[CheckpointId], frozenset[str]] = lambda _: frozenset(),
    ) -> None:
        self._spec = spec
        self._start = start
        self._coordinator = coordinator
        self._post = post
        self._clock = clock
        self._observer = observer
        self._wake = wake
        self._handles: Mapping[SubtaskId, StateHandle] = start.handles
        self._last_batch = start.plan.last_read
        self._now_us = start.plan.now_us
        restored = start.plan.checkpoint
        self._bad_records = BadRecordCounts(
            {} if restored is None else restored.bad_records, shows_reasons=spec.shows_rows
        )
        observer.bad_records(self._bad_records.so_far)
        self._late_rows = LateRowCounts({} if restored is None else restored.late_rows)
        observer.late_rows(self._late_rows.so_far)
        self._watermarks = Watermarks(
            spec.event_times,
            {uid: spec.timed_by.get(uid, frozenset()) for uid in spec.layouts},
            start.plan.barrier.time,
            self._now_us,
            spec.upstream,
            lateness_us=spec.lateness_us,
        )
        known = named_partitions(start.plan.barrier.positions, spec.event_times)
        self._watermarks.know(known, self._now_us)
        self._show_event_time()
        self._failures = FailureReports()
        self._repeated = RepeatReporter(observer.tasks_repeated, clock)
        self._merge_orders = MergeOrders(choose_merge or spec.backend.choose_merge)
        self._reading = Reading(
            start.log,
            start.source_log,
            spec.source_numbers,
            start.plan,
            mode=spec.mode,
            hold=coordinator.hold,
            clock=clock,
        )
        self._rescue = Rescue(
            spec.storage, start.local_dir, clock, self._stored, self._not_stored, in_background, room
        )

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    @property
    def waiting_commits(self) -> int:
        """How many transactions wait for their commit. At `MOST_WAITING_COMMITS` no new batch should begin."""
        return self._coordinator.waiting_commits

    @property
    def next_batch(self) -> CheckpointId:
        """The number of the batch that is running, or begins next."""
        return CheckpointId(self._last_batch + 1)

    def begin_batch(
        self, read: SparkBatch, mailbox: Address, *, planned_us: int | None = None
    ) -> BatchUnderWay:
        """Assign the work of a batch. Spark's progress log says where it ends, by Spark's number `read`.

        `planned_us`: when Spark planned the batch, if not just now. Spark had looked at all sources by then: those whose positions did not
        move had no rows.
        """
        self._failures = FailureReports(self.next_batch, shows_rows=self._spec.shows_rows)
        before = self._reading.barrier.positions
        barrier = self._reading.read(read)
        now_us = self._advance_clock()
        self._watermarks.know(named_partitions(barrier.positions, self._spec.event_times), now_us)
        clocks = self._watermarks.begin(
            now_us,
            reads=moved(before, barrier.positions),
            looked_us=now_us if planned_us is None else planned_us,
            waiting=self._waiting,
        )
        return replace(self._begin(barrier, clocks, mailbox), reads=True)

    def begin_tick(self, mailbox: Address, *, looked_us: int | None = None) -> BatchUnderWay:
        """Begin a batch that reads nothing, because something is due. `looked_us`: see `is_due`."""
        self._failures = FailureReports(self.next_batch, shows_rows=self._spec.shows_rows)
        clocks = self._watermarks.begin(self._advance_clock(), looked_us=looked_us, waiting=self._waiting)
        return self._begin(self._reading.barrier, clocks, mailbox)

    def begin_end_of_time(self, mailbox: Address) -> BatchUnderWay:
        """Begin a batch that ends event time: everything that waits in event time is due. `begin_anew` must follow."""
        self._failures = FailureReports(self.next_batch, shows_rows=self._spec.shows_rows)
        clocks = self._watermarks.begin_end_of_time(self._advance_clock())
        return self._begin(self._reading.barrier, clocks, mailbox)

    def begin_anew(self, mailbox: Address) -> BatchUnderWay:
        """Begin a batch that removes state which expired at the end of event time. After it, the watermark follows the rows again."""
        self._failures = FailureReports(self.next_batch, shows_rows=self._spec.shows_rows)
        self._advance_clock()
        clocks = self._watermarks.begin_anew(self.next_batch)
        return self._begin(self._reading.barrier, clocks, mailbox, anew=True)

    @property
    def _waiting(self) -> dict[str, int]:
        return waiting_in_event_time(self._handles.values())

    def _advance_clock(self) -> int:
        self._now_us = max(self._now_us, in_microseconds(self._clock.wall()))
        return self._now_us

    def _begin(
        self, barrier: Barrier, clocks: Mapping[str, OperatorClock], mailbox: Address, *, anew: bool = False
    ) -> BatchUnderWay:
        began = self._clock.monotonic()
        self._observer.batch_begun()
        barrier = msgspec.structs.replace(barrier, time=self._watermarks.reached())
        self._reading.begin(self.next_batch, barrier)
        return BatchUnderWay(
            self._assign(self.next_batch, clocks, mailbox, anew=anew), barrier, began, reads=False
        )

    def _assign(
        self, batch: CheckpointId, clocks: Mapping[str, OperatorClock], mailbox: Address, *, anew: bool
    ) -> Assignment:
        self._handles, merged = self._merge_orders.adopt(self._handles)
        expecting = self._merge_orders.expecting  # taken before new orders, whose files belong to this batch
        opening = self._coordinator.begin_batch(batch, self._handles.values(), merged)

        def moment_of(uid: str) -> Moment:
            return Moment(self._now_us, clocks[uid].before_us)

        watermarks_us = {uid: clock.watermark_us for uid, clock in clocks.items()}
        wake = due_operators(self._handles.values(), watermarks_us, self._now_us) | self._wake(batch)
        return Assignment(
            place=self._place(mailbox),
            batch=batch,
            handles=self._handles,
            undurable=opening.undurable,
            keep=opening.needed,
            merges=self._merge_orders.order(self._handles.values(), self._clock.monotonic(), moment_of),
            merging=self._merge_orders.merging,
            expecting=expecting,
            forget_earlier_runs=opening.completed > self._start.plan.id,
            awaited=opening.awaited,
            newest_will_do=self._spec.mode is Mode.AT_LEAST_ONCE,
            now_us=self._now_us,
            switched_on_us=self._start.plan.state.lifetimes.switched_on,
            clocks=clocks,
            wake=wake | expiring_by_event_time(self._spec.layouts) if anew else wake,
            ends_event_time=anew,
        )

    def _place(self, mailbox: Address) -> RunPlace:
        spec = self._spec
        return RunPlace(
            job=spec.owner,
            run=self._start.plan.run,
            parallelism=spec.parallelism,
            max_parallelism=spec.max_parallelism,
            storage=spec.storage,
            backend=spec.backend,
            local_dir=self._start.local_dir,
            local_recovery=spec.local_recovery,
            mailbox=mailbox,
            former_uids=self._start.plan.former_uids,
        )

    def end_batch(
        self, batch: BatchUnderWay, answers: Sequence[Answer], newest: Newest | None = None
    ) -> None:
        """All tasks are done: the barrier has passed the whole job. `answers` come from the attempts that Spark kept.

        `newest`: the newest event times among the rows that were read.
        """
        assignment = batch.assignment
        self._watermarks.finish(newest or {})
        barrier = msgspec.structs.replace(batch.barrier, time=self._watermarks.reached())
        done = acknowledged(assignment, tuple(self._spec.layouts), answers)
        self._merge_orders.not_taken(assignment.merges.keys() - done.with_rows)
        for report in done.reports.values():
            log_origins(report)
        self._handles, self._last_batch = done.handles, assignment.batch
        if done.bad_records:
            self._bad_records.add(assignment.batch, done.bad_records)
            self._observer.bad_records(self._bad_records.so_far)
        if done.late_rows:
            self._late_rows.add(assignment.batch, done.late_rows)
            self._observer.late_rows(self._late_rows.so_far)
        self._coordinator.batch_finished(
            BatchFinished(
                assignment.batch,
                barrier,
                dict(done.handles),
                done.transactions,
                dict(done.reports),
                self._bad_records.so_far,
                assignment.now_us,
                self._late_rows.so_far,
                self._clock.wall(),
            )
        )
        self._repeated.take(repeated_tasks(assignment.batch, self._failures.reports, answers))
        self._show_event_time()
        seconds = self._clock.monotonic() - batch.began
        self._observer.batch_done(
            assignment.batch, done.transactions, seconds, done.reports.values(), done.handles.values()
        )

    # ── time ───────────────────────────────────────────────────────────────────────────────────

    def _show_event_time(self) -> None:
        timed = {uid for uid, sources in self._spec.timed_by.items() if sources}
        if timed:
            reached = self._watermarks.reached()
            waiting = waiting_in_event_time(self._handles.values())
            self._observer.event_time(
                {uid: watermark(us) for uid, us in reached.watermarks_us.items() if uid in timed},
                {uid: moment(us) for uid, us in waiting.items() if uid in timed},
                {uid: watermark(one.watermark_us) for uid, one in reached.sources.items()},
            )

    @property
    def time_us(self) -> int:
        """The time that a batch would get if it began now."""
        return max(self._now_us, in_microseconds(self._clock.wall()))

    def is_due(self, by_us: int | None = None, *, looked_us: int | None = None) -> bool:
        """Whether a tick that begins now has something to do. `by_us`: only what is due by then on the clock counts.

        `looked_us`: when Spark last looked at all sources and found nothing, if that was after the last batch. Only then are the sources
        known to be idle; with a backlog ahead, event time must not advance with the clock.
        """
        if self._last_batch == NO_CHECKPOINT:
            return False  # nothing was read yet, so nothing waits
        watermarks_us = self._watermarks.if_nothing_is_read(looked_us, self._waiting)
        return bool(
            due_operators(self._handles.values(), watermarks_us, self.time_us if by_us is None else by_us)
        )

    def read_to_the_end(self, looked_us: int) -> None:
        """Everything that the sources had at this moment is read, and this run reads nothing more."""
        self._watermarks.read_to_the_end(looked_us)

    @property
    def ends_with_event_time(self) -> bool:
        """Whether the end of event time would fire or expire anything."""
        living = expiring_by_event_time(self._spec.layouts) or waiting_in_event_time(self._handles.values())
        return self._last_batch != NO_CHECKPOINT and bool(living)

    @property
    def time_is_over(self) -> bool:
        """Whether event time ended in the last batch, of this run or of the one that it continues: `begin_anew` must follow."""
        return self._watermarks.time_is_over

    def check_nothing_waits(self) -> None:
        """After a drain, fail if a timer is still pending: it could never fire."""
        refuse_pending_timers(self._handles.values())

    # ── beside the batches ─────────────────────────────────────────────────────────────────────

    def deliver(self, message: Message) -> None:
        """Take a message of an executor. From any thread, in any order, also after the run."""
        if message.run != self._start.plan.run:
            return  # from an earlier run
        match message:
            case UploadDone():
                self._post(SnapshotDurable(message.handle, message.async_ms))
            case UploadFailed():
                self._rescue.failed(message.subtask)
                asked = frozenset(message.asked)
                self._post(
                    SnapshotDeclined(
                        message.subtask, message.version, message.cause, asked, message.files, message.tried
                    )
                )
            case TaskFailed():
                self._failures.take(message)
            case MergeDone():
                self._merge_orders.done(Merged(message.subtask, message.replaced, message.merged))
                self._observer.merged(message)
            case MergeFailed():
                self._merge_orders.failed(message.subtask, self._clock.monotonic())
                if message.file:
                    self._coordinator.give_back([message.file], CheckpointId(self._last_batch + 1))
                _log.warning(
                    "%s: files of state could not be merged in the background; they stay as they are, next try in %s: %s",
                    *(message.subtask, duration(RETRY_AFTER_S), message.cause),
                )

    def _stored(self, handle: StateHandle) -> None:
        self._post(SnapshotDurable(handle))

    def _not_stored(self, handle: StateHandle, cause: str) -> None:
        """An upload by the driver failed. This declines no checkpoint, but some of the files may be in storage now."""
        files = tuple(sorted(handle.files))
        self._post(SnapshotDeclined(handle.subtask, handle.version, cause, frozenset(), files))

    def look_after(self) -> None:
        """Upload files whose worker is gone, and record where the sources begin."""
        self._rescue.look(self._coordinator.undurable_handles)
        self._reading.look_for_the_start()

    # ── the end ────────────────────────────────────────────────────────────────────────────────

    @property
    def task_failure(self) -> TaskFailed | None:
        """The failure report of the task that made the batch fail."""
        return self._failures.decisive

    @property
    def is_hopeless(self) -> bool:
        """Whether a task of the batch failed in a way that another attempt would only repeat."""
        return self._failures.hopeless is not None

    def explained(self, error: BaseException) -> Exception | None:
        """A task's own report of a failure, as an error of the driver; None if no task has reported anything."""
        report = self._failures.decisive
        if report is None:
            return None
        explained = as_error(report, self._coordinator.names)
        explained.__cause__ = error if self._spec.shows_rows else None
        return explained

    def check_claim(self) -> None:
        """Check the claim before the run reports the end of its input: a fenced run may have read an empty log and done nothing."""
        self._start.plan.claim.check()

    def close(self) -> None:
        """No batch and no message will follow. To be called before the coordinator ends, which discards merged files that nothing uses."""
        self._coordinator.give_back(self._merge_orders.unused(), CheckpointId(self._last_batch + 1))
