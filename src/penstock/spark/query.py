"""One attempt to run the job: take over, restore, run Spark's query, complete checkpoints, until the end or a failure. Driver."""

from __future__ import annotations

import logging
import secrets
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock import errors
from penstock.checkpoint.commits import Post, RunCommit
from penstock.checkpoint.completed import Barrier, Completed, SubtaskReport
from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.events import BatchFinished, SnapshotDeclined, SnapshotDurable
from penstock.checkpoint.loop import CoordinatorLoop
from penstock.checkpoint.protocol import Identity, Now, Protocol
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Mode
from penstock.errors import (
    BadRecordError,
    ConfigError,
    IncompatibleStateError,
    InternalError,
    PenstockError,
)
from penstock.ids import CheckpointId, SubtaskId
from penstock.ownership.claim import Claimant
from penstock.ownership.heartbeat import beat
from penstock.recovery.repeated import Failure
from penstock.recovery.restore import RestorePoint, check_restorable, restore
from penstock.snapshot.mailbox import Mailbox, places
from penstock.snapshot.messages import MergeDone, MergeFailed, Message, TaskFailed, UploadDone, UploadFailed
from penstock.snapshot.rescue import Rescue, in_background
from penstock.spark.accounts import Accounts, as_error
from penstock.spark.assignment import Answer, AnswerList, Assignment, OperatorAnswer, SinkAnswer, read_answers
from penstock.spark.causes import BatchFailedError, cause_of, in_brief
from penstock.spark.compiled import Compiled
from penstock.spark.frames import BatchFrames, merged_sources
from penstock.spark.going_back import GoingBack
from penstock.spark.observer import Observer, tell_origins
from penstock.spark.reading import Reading
from penstock.spark.source_errors import source_failure
from penstock.state.compaction import RETRY_AFTER_S, Compactions, Merged
from penstock.state.handle import StateHandle
from penstock.state.local_files import begin_run, forget_earlier_runs, job_dir, make_job_dir, run_dir

if TYPE_CHECKING:
    from penstock.job import Job

_log = logging.getLogger(__name__)

POLL_S = 0.1
BATCH_GRACE_S = 60.0
MOST_WAITING_COMMITS = 10_000
"""Each metadata names every transaction that waits for its commit, so a sink that stays down must stop the batches some day."""
FATAL = (ConfigError, IncompatibleStateError, BadRecordError)


