"""One attempt to run the job: take over, restore, run Spark's query, complete checkpoints, until the end or a failure. Driver."""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import xxhash
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from penstock import errors
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
    CorruptStateError,
    IncompatibleStateError,
    InternalError,
    PenstockError,
)
from penstock.ids import CheckpointId, RunId, SubtaskId
from penstock.recovery.fencing import Claimant, beat, ended_cleanly
from penstock.recovery.rescale import redistribute
from penstock.recovery.restore import RestorePoint, restore
from penstock.snapshot.mailbox import Mailbox
from penstock.snapshot.messages import Message, TaskFailed, UploadDone, UploadFailed
from penstock.snapshot.rescue import Rescue, in_background
from penstock.spark import progress_log
from penstock.spark.assignment import Answer, AnswerList, Assignment, OperatorAnswer, SinkAnswer, read_answers
from penstock.spark.compiled import Compiled
from penstock.spark.frames import BatchFrames, merged_sources
from penstock.spark.inspection import replayable_positions
from penstock.spark.observer import Observer
from penstock.spark.rescaling import Rescaling
from penstock.state.handle import StateHandle

if TYPE_CHECKING:
    from penstock.job import Job

_log = logging.getLogger(__name__)

POLL_S = 0.1
BATCH_GRACE_S = 60.0
LOOPBACK = "127.0.0.1"
FATAL = (ConfigError, IncompatibleStateError, BadRecordError)


