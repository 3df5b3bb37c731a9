"""Performs the actions of the protocol: metadata, commits, sweeps and deletions. Driver, one per run.

All access to the protocol goes through this class. Its methods may be called from any thread, except `handle`: one thread (see `loop`) or a
simulation calls it. What a query returns may be outdated when the caller reads it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.checkpoint.commits import Committer, Post, RunCommit, run_now
from penstock.checkpoint.events import (
    Action,
    Announce,
    BatchFinished,
    CheckpointListener,
    Commit,
    Discard,
    Event,
    FailJob,
    MarkCommitted,
    MetadataFailed,
    MetadataWritten,
    SweepTransactions,
    TimePassed,
    WriteMetadata,
)
from penstock.checkpoint.metadata import CheckpointName, exists, mark_committed, name_of, write_metadata
from penstock.checkpoint.model import Completed, PreCommitted
from penstock.checkpoint.pending import EventTimestamp, PendingLive
from penstock.checkpoint.protocol import Protocol
from penstock.clock import Clock
from penstock.errors import (
    CheckpointFailedError,
    UnavailableError,
)
from penstock.ids import CheckpointId, RunId
from penstock.log_fields import about
from penstock.ownership.claim import Claim
from penstock.ownership.holds import ANY, Hold, find_holds
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.state.handle import StateHandle
from penstock.storage import Storage
from penstock.wording import counted, duration, size

_log = logging.getLogger(__name__)

METADATA_TRIES = 3
METADATA_PAUSE_S = 0.1


@dataclass(frozen=True)
class Opening:
    """A consistent snapshot of the facts that the driver needs to start a batch."""

    awaited: frozenset[int]
    """The pending checkpoints, including that of this batch if one was triggered for it."""
    undurable: frozenset[str]
    """Files of the handles that the batch begins with, which are not known to be in storage."""
    needed: frozenset[str]
    """Every file that a checkpoint or a task may still need."""
    completed: CheckpointId
    """The newest checkpoint that exists."""


class Coordinator:
    """Takes events, performs the actions that the protocol returns, and posts the results as further events."""

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
        listener: CheckpointListener | None = None,
        left_over: Iterable[str] = (),
        shows_rows: bool = True,
    ) -> None:
        self._protocol = protocol
        self._lock = threading.Lock()
        self._storage = storage
        self._claim = claim
        self._clock = clock
        self._post = self.handle if post is None else post
        """How answers come back: at once, or through a queue."""
        self._listener = listener or CheckpointListener()
        self._committer = Committer(
            sinks,
            claim=claim,
            owner=owner,
            clock=clock,
            post=self._post,
            run=run_commit,
            listener=self._listener,
            shows_rows=shows_rows,
        )
        self._forgotten: list[str] = []
        self._unnamed: list[str] = []
        self._subsumed: list[tuple[Completed, frozenset[str] | None]] = []
        """Checkpoints that are no longer retained, with the holds at that time; None until the holds could be read."""
        self._left_over = list(left_over)
        """Files without an owner that were held when the run began, in the order of their deletion."""
        self._warned: set[str] = set()
        self._handed_in: dict[CheckpointId, frozenset[str]] = {}
        """The files of finished batches whose event is still queued, for example while a slow storage blocks the coordinator."""

    # ── queries of the run ─────────────────────────────────────────────────────────────────────

    def begin_batch(
        self, batch: CheckpointId, handles: Iterable[StateHandle] = (), merged: Iterable[str] = ()
    ) -> Opening:
        """Trigger a checkpoint at this batch's barrier, if one is due. Returns what the driver needs to assign the batch.

        `handles`: the state at the start of the batch. It may be newer than what the protocol knows, because the `BatchFinished` of the
        previous batch may still be queued. `merged`: files of these handles that are in storage and that no checkpoint names yet.
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
        """Post the event. Until it is handled, the files of the batch count as needed."""
        with self._lock:
            self._handed_in[event.batch] = event.files
        self._post(event)

    def hold(self, batch: CheckpointId, files: frozenset[str]) -> None:
        """Keep what the record of `recovery.started_batches` names, see `NeededFiles.hold`."""
        with self._lock:
            self._protocol.files.hold(batch, files)

    def give_back(self, files: Iterable[str], batch: CheckpointId) -> None:
        """Give back merged files that no handle will name: they are discarded after batch `batch`, or when the run ends."""
        with self._lock:
            self._protocol.files.take_durable(files, batch)

    def stop(self) -> None:
        """Commits that fail from here on are left to the next run."""
        self._committer.stop()

    # ── looking ────────────────────────────────────────────────────────────────────────────────

    @property
    def undurable_handles(self) -> list[StateHandle]:
        """Files that pending checkpoints and the working version name, and that are not known to be in storage."""
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

    def answer_to(self, token: str, *, committed: bool = False) -> Completed | None:
        """The answer to a `CheckpointWanted`, see `Protocol.answer_to`."""
        with self._lock:
            return self._protocol.answer_to(token, committed=committed)

    @property
    def last_completed(self) -> CheckpointId:
        """The newest checkpoint that exists."""
        with self._lock:
            return self._protocol.last_completed

    @property
    def newest_committed(self) -> Completed | None:
        """The newest checkpoint all of whose transactions are visible."""
        with self._lock:
            return self._protocol.newest_committed

    def names(self, file: str) -> bool:
        """Whether a completed checkpoint names this file."""
        with self._lock:
            return any(file in completed.files for completed in self._protocol.completed)

    @property
    def under_way(self) -> tuple[PendingLive, ...]:
        """The checkpoints that are triggered and do not exist yet, oldest first."""
        with self._lock:
            return tuple(one.live for _, one in sorted(self._protocol.pending.items()))

    @property
    def uncommitted(self) -> tuple[PreCommitted, ...]:
        """Transactions that are durable and not known to be visible, oldest batch first."""
        with self._lock:
            return self._protocol.commits.uncommitted

    def story(self) -> str:
        """A line for people that says what the checkpoint waits for."""
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
        if isinstance(event, TimePassed):
            self._committer.tick()

    def _now(self) -> EventTimestamp:
        return EventTimestamp(self._clock.monotonic(), self._clock.wall())

    def _perform(self, action: Action) -> None:
        match action:
            case WriteMetadata():
                self._complete(action)
            case Commit():
                self._committer.commit(action)
            case MarkCommitted():
                self._mark(action.completed)
            case SweepTransactions():
                self._committer.sweep(action)
            case Discard():
                self._discard(action)
            case Announce():
                level = logging.WARNING if action.reason.counts else logging.INFO
                _log.log(
                    level,
                    "checkpoint %d %s: %s",
                    *(action.checkpoint, action.reason.text, action.detail),
                    extra=about(checkpoint=action.checkpoint),
                )
                self._listener.given_up(action)
            case FailJob():
                raise CheckpointFailedError(action.detail)

    # ── completing ─────────────────────────────────────────────────────────────────────────────

    def _complete(self, action: WriteMetadata) -> None:
        began_s = self._clock.monotonic()
        completed = action.completed
        try:
            self._write(completed)
        except UnavailableError as error:
            # The write may have gone through unseen, and another run may have gone on from it, so it is never taken back.
            # If it cannot be seen whether it exists, the run ends here and recovery reads what is true.
            if not exists(self._storage, completed):
                self._post(MetadataFailed(completed.id, str(error)))
                return
        complete_s = self._clock.monotonic() - began_s
        took_s = completed.duration_ms / 1000 + complete_s
        _log.info(
            "checkpoint %d of job %s completed in %s: %s of state (%s new), %s",
            *(completed.checkpoint, completed.job, duration(took_s)),
            *(size(completed.state_bytes), size(completed.new_bytes)),
            counted(len(completed.transactions), "transaction"),
            extra=about(checkpoint=completed.checkpoint),
        )
        self._post(MetadataWritten(completed.id))
        self._listener.completed(completed, complete_s, wanted=action.wanted)
        if self._left_over:  # what was held and subsumed meanwhile goes with what this one subsumes
            self._discard(Discard((), ()))

    def _holds(self) -> list[Hold] | None:
        """The holds of readers; None if they cannot be read.

        They are read after the metadata that subsumes a checkpoint is written: a reader that has chosen this checkpoint has placed its
        hold by then, and a later reader chooses a newer one.
        """
        try:
            found = find_holds(self._storage, self._clock.wall())
        except UnavailableError as error:
            self._warn_once(
                "checkpoints are not deleted, because the holds of readers cannot be read: %s. Storage grows until this is fixed. "
                "Let the job's user read the folder holds there, or delete it if no reader uses the job's state",
                error,
            )
            return None
        try:
            self._storage.delete(found.old)
        except UnavailableError as error:
            self._warn_once("holds of readers that are gone stay, and hold nothing: %s", error)
        return found.good

    def _warn_once(self, text: str, error: UnavailableError) -> None:
        """Log a lasting problem once, not at every checkpoint."""
        _log.log(logging.DEBUG if text in self._warned else logging.WARNING, text, error)
        self._warned.add(text)

    def _write(self, completed: Completed) -> None:
        for left in reversed(range(METADATA_TRIES)):
            try:
                self._claim.check()
                write_metadata(self._storage, completed)
            except UnavailableError:
                if not left:
                    raise
                self._clock.sleep(METADATA_PAUSE_S)
            else:
                return

    def _mark(self, completed: Completed) -> None:
        try:
            mark_committed(self._storage, completed)
        except UnavailableError as error:
            _log.warning(
                "checkpoint %d: the next run will commit once more: %s",
                *(completed.checkpoint, error),
                extra=about(checkpoint=completed.checkpoint),
            )
        self._listener.committed(completed)

    # ── forgetting ─────────────────────────────────────────────────────────────────────────────

    def _discard(self, action: Discard) -> None:
        """Delete files, unless another run owns the job: it may have restored a checkpoint that is subsumed here.

        Files that could not be deleted come first the next time: a checkpoint must never outlive a file that it names.
        """
        self._subsumed += [(completed, None) for completed in action.checkpoints]
        self._unnamed += action.files
        self._keep_what_is_held()
        kept = {name for completed, _ in self._subsumed for name in completed.files}
        # checkpoints of earlier runs, whose files may be among those that this one has gone on with
        if self._left_over:
            kept |= set(self._unnamed)
        try:
            self._claim.check()
            self._storage.delete(self._forgotten)
            self._forgotten.clear()
            self._storage.delete([name for name in self._unnamed if name not in kept])
            self._unnamed = [name for name in self._unnamed if name in kept]
        except UnavailableError as error:
            left = len(self._forgotten) + len(self._unnamed)
            _log.warning("%s left to be deleted later: %s", counted(left, "file is", "files are"), error)

    def _keep_what_is_held(self) -> None:
        """The subsumed checkpoints that may be deleted: those without a hold that already existed when they were subsumed.

        A later hold does not keep an older checkpoint. So any number of readers in a row keep only the checkpoints that they read.
        """
        if not self._subsumed and not self._left_over:
            return
        holds = self._holds()
        if holds is None:
            return
        waiting, self._subsumed = self._subsumed, []
        for completed, holders in waiting:
            keeping = {hold.token for hold in holds if hold.keeps(completed.checkpoint, completed.run)}
            if kept_for := keeping if holders is None else keeping & holders:
                self._subsumed.append((completed, frozenset(kept_for)))
            else:
                self._forgotten += name_of(completed).files
        if not any(hold.checkpoint == ANY or _metadata_of(hold) in self._left_over for hold in holds):
            self._forgotten += self._left_over
            self._left_over.clear()


def _metadata_of(hold: Hold) -> str:
    return CheckpointName(CheckpointId(hold.checkpoint), RunId(hold.run)).metadata