@dataclass
class QueryRun:
    """One run of the job, with its own fencing token. Made anew after every failure."""

    job: Job
    compiled: Compiled
    observer: Observer
    available_now: bool
    stopping: threading.Event
    owner: str
    """Under which name the job keeps its transactions in the sinks, see `JobRecord`."""
    failure: BaseException | None = None
    met: Failure = field(default_factory=Failure)
    """The failure as far as it can be recognised when it comes again."""
    _accounts: Accounts = field(default_factory=Accounts)
    _batch_lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False
    _cancelled: bool = False
    _query: StreamingQuery | None = None

    # ── coming up ──────────────────────────────────────────────────────────────────────────────

    def prepare(
        self, restore_from: int | None, drop_state: tuple[str, ...], claimant: Claimant | None = None
    ) -> None:
        """Take the job over and go back to its checkpoint. After this, earlier runs can do nothing any more."""
        self._sinks = {output.uid: output.sink for output in self.job.graph.outputs}
        wanted = None if restore_from is None else CheckpointId(restore_from)
        claimant = claimant or Claimant()
        storage, sinks, mode = self.job.storage, self._sinks, self._mode

        def check(point: RestorePoint) -> None:
            self._check(point, claimant.still_to_drop(drop_state, point.completed_by))

        if not claimant.has_claimed:
            check_restorable(storage, sinks, mode=mode, wanted=wanted, check=check)
        self.point = restore(
            storage,
            sinks,
            owner=self.owner,
            mode=mode,
            now=SYSTEM_CLOCK.wall(),
            wanted=wanted,
            claimant=claimant,
            check=check,
        )
        drop_state = claimant.still_to_drop(drop_state, self.point.completed_by)
        beat(self.job.storage, self.point.run, SYSTEM_CLOCK.wall())
        self.observer.restored(self.point)
        back = GoingBack(self.job, self.compiled, self.point)
        handles = back.handles(drop_state)
        back.tell_what_cannot_be_dropped(drop_state)
        self._last_batch = self.point.last_read
        self._reading = Reading(
            *back.set_out(), self.observer.leaf_counts, self.point, mode=self._mode, hold=self._hold
        )
        self._local_dir = self._begin_local_dir(handles)
        self._handles = back.rescaled(handles, self._local_dir)
        self._compactions = Compactions(self.job.backend.choose_merge)

    def _check(self, point: RestorePoint, drop_state: tuple[str, ...]) -> None:
        """Refuse a checkpoint that does not fit the job, while nothing has been changed yet."""
        back = GoingBack(self.job, self.compiled, point)
        back.check_sources()
        back.handles(drop_state)

    @property
    def _mode(self) -> Mode:
        return self.job.checkpoint.delivery_mode

    def _begin_local_dir(self, handles: Mapping[SubtaskId, StateHandle]) -> Path:
        """A folder of this run for working files, beside those of earlier runs. It can be lost at any time."""
        folder = job_dir(self.job.local_dir, self.job.name, self.job.storage.uri)
        make_job_dir(folder)
        local = run_dir(folder, self.point.run, secrets.token_hex(4))
        if not self.job.local_recovery:
            forget_earlier_runs(local)
        begin_run(local, {name for handle in handles.values() for name in handle.files})
        return local

    # ── running ────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Run until the input is done (available_now), `stopping` is set, or something fails; then raise why."""
        context = self.compiled.session.sparkContext
        conf = context.getConf()
        bind, host = places(
            str(context.master), conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress")
        )
        self._mailbox = Mailbox(bind, self._deliver, host=host)
        self._loop = CoordinatorLoop(
            self._make_coordinator, storage=self.job.storage, run=self.point.run, on_failure=self._fail
        )
        self._rescue = Rescue(
            self.job.storage,
            self._local_dir,
            SYSTEM_CLOCK,
            lambda handle: self._loop.post(SnapshotDurable(handle)),
            in_background,
        )
        try:
            self._loop.start()
            self._query = query = self._start_query()
            try:
                self._watch(query)
            finally:
                self._close(query)
            if self.failure is None and not self._cancelled:
                self._loop.drain(self._look_after_uploads, lambda: self._cancelled)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._mailbox.close()  # first: what is on its way may name files that the coordinator has to discard
            self._loop.coordinator.give_back(self._compactions.unused(), CheckpointId(self._last_batch + 1))
            self._loop.stop()
            if not self.job.local_recovery:
                shutil.rmtree(self._local_dir, ignore_errors=True)
        if self.failure is not None:
            raise self.failure

    def cancel(self) -> None:
        """End without a last checkpoint; `stopping` must be set next."""
        self._cancelled = True

    def interrupt(self) -> None:
        """Give up what Spark computes for the present batch; `cancel` must have been called."""
        query = self._query
        if query is not None:
            self.compiled.session.sparkContext.cancelJobGroup(str(query.runId))

    def _make_coordinator(self, post: Post, run_commit: RunCommit) -> Coordinator:
        layouts = {uid: operator.described_layout for uid, operator in self.compiled.operators.items()}
        identity = Identity(
            self.job.name,
            self.point.run,
            self.job.parallelism,
            self.job.max_parallelism,
            layouts,
            self.job.graph.upstream_operators(),
            self.point.id,
        )
        now = Now(SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall())
        retained, held = self.point.retained, self.point.begun_files
        protocol = Protocol(self.job.checkpoint, identity, retained, now, self._handles.values(), held=held)
        return Coordinator(
            protocol,
            storage=self.job.storage,
            sinks=self._sinks,
            claim=self.point.claim,
            clock=SYSTEM_CLOCK,
            owner=self.owner,
            post=post,
            run_commit=run_commit,
            on_completed=self._completed,
        )

    def _completed(self, completed: Completed) -> None:
        self.observer.completed(completed)

    def _start_query(self) -> StreamingQuery:
        writer = (
            merged_sources(self.job.graph.sources)
            .writeStream.queryName(f"{self.job.name}-{self.point.run}")
            .option("checkpointLocation", self._reading.log.location)
            .foreachBatch(self._on_batch)
        )
        if self.available_now:
            writer = writer.trigger(availableNow=True)
        elif self.job.trigger_s is not None:
            writer = writer.trigger(processingTime=f"{int(self.job.trigger_s * 1000)} milliseconds")
        return writer.start()

    def _watch(self, query: StreamingQuery) -> None:
        while not self.stopping.is_set() and self.failure is None:
            self._look_after_uploads()
            self._reading.look_for_the_start()
            try:
                if query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    return
            except Exception as error:  # noqa: BLE001 - Spark wraps what failed in kinds of its own
                self._fail(error)

    def _look_after_uploads(self) -> None:
        self._rescue.look(self._loop.coordinator.undurable_handles)

    def _hold(self, batch: CheckpointId, barrier: Barrier) -> None:
        self._loop.coordinator.hold(batch, barrier)

    def _close(self, query: StreamingQuery) -> None:
        """Stop the query between two batches: interrupting one in Python code leaves Spark's thread in disorder."""
        got = self._batch_lock.acquire(timeout=BATCH_GRACE_S)
        self._closed = True
        if got:
            self._batch_lock.release()
        query.stop()

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = self._explained(error)

    def _explained(self, error: BaseException) -> BaseException:
        """A task's own account of its failure says more than Spark's; of a source that fails there is only Spark's, which is long."""
        if isinstance(error, PenstockError):
            return error
        lost = source_failure(error)
        if lost is not None:
            lost.__cause__ = error
            return lost
        told = self._accounts.first
        if told is None:
            return in_brief(error)
        explained = as_error(told, self._loop.coordinator.names)
        explained.__cause__ = error
        return explained

    # ── messages from executors ────────────────────────────────────────────────────────────────

    def _deliver(self, message: Message) -> None:
        if message.run != self.point.run:
            return  # of a run before this one
        match message:
            case UploadDone():
                self._loop.post(SnapshotDurable(message.handle, message.async_ms))
            case UploadFailed():
                self._rescue.failed(message.subtask)
                self._loop.post(
                    SnapshotDeclined(message.subtask, message.version, message.cause, message.files)
                )
            case TaskFailed():
                self._accounts.take(message)
            case MergeDone():
                self._compactions.done(Merged(message.subtask, message.replaced, message.merged))
                self.observer.merged(message)
            case MergeFailed():
                self._compactions.failed(message.subtask, SYSTEM_CLOCK.monotonic())
                _log.warning(
                    "%s: runs could not be merged in the background; they stay as they are, next try in %.0f s: %s",
                    *(message.subtask, RETRY_AFTER_S, message.cause),
                )

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        self._wait_for_commits()
        with self._batch_lock:
            if self._closed or self.failure is not None:
                return  # what Spark notes about it is in the log of this run, which nobody reads again
            try:
                self._run_batch(frame, CheckpointId(number))
                self._last_batch = CheckpointId(number)
            except BaseException as error:  # noqa: BLE001 - kept as the failure of this run; Spark is told less
                if self.failure is None:
                    self.met = Failure(number, cause_of(error, self._accounts.first))
                self._fail(error)
                _log.debug("batch %d of job %s failed", number, self.job.name, exc_info=error)
                raise BatchFailedError(number) from None

    def _wait_for_commits(self) -> None:
        told = False
        while (waiting := self._loop.coordinator.waiting_commits) >= MOST_WAITING_COMMITS:
            if self._closed or self.failure is not None or self.stopping.is_set():
                self._closed = True  # Spark takes this batch for done: none may follow it
                return
            if not told:
                _log.warning(
                    "%d transactions wait for their commit, the most is %d: the next batch begins when the sinks have caught up",
                    *(waiting, MOST_WAITING_COMMITS),
                )
                told = True
            self.stopping.wait(POLL_S)

    def _run_batch(self, frame: DataFrame, batch: CheckpointId) -> None:
        started = time.monotonic()
        self._accounts = Accounts(batch)
        barrier = self._reading.begin(batch, after=self._last_batch)
        assignment = self._assign(batch)
        answers = self._perform(frame, assignment)
        handles, reports = self._acknowledged(answers, batch)
        self._compactions.not_taken(assignment.merges.keys() - _with_rows(answers))
        for report in reports.values():
            tell_origins(report)
        transactions = tuple(
            answer.transaction for answer in answers if isinstance(answer, SinkAnswer) and answer.transaction
        )
        self._handles = handles
        self._loop.coordinator.batch_finished(BatchFinished(batch, barrier, handles, transactions, reports))
        self.observer.batch_done(batch, reports, transactions, time.monotonic() - started)

    def _assign(self, batch: CheckpointId) -> Assignment:
        self._handles, merged = self._compactions.adopt(self._handles)
        opening = self._loop.coordinator.begin_batch(batch, self._handles.values(), merged)
        expecting = self._compactions.expecting  # before new orders, whose files are of this batch
        merges = self._compactions.order(self._handles.values(), SYSTEM_CLOCK.monotonic())
        return Assignment(
            job=self.owner,
            run=self.point.run,
            batch=batch,
            parallelism=self.job.parallelism,
            max_parallelism=self.job.max_parallelism,
            storage=self.job.storage,
            backend=self.job.backend,
            local_dir=self._local_dir,
            mailbox=self._mailbox.address,
            handles=self._handles,
            undurable=opening.undurable,
            keep=opening.needed,
            merges=merges,
            merging=self._compactions.merging,
            expecting=expecting,
            forget_earlier_runs=opening.completed > self.point.id,
            awaited=opening.awaited,
            newest_will_do=self._mode is Mode.AT_LEAST_ONCE,
        )

    def _perform(self, frame: DataFrame, assignment: Assignment) -> list[Answer]:
        session = frame.sparkSession
        session.conf.set(
            "spark.sql.adaptive.enabled", "false"
        )  # a keyed operator needs exactly its parallelism
        session.conf.set("spark.sql.shuffle.partitions", str(self.job.parallelism))
        accumulator = session.sparkContext.accumulator([], AnswerList())
        frames = BatchFrames(self.compiled, frame, assignment, accumulator)
        try:
            frames.run()
            answers = read_answers(accumulator)
            for operator in reversed(self.compiled.graph.operators):
                if not any(answer.uid == operator.uid for answer in answers):
                    frames.run_operator(operator)
                    answers = read_answers(accumulator)
            return answers
        finally:
            frames.release()

    def _acknowledged(
        self, answers: list[Answer], batch: CheckpointId
    ) -> tuple[dict[SubtaskId, StateHandle], dict[SubtaskId, SubtaskReport]]:
        """One acknowledgement of every subtask; a subtask without rows keeps the handle it had."""
        given = [answer for answer in answers if isinstance(answer, OperatorAnswer)]
        _check_once(Counter(answer.uid for answer in given), self.job.parallelism, batch)
        handles = {
            subtask: msgspec.structs.replace(self._handles[subtask], version=batch)
            if subtask in self._handles
            else StateHandle(subtask, self.job.backend.name, batch)
            for uid in self.compiled.operators
            for subtask in (SubtaskId(uid, index) for index in range(self.job.parallelism))
        }
        reports = {
            subtask: SubtaskReport(subtask, state_bytes=handle.size) for subtask, handle in handles.items()
        }
        for answer in given:
            if answer.handle is not None and answer.report is not None:
                handles[answer.handle.subtask] = answer.handle
                reports[answer.handle.subtask] = answer.report
        return handles, reports


def _with_rows(answers: Iterable[Answer]) -> set[SubtaskId]:
    """The subtasks whose tasks opened their state."""
    return {
        answer.handle.subtask for answer in answers if isinstance(answer, OperatorAnswer) and answer.handle
    }


def _check_once(ran: Counter[str], parallelism: int, batch: CheckpointId) -> None:
    """An operator whose task ran again after its results were used may have answered differently: the batch cannot be trusted."""
    for uid, times in ran.items():
        if times > parallelism:
            raise errors.UnavailableError(
                f"batch {batch} is given up: Spark lost results of operator {uid} and ran {times - parallelism} of its "
                f"{parallelism} subtasks again; the job goes back to its checkpoint",
                operator=uid,
            )
        if times < parallelism:
            raise InternalError(
                f"batch {batch}: only {times} of {parallelism} subtasks of operator {uid} answered"
            )