@dataclass
class QueryRun:
    """One run of the job, with its own fencing token. Made anew after every failure."""

    job: Job
    compiled: Compiled
    observer: Observer
    available_now: bool
    stopping: threading.Event
    failure: BaseException | None = None
    _told: list[TaskFailed] = field(default_factory=list)
    _posted: dict[CheckpointId, set[str]] = field(default_factory=dict)
    """The state files of batches that the coordinator, which may be busy with storage, has not heard of yet."""
    _batch_lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: bool = False
    _cancelled: bool = False

    # ── coming up ──────────────────────────────────────────────────────────────────────────────

    def prepare(
        self, restore_from: int | None, drop_state: tuple[str, ...], claimant: Claimant | None = None
    ) -> None:
        """Take the job over and go back to its checkpoint. After this, earlier runs can do nothing any more."""
        self._sinks = {output.uid: output.sink for output in self.job.graph.outputs}
        wanted = None if restore_from is None else CheckpointId(restore_from)
        self.point = restore(
            self.job.storage,
            self._sinks,
            job=self.job.name,
            mode=self._mode,
            now=SYSTEM_CLOCK.wall(),
            wanted=wanted,
            claimant=claimant,
        )
        beat(self.job.storage, self.point.run, SYSTEM_CLOCK.wall())
        self.observer.restored(self.point)
        self._check_sources(self.point)
        self._handles = self._restored_handles(self.point, drop_state)
        self._restored_batch = self._last_batch = self._rewind()
        self._local_dir = _fresh_local_dir(self.job, self.point.run)
        if self.point.checkpoint and self.point.checkpoint.parallelism != self.job.parallelism:
            self._handles = self._rescaled()

    @property
    def _mode(self) -> Mode:
        return self.job.checkpoint.delivery_mode

    def _restored_handles(
        self, point: RestorePoint, drop_state: tuple[str, ...]
    ) -> dict[SubtaskId, StateHandle]:
        stored = point.checkpoint.operators if point.checkpoint else {}
        orphans = sorted(set(stored) - set(self.compiled.operators) - set(drop_state))
        if orphans:
            raise IncompatibleStateError(
                f"checkpoint {point.id} holds state of the operators {', '.join(orphans)}, which the job no longer has; keep their uids, "
                f"or allow the loss with drop_state={tuple(orphans)!r}"
            )
        handles: dict[SubtaskId, StateHandle] = {}
        for uid, operator in self.compiled.operators.items():
            if uid in stored and uid not in drop_state:
                _check_layout(uid, (stored[uid].key, stored[uid].value), operator.described_layout)
                handles |= redistribute(
                    stored[uid].handles,
                    uid=uid,
                    parallelism=self.job.parallelism,
                    version=point.id,
                    backend=self.job.backend.name,
                )
        return handles

    def _check_sources(self, point: RestorePoint) -> None:
        """Spark records positions by the order of the sources: another order would hand one source the position of another."""
        stored = list(point.checkpoint.barrier.positions) if point.checkpoint else []
        now = [source.uid for source in self.job.graph.sources]
        if stored and stored != now:
            raise IncompatibleStateError(
                f"checkpoint {point.id} has the positions of the sources {', '.join(stored)}, in this order; the job reads "
                f"{', '.join(now)}; read the same sources in the same order",
                stored=stored,
                sources=now,
            )

    def _rescaled(self) -> dict[SubtaskId, StateHandle]:
        layouts = {uid: operator.layout for uid, operator in self.compiled.operators.items()}
        rescaling = Rescaling(
            self.job.storage,
            self.job.backend,
            self._local_dir,
            self.point.run,
            self.job.parallelism,
            self.job.max_parallelism,
            layouts,
        )
        return rescaling.perform(self.compiled.session, self._handles)

    def _rewind(self) -> CheckpointId:
        """Set Spark's progress log back; returns the last batch that must not be run again."""
        storage = self.job.storage
        entry = self.point.checkpoint.barrier.progress_log if self.point.checkpoint else ""
        if self._mode is Mode.AT_MOST_ONCE:
            replayable = replayable_positions(self.job.graph.sources)
            if not ended_cleanly(storage, RunId(self.point.run - 1)):
                return progress_log.skip_ahead(storage, replayable)
            entry = progress_log.without_positions(entry, replayable)
        progress_log.cut_back(storage, self.point.id, entry)
        return self.point.id

    # ── running ────────────────────────────────────────────────────────────────────────────────

    def run(self) -> None:
        """Run until the input is done (available_now), `stopping` is set, or something fails; then raise why."""
        conf = self.compiled.session.sparkContext.getConf()
        host = conf.get("spark.driver.host", LOOPBACK) or LOOPBACK
        bind = conf.get("spark.driver.bindAddress", host) or host
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
            query = self._start_query()
            try:
                self._watch(query)
            finally:
                self._close(query)
            if self.failure is None and not self._cancelled:
                self._loop.drain(self._look_after_uploads)
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            self._loop.stop()
            self._mailbox.close()
            shutil.rmtree(self._local_dir, ignore_errors=True)
        if self.failure is not None:
            raise self.failure

    def cancel(self) -> None:
        """End without a last checkpoint; `stopping` must be set next."""
        self._cancelled = True

    def _make_coordinator(self, run_commit: object) -> Coordinator:
        layouts = {uid: operator.described_layout for uid, operator in self.compiled.operators.items()}
        identity = Identity(
            self.job.name,
            self.point.run,
            self.job.parallelism,
            self.job.max_parallelism,
            layouts,
            self.point.id,
        )
        now = Now(SYSTEM_CLOCK.monotonic(), SYSTEM_CLOCK.wall())
        protocol = Protocol(self.job.checkpoint, identity, self.point.retained, now, self._handles.values())
        return Coordinator(
            protocol,
            storage=self.job.storage,
            sinks=self._sinks,
            run=self.point.run,
            clock=SYSTEM_CLOCK,
            run_commit=run_commit,  # type: ignore[arg-type]
            on_completed=self._completed,
        )

    def _completed(self, completed: Completed) -> None:
        self.observer.completed(completed)

    def _start_query(self) -> StreamingQuery:
        writer = (
            merged_sources(self.job.graph.sources)
            .writeStream.queryName(f"{self.job.name}-{self.point.run}")
            .option("checkpointLocation", f"{self.job.storage.uri}/{progress_log.FOLDER}")
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
            try:
                if query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    return
            except Exception as error:  # noqa: BLE001 - Spark wraps what failed in kinds of its own
                self._fail(error)

    def _look_after_uploads(self) -> None:
        coordinator = self._loop.coordinator
        with coordinator.lock:
            undurable = coordinator.protocol.undurable_handles
        self._rescue.look(undurable)

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
        """A task's own account of its failure says more than Spark's."""
        if isinstance(error, PenstockError) or not self._told:
            return error
        told = self._told[0]
        kind = getattr(errors, told.error, None)
        text = f"{told.subtask}: {told.cause}"
        if kind is CorruptStateError and not self._in_checkpoint(told.file):
            kind = (
                errors.UnavailableError
            )  # an executor is gone with files it had not uploaded: go back to the checkpoint
        explained: BaseException = kind(text) if kind else RuntimeError(text)
        explained.__cause__ = error
        return explained

    def _in_checkpoint(self, file: str) -> bool:
        return any(file in completed.files for completed in self._loop.coordinator.protocol.completed)

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
                self._told.append(message)

    # ── one batch ──────────────────────────────────────────────────────────────────────────────

    def _on_batch(self, frame: DataFrame, number: int) -> None:
        with self._batch_lock:
            if self._closed or self.failure is not None or number <= self._restored_batch:
                return  # stopping, or already in the checkpoint; what Spark notes about it is cut back in recovery
            try:
                self._check_follows(number)
                self._run_batch(frame, CheckpointId(number))
                self._last_batch = CheckpointId(number)
            except BaseException as error:
                self._fail(error)
                raise

    def _check_follows(self, number: int) -> None:
        """A run that was fenced, but does not know it yet, writes to the same progress log: Spark would take its batches as done."""
        if number != self._last_batch + 1:
            raise errors.UnavailableError(
                f"batch {number} came after batch {self._last_batch}: another run of this job, which is fenced, has noted batches in "
                "Spark's progress log meanwhile; the job goes back to its checkpoint and reads them itself",
                batch=number,
                expected=self._last_batch + 1,
            )

    def _run_batch(self, frame: DataFrame, batch: CheckpointId) -> None:
        started = time.monotonic()
        self._told.clear()
        entry = progress_log.read_entry(self.job.storage, batch)
        assignment = self._assign(batch)
        answers = self._perform(frame, assignment)
        handles, reports = self._acknowledged(answers, batch)
        transactions = tuple(
            answer.transaction for answer in answers if isinstance(answer, SinkAnswer) and answer.transaction
        )
        self._handles = handles
        barrier = Barrier(self._positions(entry), entry)
        self._posted[batch] = _files(handles)
        self._loop.post(BatchFinished(batch, barrier, handles, transactions, reports))
        self.observer.batch_done(batch, reports, transactions, time.monotonic() - started)

    def _assign(self, batch: CheckpointId) -> Assignment:
        coordinator = self._loop.coordinator
        coordinator.begin_batch(batch)
        with coordinator.lock:
            awaited = frozenset(coordinator.protocol.pending)
            # From this run's own handles: the protocol may not have taken the batch before from its queue yet.
            working = _files(self._handles)
            undurable = frozenset(coordinator.protocol.undurable(working))
            heard_of = coordinator.protocol.newest_batch
            self._posted = {number: files for number, files in self._posted.items() if number > heard_of}
            keep = frozenset(coordinator.protocol.needed_files.union(working, *self._posted.values()))
        return Assignment(
            job=self.job.name,
            run=self.point.run,
            batch=batch,
            parallelism=self.job.parallelism,
            max_parallelism=self.job.max_parallelism,
            storage=self.job.storage,
            backend=self.job.backend,
            local_dir=self._local_dir,
            mailbox=self._mailbox.address,
            handles=self._handles,
            undurable=undurable,
            keep=keep,
            awaited=awaited,
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

    def _positions(self, entry: str) -> dict[str, object]:
        """The positions by source; a source with several streams in it has a list."""
        found = iter(progress_log.positions(entry))
        counts = self.observer.leaf_counts
        result: dict[str, object] = {}
        for uid, count in counts.items():
            own = [next(found, None) for _ in range(count)]
            result[uid] = own[0] if count == 1 else own
        return result


def _files(handles: dict[SubtaskId, StateHandle]) -> set[str]:
    return {name for handle in handles.values() for name in handle.files}


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


def _check_layout(
    uid: str, stored: tuple[dict[str, str], dict[str, str]], now: tuple[dict[str, str], dict[str, str]]
) -> None:
    if stored != now:
        raise IncompatibleStateError(
            f"operator {uid!r}: its state has key {stored[0]} and values {stored[1]}, the job has {now[0]} and {now[1]}; change the job "
            f"back, give the operator another uid, or allow the loss with drop_state=({uid!r},)",
            operator=uid,
        )


def _fresh_local_dir(job: Job, run: int) -> Path:
    """A folder of this run for working files. It can be lost at any time; what dead runs left in it is removed."""
    base = job.local_dir or Path(tempfile.gettempdir()) / "penstock"
    mine = base / f"{job.name}-{xxhash.xxh3_64_hexdigest(job.storage.uri.encode())}"
    shutil.rmtree(mine, ignore_errors=True)
    local = mine / f"run-{run}"
    local.mkdir(parents=True)
    return local
