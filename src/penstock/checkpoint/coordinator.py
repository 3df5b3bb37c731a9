"""Performs what the protocol decides: metadata, commits, sweeps and deletions. Driver, one per run.

The only door to the protocol: everything here may be called from any thread, except `handle`, which one thread at a time calls
(see `loop`), or a simulation. What a method returns is of one moment.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from penstock.checkpoint.commit_wait import CommitWait, one_line
from penstock.checkpoint.commits import RunCommit, SinkCall, commit_in_order, run_now
from penstock.checkpoint.completed import Barrier, Completed
from penstock.checkpoint.events import (
    Action,
    Announce,
    BatchFinished,
    Commit,
    Committed,
    Discard,
    Event,
    FailJob,
    MarkCommitted,
    MetadataFailed,
    MetadataWritten,
    SweepTransactions,
    Tick,
    WriteMetadata,
)
from penstock.checkpoint.metadata import exists, mark_committed, name_of, write_metadata
from penstock.checkpoint.protocol import Now, Protocol
from penstock.clock import Clock
from penstock.errors import (
    BadRecordError,
    CheckpointFailedError,
    CommitLostError,
    FencedError,
    UnavailableError,
)
from penstock.ids import CheckpointId
from penstock.ownership.claim import Claim
from penstock.sinks.two_phase_commit import Transaction, TransactionName, TwoPhaseCommitSink
from penstock.state.handle import StateHandle
from penstock.storage import Storage

_log = logging.getLogger(__name__)

METADATA_TRIES = 3
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 30.0


Post = Callable[[Event], None]


@dataclass(frozen=True)
class Opening:
    """What the driver must know when it hands out a batch; all of one moment."""

    awaited: frozenset[int]
    """The checkpoints under way, this batch's among them if it carries one."""
    undurable: frozenset[str]
    """Files of the handles that the batch begins with, which are not known to be in storage."""
    needed: frozenset[str]
    """Every file that something may still ask for."""
    completed: CheckpointId
    """The newest checkpoint that exists."""


