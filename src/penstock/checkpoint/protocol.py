"""The checkpoint protocol: events in, actions out. Pure: no I/O, no clock, no threads. Driver.

What always holds:
1. `WriteMetadata(n)` is emitted only when every subtask of every operator has acknowledged barrier n with a durable handle and every
   sink has pre-committed. Exactly once: the handle is the state at n, no later.
2. A transaction is committed only after the metadata that names it is written (exactly once), and every metadata names all
   transactions up to its barrier that are not known to be committed. Each sink commits in the order of the batches; between
   sinks there is no order. At least once: up to the latest batch that the state in it has seen.
3. A file is discarded only when no retained checkpoint, no pending one and no working version names it.
4. A checkpoint is given up once, is never completed afterwards, and what only it named is discarded.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.completed import Barrier, Completed, OperatorState, PreCommitted, SubtaskReport
from penstock.checkpoint.events import (
    Action,
    Announce,
    BatchFinished,
    Commit,
    Committed,
    Discard,
    Drain,
    Event,
    FailJob,
    JobEnded,
    MarkCommitted,
    MetadataFailed,
    MetadataWritten,
    SnapshotDeclined,
    SnapshotDurable,
    SweepTransactions,
    Tick,
    WriteMetadata,
)
from penstock.checkpoint.failures import FailureReason
from penstock.checkpoint.later_versions import Upstream, versions_to_take
from penstock.checkpoint.pending import Pending
from penstock.checkpoint.retention import subsumed, unnamed_files
from penstock.config import Checkpointing, Mode
from penstock.errors import InternalError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId, SubtaskId
from penstock.state.handle import FileRef, StateHandle


@dataclass(frozen=True)
class Now:
    """The time of an event: for intervals, and for people."""

    monotonic: float
    wall: float


@dataclass(frozen=True)
class Identity:
    """What the metadata says about the job besides the checkpoint itself."""

    job: str
    run: RunId
    parallelism: int
    max_parallelism: int
    layouts: dict[str, tuple[dict[str, str], dict[str, str]]]
    upstream: Upstream
    restored_from: CheckpointId = NO_CHECKPOINT


class Protocol:
    """One per run. `begin_batch` asks whether a batch ends in a checkpoint, `handle` takes everything that happens."""

    def __init__(
        self,
        settings: Checkpointing,
        identity: Identity,
        completed: Iterable[Completed],
        started: Now,
        restored: Iterable[StateHandle] = (),
        *,
        held: frozenset[str] = frozenset(),
    ) -> None:
        self._settings = settings
        self._mode = settings.delivery_mode
        self._identity = identity
        self.completed: list[Completed] = list(completed)
        self.pending: dict[CheckpointId, Pending] = {}
        self.uncommitted: list[PreCommitted] = []
        self._committing: set[int] = set()
        self._newest: BatchFinished | None = None
        self._finished: dict[CheckpointId, BatchFinished] = {}
        self._restored_files = {name for handle in restored for name in handle.files}
        """What the run starts from. Durable, but after a rescale no checkpoint names it until the first one completes."""
        self._known: set[str] = {name for checkpoint in self.completed for name in checkpoint.files}
        self._known |= self._restored_files | held
        self._durable: set[str] = set(self._known)
        self._held: dict[CheckpointId, frozenset[str]] = {NO_CHECKPOINT: held}
        self._early: dict[str, int] = {}
        self._handed_in: dict[tuple[SubtaskId, tuple[FileRef, ...]], int] = {}
        """At least once: the states that subtasks have stored, and the version of each."""
        self._async_ms: dict[tuple[SubtaskId, int], float] = {}
        self._failures_in_a_row = 0
        self._last_trigger = started.monotonic
        self._last_end = float("-inf")
        self.draining = False

    # ── asking ─────────────────────────────────────────────────────────────────────────────────

    def begin_batch(self, batch: CheckpointId, now: Now) -> bool:
        """Trigger a checkpoint with this batch's barrier, if one is due; true if so."""
        if not self._due(now):
            return False
        self._trigger(batch, now)
        return True

    @property
    def needed_files(self) -> set[str]:
        """Every file that something may still ask for."""
        sets: list[Iterable[str]] = [checkpoint.files for checkpoint in self.completed]
        sets += [pending.files for pending in self.pending.values()]
        return set().union(*sets, self._working_files(), self._acceptable_files(), *self._held.values())

    def hold(self, batch: CheckpointId, barrier: Barrier) -> None:
        """Keep what the record of `recovery.begun` names: the next run begins there, if it goes back to no newer checkpoint.

        What it named before is kept too, until the batch is known to be finished: those before it may not be known of yet.
        """
        self._held[batch] = barrier.files

    def take_durable(self, files: Iterable[str], batch: CheckpointId) -> None:
        """Files that are in storage already and that the handles of this batch may begin with, before anything names them.

        Whether the batch keeps them is known when it is finished; what it does not name is discarded then.
        """
        self._durable.update(files)
        self._early.update(dict.fromkeys(files, int(batch)))

    def undurable(self, files: Iterable[str]) -> set[str]:
        """Those of `files` that are not known to be in storage.

        Whoever begins a batch asks about the files of the handles it hands out: the event that the batch before is finished may
        still be waiting, so the working version here may be an older one.
        """
        return set(files) - self._durable

    @property
    def undurable_files(self) -> set[str]:
        """Files of the working version that are not known to be in storage."""
        return self.undurable(self._working_files())

    @property
    def undurable_handles(self) -> list[StateHandle]:
        """What pending checkpoints and the working version name and is not known to be in storage."""
        batches = [pending.batch for pending in self.pending.values()] + [self._newest]
        handles = {handle for batch in batches if batch for handle in batch.handles.values()}
        return [handle for handle in handles if not handle.files <= self._durable]

    @property
    def last_completed(self) -> CheckpointId:
        """The newest checkpoint that exists."""
        return self.completed[-1].id if self.completed else NO_CHECKPOINT

    @property
    def newest_batch(self) -> CheckpointId:
        """The newest batch that is known to be finished."""
        return self._newest.batch if self._newest else NO_CHECKPOINT

    @property
    def waiting_commits(self) -> int:
        """How many transactions may be committed, and are not known to be."""
        return len(self._committing)

    @property
    def settled(self) -> bool:
        """Whether a drain is over: the newest batch is in a completed checkpoint and every transaction is committed.

        Never before `Drain` was taken: until then batches may be finished that nothing has been told about here.
        """
        done = not self.pending and not self.uncommitted and self.last_completed >= self.newest_batch
        return self.draining and done

    # ── being told ─────────────────────────────────────────────────────────────────────────────

    def handle(self, event: Event, now: Now) -> list[Action]:  # noqa: PLR0911 - one line an event
        """Take one event; return what must be done, in this order."""
        match event:
            case BatchFinished():
                return self._batch_finished(event, now)
            case SnapshotDurable():
                return self._snapshot_durable(event, now)
            case SnapshotDeclined():
                return self._snapshot_declined(event, now)
            case MetadataWritten():
                return self._metadata_written(event.checkpoint, now)
            case MetadataFailed():
                pending = self._being_written(event.checkpoint)
                actions = self._give_up(pending, FailureReason.METADATA_FAILED, event.cause, now)
                return self._completions(now) + actions
            case Committed():
                return self._committed(event.transactions)
            case Tick():
                return self._expire(now) + self._trigger_idle(now)
            case Drain():
                self.draining = True
                return self._trigger_idle(now)
            case JobEnded():
                return self._job_ended(now)

    def _batch_finished(self, event: BatchFinished, now: Now) -> list[Action]:
        self._newest = event
        self._finished[event.batch] = event
        self._known |= event.files
        self._durable |= event.barrier.files
        if event.batch in self._held:
            self._held = {batch: files for batch, files in self._held.items() if batch >= event.batch}
        self.uncommitted += event.transactions
        for handle in event.handles.values():
            if handle.files <= self._durable:  # nobody uploads it
                self._hand_in(handle)
        pending = self.pending.get(event.batch)
        if pending:
            pending.attach(event)
        self._known |= {name for name, version in self._early.items() if version <= event.batch}
        self._early = {name: version for name, version in self._early.items() if version > event.batch}
        actions = self._completions(now) + self._discard_unnamed()
        if self._mode is not Mode.EXACTLY_ONCE:
            actions = self._commit_up_to(event.batch) + actions
        return actions

    def _snapshot_durable(self, event: SnapshotDurable, now: Now) -> list[Action]:
        handle = event.handle
        self._durable |= handle.files
        self._hand_in(handle)
        self._async_ms[handle.subtask, handle.version] = event.async_ms
        self._take_note(handle.files, handle.version)
        return self._completions(now) + self._discard_unnamed()

    def _snapshot_declined(self, event: SnapshotDeclined, now: Now) -> list[Action]:
        self._take_note(event.files, event.version)
        pending = self.pending.get(CheckpointId(event.version))
        if pending is None or pending.writing or event.subtask in pending.acknowledged:
            return self._discard_unnamed()
        return self._give_up(pending, FailureReason.DECLINED, f"{event.subtask}: {event.cause}", now)

    def _is_early(self, version: int) -> bool:
        return self._newest is None or version > self._newest.batch

    def _take_note(self, files: Iterable[str], version: int) -> None:
        """These may be in storage: they are discarded once nothing names them."""
        if self._is_early(version):
            # Whether Spark keeps this attempt is known only when the batch is finished.
            self._early.update(dict.fromkeys(set(files) - self._known, version))
        else:
            self._known |= set(files)

    def _metadata_written(self, checkpoint: CheckpointId, now: Now) -> list[Action]:
        pending = self._being_written(checkpoint)
        del self.pending[pending.checkpoint]
        if pending.writing is not None:
            self.completed.append(pending.writing)
        self._finished = {batch: one for batch, one in self._finished.items() if batch > checkpoint}
        self._async_ms = {key: ms for key, ms in self._async_ms.items() if key[1] > checkpoint}
        self._forget_what_was_handed_in(checkpoint)
        self._failures_in_a_row = 0
        self._last_end = now.monotonic
        actions = self._commit_up_to(checkpoint)
        actions.append(SweepTransactions(checkpoint, tuple(self.uncommitted)))
        for older in [one for one in self.pending.values() if one.checkpoint <= checkpoint]:
            detail = f"checkpoint {checkpoint} is complete"
            actions += self._give_up(older, FailureReason.SUBSUMED, detail, now)
        return actions + self._discard_subsumed() + self._trigger_idle(now) + self._completions(now)

    def _committed(self, transactions: tuple[PreCommitted, ...]) -> list[Action]:
        done = {id(one) for one in transactions}
        self._committing -= done
        self.uncommitted = [one for one in self.uncommitted if id(one) not in done]
        left = {id(one) for one in self.uncommitted}
        newest = self.completed[-1] if self.completed else None
        if (
            newest is None
            or newest.run != self._identity.run
            or left & {id(one) for one in newest.transactions}
        ):
            return []
        return [MarkCommitted(newest)]

    def _job_ended(self, now: Now) -> list[Action]:
        actions: list[Action] = []
        for pending in list(self.pending.values()):
            if not pending.writing:  # whether its metadata exists is for recovery to see; its files must stay
                actions += self._give_up(pending, FailureReason.JOB_ENDED, "the run is over", now)
        self._newest = None
        self._restored_files = set()
        self._known.update(self._early)  # no batch will come that could name them
        self._early.clear()
        return actions + self._discard_unnamed()

    # ── triggering ─────────────────────────────────────────────────────────────────────────────

    def _due(self, now: Now) -> bool:
        return (
            now.monotonic - self._last_trigger >= self._settings.interval_s
            and now.monotonic - self._last_end >= self._settings.min_pause_s
            and len(self.pending) < self._settings.max_concurrent
        )

    def _trigger(self, checkpoint: CheckpointId, now: Now) -> Pending:
        self._last_trigger = now.monotonic
        self.pending[checkpoint] = Pending(checkpoint, now.monotonic, now.wall)
        return self.pending[checkpoint]

    def _trigger_idle(self, now: Now) -> list[Action]:
        """Complete the newest finished batch when the interval is over and no new batch takes the barrier along."""
        newest = self._newest
        if newest is None or newest.batch <= self.last_completed or newest.batch in self.pending:
            return []
        if not self.draining and not (self._due(now) and not self.undurable_files):
            return []
        actions = self._make_room(newest.batch, now)
        if len(self.pending) >= self._settings.max_concurrent:
            return actions
        self._trigger(newest.batch, now).attach(newest)
        return self._completions(now) + actions

    def _make_room(self, last: CheckpointId, now: Now) -> list[Action]:
        """The last checkpoint of a run has everything that older ones under way have: they give way to it."""
        actions: list[Action] = []
        while len(self.pending) >= self._settings.max_concurrent:
            oldest = min(
                (one for one in self.pending.values() if not one.writing),
                key=lambda one: one.checkpoint,
                default=None,
            )
            if oldest is None:
                break
            actions += self._give_up(
                oldest, FailureReason.SUBSUMED, f"checkpoint {last} is the last one", now
            )
        return actions

    # ── completing ─────────────────────────────────────────────────────────────────────────────

    def _completions(self, now: Now) -> list[Action]:
        """Complete the oldest checkpoint that can be, unless one is being written: each names what those before it leave."""
        for pending in sorted(self.pending.values(), key=lambda one: one.checkpoint):
            self._acknowledge(pending)
        if any(pending.writing for pending in self.pending.values()):
            return []
        ready = (pending for pending in self.pending.values() if pending.ready)
        first = min(ready, key=lambda one: one.checkpoint, default=None)
        if first is None:
            return []
        first.writing = self._content(first, now)
        return [WriteMetadata(first.writing)]

    def _acknowledge(self, pending: Pending) -> None:
        """Every subtask with a version in storage that the checkpoint may take has acknowledged it."""
        if self._mode is not Mode.AT_LEAST_ONCE:
            pending.acknowledge_durable(self._durable)
            return
        batches = [one for number, one in sorted(self._finished.items()) if number >= pending.checkpoint]
        pending.take(versions_to_take(batches, self._is_handed_in, self._identity.upstream))

    def _is_handed_in(self, handle: StateHandle) -> bool:
        return not handle.files or (handle.subtask, handle.refs) in self._handed_in

    def _forget_what_was_handed_in(self, checkpoint: CheckpointId) -> None:
        """Keep what a batch that no checkpoint has yet may name."""
        batches = [*self._finished.values(), *([self._newest] if self._newest else [])]
        named = {(handle.subtask, handle.refs) for batch in batches for handle in batch.handles.values()}
        self._handed_in = {
            key: version for key, version in self._handed_in.items() if key in named or version > checkpoint
        }

    def _hand_in(self, handle: StateHandle) -> None:
        """The subtask has stored just this; a later version with the same files is the same."""
        if self._mode is Mode.AT_LEAST_ONCE and handle.files:
            self._handed_in[handle.subtask, handle.refs] = handle.version

    def _being_written(self, checkpoint: CheckpointId) -> Pending:
        for pending in self.pending.values():
            if pending.writing is not None and pending.writing.id == checkpoint:
                return pending
        raise InternalError(f"checkpoint {checkpoint} is not being written")

    def _barrier(self, pending: Pending) -> BatchFinished:
        """The batch whose end the checkpoint stands for.

        At least once, subtasks may have handed in later versions. If all of them did, the cut moves along to the earliest
        of these: what lies before it is in every subtask, so it need not be read again.
        """
        if pending.batch is None:
            raise InternalError(
                f"checkpoint {pending.checkpoint} cannot complete before its batch is finished"
            )
        common = min((handle.version for handle in pending.acknowledged.values()), default=pending.checkpoint)
        return self._finished.get(CheckpointId(common), pending.batch)

    def _content(self, pending: Pending, now: Now) -> Completed:
        batch = self._barrier(pending)
        return Completed(
            job=self._identity.job,
            checkpoint=batch.batch,
            run=self._identity.run,
            mode=self._mode.value,
            parallelism=self._identity.parallelism,
            max_parallelism=self._identity.max_parallelism,
            barrier=batch.barrier,
            operators=self._operators(pending.acknowledged),
            transactions=self._promised(pending.last_version),
            subtasks=tuple(self._reports(batch)),
            triggered_at=pending.triggered_wall,
            completed_at=now.wall,
            duration_ms=round((now.monotonic - pending.triggered_at) * 1000, 3),
            restored_from=self._identity.restored_from,
            oldest_retained=self._oldest_retained(batch.batch),
        )

    def _oldest_retained(self, newest: CheckpointId) -> CheckpointId:
        numbers = [*(one.id for one in self.completed), newest]
        return numbers[-self._settings.retained :][0]

    def _operators(self, handles: dict[SubtaskId, StateHandle]) -> dict[str, OperatorState]:
        return {
            uid: OperatorState(
                key, value, tuple(handles[subtask] for subtask in sorted(handles) if subtask.uid == uid)
            )
            for uid, (key, value) in self._identity.layouts.items()
        }

    def _promised(self, checkpoint: CheckpointId) -> tuple[PreCommitted, ...]:
        if self._mode is Mode.AT_MOST_ONCE:
            return ()  # a commit in doubt is not made again
        return tuple(one for one in self.uncommitted if one.checkpoint <= checkpoint)

    def _reports(self, batch: BatchFinished) -> Iterable[SubtaskReport]:
        for subtask in sorted(batch.reports):
            async_ms = self._async_ms.get((subtask, batch.batch), 0.0)
            yield msgspec.structs.replace(batch.reports[subtask], async_ms=async_ms)

    def _commit_up_to(self, checkpoint: CheckpointId) -> list[Action]:
        wanted: dict[str, list[PreCommitted]] = {}
        for one in self.uncommitted:
            if one.checkpoint <= checkpoint and id(one) not in self._committing:
                wanted.setdefault(one.sink, []).append(one)
                self._committing.add(id(one))
        return [Commit(sink, tuple(transactions)) for sink, transactions in wanted.items()]

    # ── giving up ──────────────────────────────────────────────────────────────────────────────

    def _expire(self, now: Now) -> list[Action]:
        actions: list[Action] = []
        for pending in list(self.pending.values()):
            late = now.monotonic - pending.triggered_at >= self._settings.timeout_s
            if late and not pending.writing:
                actions += self._give_up(pending, FailureReason.EXPIRED, self._who_is_late(pending), now)
        return actions

    def _who_is_late(self, pending: Pending) -> str:
        after = f"after {self._settings.timeout_s:g} s"
        if pending.batch is None:
            return f"{after}: its batch is still being processed; if that is normal, raise checkpoint.timeout"
        missing = pending.missing()
        names = ", ".join(str(subtask) for subtask in missing[:8])
        return (
            f"{after}: {len(missing)} of {len(pending.batch.handles)} subtasks did not acknowledge ({names}); "
            "if those executors are alive, raise checkpoint.timeout"
        )

    def _give_up(self, pending: Pending, reason: FailureReason, detail: str, now: Now) -> list[Action]:
        del self.pending[pending.checkpoint]
        self._last_end = now.monotonic
        actions: list[Action] = [Announce(pending.checkpoint, reason, detail), *self._discard_unnamed()]
        if reason.counts:
            self._failures_in_a_row += 1
            if self._failures_in_a_row > self._settings.tolerable_failures:
                actions.append(FailJob(self._too_many(pending.checkpoint, reason, detail)))
        return actions

    def _too_many(self, checkpoint: CheckpointId, reason: FailureReason, detail: str) -> str:
        return (
            f"checkpoint {checkpoint} {reason.text} ({detail}); it is failure {self._failures_in_a_row} in a row and "
            f"checkpoint.tolerable_failures is {self._settings.tolerable_failures}, so the job goes back to "
            f"checkpoint {self.last_completed}"
        )

    # ── forgetting ─────────────────────────────────────────────────────────────────────────────

    def _discard_subsumed(self) -> list[Action]:
        old = subsumed(self.completed, self._settings.retained)
        self.completed = self.completed[len(old) :]
        return self._discard_unnamed(tuple(old))

    def _discard_unnamed(self, checkpoints: tuple[Completed, ...] = ()) -> list[Action]:
        garbage = unnamed_files(self._known, [self.needed_files])
        self._known.difference_update(garbage)
        self._durable.difference_update(garbage)
        if not garbage and not checkpoints:
            return []
        return [Discard(checkpoints, tuple(garbage))]

    def _acceptable_files(self) -> set[str]:
        """At least once: a pending checkpoint may be handed any later version, and that is then what it names."""
        if self._mode is not Mode.AT_LEAST_ONCE or not self.pending:
            return set()
        since = min(self.pending)
        batches = (one for batch, one in self._finished.items() if batch >= since)
        return set().union(*(one.files for one in batches))

    def _working_files(self) -> set[str]:
        if self._newest is None:
            return self._restored_files
        return set(self._newest.files)
