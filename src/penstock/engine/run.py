"""One run of a job: plans its batches, takes what tasks answer and executors tell, and hands it to the coordinator. Driver.

Whoever drives it (Spark's query, or the simulation) calls `begin_batch` and `end_batch` for one batch after the other, `deliver` for every
message, from any thread, and `look_after` again and again meanwhile.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from penstock.checkpoint.commits import Post, RunCommit
from penstock.checkpoint.completed import Barrier, Completed
from penstock.checkpoint.content import Identity
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import BatchFinished, SnapshotDeclined, SnapshotDurable
from penstock.checkpoint.pending import Now
from penstock.checkpoint.protocol import Protocol
from penstock.clock import Clock
from penstock.config import Mode
from penstock.engine.acknowledgements import acknowledged
from penstock.engine.assignment import Answer, Assignment, RunPlace
from penstock.engine.bad_records import BadRecordCounts
from penstock.engine.job_spec import JobSpec
from penstock.engine.observer import Observer, tell_origins
from penstock.engine.reading import Reading
from penstock.engine.start import Start
from penstock.engine.task_failures import Accounts, as_error
from penstock.ids import CheckpointId, SubtaskId
from penstock.recovery.lifetimes import described
from penstock.snapshot.mailbox import Address
from penstock.snapshot.messages import MergeDone, MergeFailed, Message, TaskFailed, UploadDone, UploadFailed
from penstock.snapshot.rescue import Rescue
from penstock.snapshot.transfer import Room
from penstock.state.handle import FileRef, StateHandle
from penstock.state.lifetimes import in_microseconds
from penstock.state.merge_orders import RETRY_AFTER_S, Merged, MergeOrders
from penstock.wording import duration

_log = logging.getLogger(__name__)

MOST_WAITING_COMMITS = 10_000
"""Each metadata names every transaction that waits for its commit, so a sink that stays down must stop the batches some day."""


@dataclass(frozen=True)
class BatchUnderWay:
    """What has begun and is not acknowledged yet."""

    assignment: Assignment
    barrier: Barrier
    began: float


def make_coordinator(
    spec: JobSpec,
    start: Start,
    *,
    clock: Clock,
    post: Post,
    run_commit: RunCommit,
    on_completed: Callable[[Completed], None],
) -> Coordinator:
    """The coordinator of a run that begins here."""
    point = start.point
    identity = Identity(
        spec.name,
        point.run,
        spec.parallelism,
        spec.max_parallelism,
        {uid: described(layout, start.switched_on_us.get(uid)) for uid, layout in spec.layouts.items()},
        spec.upstream,
        point.id,
    )
    now = Now(clock.monotonic(), clock.wall())
    protocol = Protocol(
        spec.checkpoint, identity, point.retained, now, start.handles.values(), held=point.begun_files
    )
    return Coordinator(
        protocol,
        storage=spec.storage,
        sinks=spec.sinks,
        claim=point.claim,
        clock=clock,
        owner=spec.owner,
        post=post,
        run_commit=run_commit,
        on_completed=on_completed,
    )


class Run:
    """One attempt, from its first batch to its last."""

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
        choose_merge: Callable[[Sequence[FileRef], int], range | None] | None = None,
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
        self._last_batch = start.point.last_read
        self._now_us = start.now_us
        restored = start.point.checkpoint
        self._bad_records = BadRecordCounts({} if restored is None else restored.bad_records)
        observer.bad_records(self._bad_records.so_far)
        self._accounts = Accounts()
        self._merge_orders = MergeOrders(choose_merge or spec.backend.choose_merge)
        self._reading = Reading(
            start.log,
            start.source_log,
            spec.streams,
            start.point,
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
        """How many transactions wait for their commit. With `MOST_WAITING_COMMITS` of them no batch should begin."""
        return self._coordinator.waiting_commits

    def begin_batch(self, batch: CheckpointId, mailbox: Address) -> BatchUnderWay:
        """Decide what the tasks of a batch get. Where it ends is read from Spark's progress log, and recorded if need be."""
        began = self._clock.monotonic()
        self._accounts = Accounts(batch)
        barrier = self._reading.begin(batch, after=self._last_batch)
        return BatchUnderWay(self._assign(batch, mailbox), barrier, began)

    def _assign(self, batch: CheckpointId, mailbox: Address) -> Assignment:
        self._handles, merged = self._merge_orders.adopt(self._handles)
        expecting = self._merge_orders.expecting  # before new orders, whose files are of this batch
        opening = self._coordinator.begin_batch(batch, self._handles.values(), merged)
        self._now_us = max(self._now_us, in_microseconds(self._clock.wall()))
        return Assignment(
            place=self._place(mailbox),
            batch=batch,
            handles=self._handles,
            undurable=opening.undurable,
            keep=opening.needed,
            merges=self._merge_orders.order(self._handles.values(), self._clock.monotonic(), self._now_us),
            merging=self._merge_orders.merging,
            expecting=expecting,
            forget_earlier_runs=opening.completed > self._start.point.id,
            awaited=opening.awaited,
            newest_will_do=self._spec.mode is Mode.AT_LEAST_ONCE,
            now_us=self._now_us,
            switched_on_us=self._start.switched_on_us,
            wake=self._wake(batch),
        )

    def _place(self, mailbox: Address) -> RunPlace:
        spec = self._spec
        return RunPlace(
            job=spec.owner,
            run=self._start.point.run,
            parallelism=spec.parallelism,
            max_parallelism=spec.max_parallelism,
            storage=spec.storage,
            backend=spec.backend,
            local_dir=self._start.local_dir,
            local_recovery=spec.local_recovery,
            mailbox=mailbox,
        )

    def end_batch(self, batch: BatchUnderWay, answers: Sequence[Answer]) -> None:
        """All tasks are done: the barrier has passed the whole job. `answers` are those of the attempts that were kept."""
        plan = batch.assignment
        done = acknowledged(plan, tuple(self._spec.layouts), answers)
        self._merge_orders.not_taken(plan.merges.keys() - done.with_rows)
        for report in done.reports.values():
            tell_origins(report)
        self._handles, self._last_batch = done.handles, plan.batch
        if done.bad_records:
            self._bad_records.add(plan.batch, done.bad_records)
            self._observer.bad_records(self._bad_records.so_far)
        self._coordinator.batch_finished(
            BatchFinished(
                plan.batch,
                batch.barrier,
                dict(done.handles),
                done.transactions,
                dict(done.reports),
                self._bad_records.so_far,
                plan.now_us,
            )
        )
        seconds = self._clock.monotonic() - batch.began
        self._observer.batch_done(plan.batch, done.transactions, seconds)

    # ── beside the batches ─────────────────────────────────────────────────────────────────────

    def deliver(self, message: Message) -> None:
        """An executor has said something. From any thread, in any order, also after the run."""
        if message.run != self._start.point.run:
            return  # of a run before this one
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
                self._accounts.take(message)
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
        """It declines nothing: whoever waits for the handle goes on waiting. But some of the files may lie in storage now."""
        files = tuple(sorted(handle.files))
        self._post(SnapshotDeclined(handle.subtask, handle.version, cause, frozenset(), files))

    def look_after(self) -> None:
        """Store what no worker stores any more, and note where sources have decided to begin."""
        self._rescue.look(self._coordinator.undurable_handles)
        self._reading.look_for_the_start()

    # ── the end ────────────────────────────────────────────────────────────────────────────────

    @property
    def told(self) -> TaskFailed | None:
        """What the task that made the batch fail has said of it."""
        return self._accounts.decisive

    @property
    def is_hopeless(self) -> bool:
        """Whether a task of the batch has failed so that its next attempt would only fail again."""
        return self._accounts.hopeless is not None

    def explained(self, error: BaseException) -> Exception | None:
        """A task's own account of a failure, as the error that the driver makes of it; None when no task has said anything."""
        told = self._accounts.decisive
        if told is None:
            return None
        explained = as_error(told, self._coordinator.names)
        explained.__cause__ = error
        return explained

    def check_claim(self) -> None:
        """Before the run says that the input is done: one that has lost the job may have found an empty log, and done nothing."""
        self._start.point.claim.check()

    def close(self) -> None:
        """No batch will follow, and no message. Before the coordinator ends: it discards what was merged in vain."""
        self._coordinator.give_back(self._merge_orders.unused(), CheckpointId(self._last_batch + 1))