class Coordinator:
    """Turns events into effects, and effects into further events."""

    def __init__(
        self,
        protocol: Protocol,
        *,
        storage: Storage,
        sinks: Mapping[str, TwoPhaseCommitSink],
        claim: Claim,
        owner: str,
        clock: Clock,
        post: Post | None = None,
        run_commit: RunCommit = run_now,
        on_completed: Callable[[Completed], None] = lambda _: None,
    ) -> None:
        self._protocol = protocol
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._storage = storage
        self._sinks = sinks
        self._claim = claim
        self._owner = owner
        """Under which name the sinks keep this job's transactions."""
        self._clock = clock
        self._post = self.handle if post is None else post
        """How answers come back: at once, or through a queue."""
        self._run_commit = run_commit
        self._on_completed = on_completed
        self._forgotten: list[str] = []
        self._unnamed: list[str] = []
        self._to_sweep: dict[str, SweepTransactions] = {}
        self._waits = {uid: CommitWait(uid, clock) for uid in sinks}
        self._left_to_next_run: set[str] = set()
        """Sinks of which a commit was given up while stopping: a later one must not overtake it."""
        self._handed_in: dict[CheckpointId, frozenset[str]] = {}
        """The files of finished batches whose event, while storage holds the coordinator up, waits to be taken."""

    # ── asked by whoever runs the batches ──────────────────────────────────────────────────────

    def begin_batch(
        self, batch: CheckpointId, handles: Iterable[StateHandle] = (), merged: Iterable[str] = ()
    ) -> Opening:
        """Trigger a checkpoint with this batch's barrier, if one is due, and say what the batch must know.

        `handles`: what the batch begins with. The event that the batch before is finished may still wait to be taken, so they
        may be newer than what the protocol knows. `merged`: files among them that are in storage and that nothing names yet.
        """
        working = frozenset(name for handle in handles for name in handle.files)
        with self._lock:
            self._protocol.begin_batch(batch, self._now())
            self._protocol.files.take_durable(merged, batch)
            return Opening(
                awaited=frozenset(self._protocol.pending),
                undurable=frozenset(self._protocol.files.undurable(working)),
                needed=frozenset(self._protocol.needed_files.union(working, *self._handed_in.values())),
                completed=self._protocol.last_completed,
            )

    def batch_finished(self, event: BatchFinished) -> None:
        """Hand in a batch. Until the event is taken, its files are needed."""
        with self._lock:
            self._handed_in[event.batch] = event.files
        self._post(event)

    def hold(self, batch: CheckpointId, barrier: Barrier) -> None:
        """Keep what the record of `recovery.begun` names, see `NeededFiles.hold`."""
        with self._lock:
            self._protocol.files.hold(batch, barrier)

    def give_back(self, files: Iterable[str], batch: CheckpointId) -> None:
        """Merged files that no batch will take: they are discarded when batch `batch`, or the run, is over."""
        with self._lock:
            self._protocol.files.take_durable(files, batch)

    def stop(self) -> None:
        """Commits that fail from here on are left to the next run."""
        self._stopping.set()

    # ── looking ────────────────────────────────────────────────────────────────────────────────

    @property
    def undurable_handles(self) -> list[StateHandle]:
        """What pending checkpoints and the working version name and is not known to be in storage."""
        with self._lock:
            return self._protocol.undurable_handles

    @property
    def waiting_commits(self) -> int:
        """How many transactions may be committed, and are not known to be."""
        with self._lock:
            return self._protocol.commits.committing

    @property
    def settled(self) -> bool:
        """Whether a drain is over, see `Protocol.settled`."""
        with self._lock:
            return self._protocol.settled

    @property
    def last_completed(self) -> CheckpointId:
        """The newest checkpoint that exists."""
        with self._lock:
            return self._protocol.last_completed

    def names(self, file: str) -> bool:
        """Whether a completed checkpoint names this file."""
        with self._lock:
            return any(file in completed.files for completed in self._protocol.completed)

    def story(self) -> str:
        """What it waits for, in a line for people."""
        with self._lock:
            pending = {
                number: [str(subtask) for subtask in one.missing()]
                for number, one in self._protocol.pending.items()
            }
            uncommitted = len(self._protocol.commits)
        return f"pending checkpoints and who is missing: {pending}, uncommitted transactions: {uncommitted}"

    # ── taking events ──────────────────────────────────────────────────────────────────────────

    def handle(self, event: Event) -> None:
        """Take an event and do what follows from it."""
        with self._lock:
            actions = self._protocol.handle(event, self._now())
            if isinstance(event, BatchFinished):
                self._handed_in.pop(event.batch, None)
        for action in actions:
            self._perform(action)
        if isinstance(event, Tick):
            for wait in self._waits.values():
                _say(logging.WARNING, wait.tick())

    def _now(self) -> Now:
        return Now(self._clock.monotonic(), self._clock.wall())

    def _perform(self, action: Action) -> None:
        match action:
            case WriteMetadata():
                self._complete(action.completed)
            case Commit():
                self._waits[action.sink].begun(len(action.transactions))
                self._run_commit(SinkCall(action.sink, lambda: self._commit(action)))
            case MarkCommitted():
                self._mark(action.completed)
            case SweepTransactions():
                self._sweep(action)
            case Discard():
                self._discard(action)
            case Announce():
                level = logging.WARNING if action.reason.counts else logging.INFO
                _log.log(level, "checkpoint %d %s: %s", action.checkpoint, action.reason.text, action.detail)
            case FailJob():
                raise CheckpointFailedError(action.detail)

    # ── completing ─────────────────────────────────────────────────────────────────────────────

    def _complete(self, completed: Completed) -> None:
        try:
            self._write(completed)
        except UnavailableError as error:
            # The write may have gone through unseen, and another run may have gone on from it, so it is never taken back.
            # If it cannot be seen whether it exists, the run ends here and recovery reads what is true.
            if not exists(self._storage, completed):
                self._post(MetadataFailed(completed.id, str(error)))
                return
        _log.info(
            "checkpoint %d completed: %.0f ms, %d bytes of state (%d new), %d transactions",
            *(completed.checkpoint, completed.duration_ms, completed.state_bytes, completed.new_bytes),
            len(completed.transactions),
        )
        self._post(MetadataWritten(completed.id))
        self._on_completed(completed)

    def _write(self, completed: Completed) -> None:
        for left in reversed(range(METADATA_TRIES)):
            try:
                self._claim.check()
                write_metadata(self._storage, completed)
            except UnavailableError:
                if not left:
                    raise
                self._clock.sleep(FIRST_PAUSE_S)
            else:
                return

    # ── committing ─────────────────────────────────────────────────────────────────────────────

    def _commit(self, action: Commit) -> None:
        if action.sink in self._left_to_next_run:
            return
        pause_s = FIRST_PAUSE_S
        waiting = len(action.transactions)
        while True:
            try:
                self._claim.check()
                commit_in_order(self._sinks, action.transactions)
            except (FencedError, CommitLostError, BadRecordError):
                raise  # no further try would end otherwise
            except Exception as error:  # noqa: BLE001 - a promised commit is retried, whatever the reason
                if self._stopping.is_set():
                    self._left_to_next_run.add(action.sink)
                    _log.warning(
                        "sink %s: %d transactions, and those behind them, stay to be committed by the next run: %s",
                        *(action.sink, waiting, one_line(error)),
                    )
                    return
                _say(logging.WARNING, self._waits[action.sink].failed(error))
                _log.debug(
                    "sink %s: next try in %.1f s (%d transactions): %s",
                    *(action.sink, pause_s, waiting, one_line(error)),
                )
                self._clock.wait(self._stopping, pause_s)
                pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
            else:
                _say(logging.WARNING, self._waits[action.sink].done(waiting))
                self._post(Committed(action.transactions))
                return

    def _mark(self, completed: Completed) -> None:
        try:
            mark_committed(self._storage, completed)
        except UnavailableError as error:
            _log.warning("checkpoint %d: the next run will commit once more: %s", completed.checkpoint, error)

    # ── forgetting ─────────────────────────────────────────────────────────────────────────────

    def _sweep(self, action: SweepTransactions) -> None:
        """Each sink in its turn behind its commits: one that does not answer must not hold up the coordinator."""
        for uid in self._sinks:
            self._to_sweep[uid] = action
            self._run_commit(SinkCall(uid, lambda uid=uid: self._sweep_sink(uid)))  # type: ignore[misc]

    def _sweep_sink(self, uid: str) -> None:
        action = self._to_sweep.pop(uid, None)
        if action is None or uid in self._left_to_next_run:
            return  # sweeps had piled up behind a commit: the first of them has done what the newest asks for
        sink = self._sinks[uid]
        try:
            for transaction in list(sink.find_transactions(self._owner, uid)):
                kept = TransactionName.of(uid, transaction) in action.keep
                if self._is_stray(transaction, action.up_to) and not kept:
                    sink.abort(transaction)
        except UnavailableError as error:
            _log.warning("sink %s: strays are left for the next checkpoint: %s", uid, error)

    def _is_stray(self, transaction: Transaction, up_to: CheckpointId) -> bool:
        if transaction["run"] == self._claim.run:
            return bool(transaction["checkpoint"] <= up_to)
        return bool(transaction["run"] < self._claim.run)

    def _discard(self, action: Discard) -> None:
        """Delete, unless another run owns the job: it may have gone on from a checkpoint that is subsumed here.

        What could not be deleted comes first the next time: a checkpoint must never outlive a file that it names.
        """
        self._forgotten += [name for completed in action.checkpoints for name in name_of(completed).files]
        self._unnamed += action.files
        try:
            self._claim.check()
            self._storage.delete(self._forgotten)
            self._forgotten.clear()
            self._storage.delete(self._unnamed)
            self._unnamed.clear()
        except UnavailableError as error:
            left = len(self._forgotten) + len(self._unnamed)
            _log.warning("%d files are left to be deleted later: %s", left, error)


def _say(level: int, line: str | None) -> None:
    if line is not None:
        _log.log(level, "%s", line)
