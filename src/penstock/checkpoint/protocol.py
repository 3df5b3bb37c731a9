"""The checkpoint protocol: events in, actions out. Pure: no I/O, no clock, no threads. Driver.

It decides when a checkpoint is triggered and completed. `needed_files` and `pending` state their own invariants. Those of the protocol:
1. `WriteMetadata(n)` is emitted only when every subtask of every operator has acknowledged barrier n with a durable handle and every
   sink has pre-committed. Exactly once: the handle is the state at n, no later.
2. At least once, a checkpoint promises all output up to the latest batch that its state has seen.
3. A checkpoint is given up at most once and never completed afterwards. Whatever only it named is discarded.

Commits:
1. Exactly once: a transaction is committed only after the metadata that names it is written. In the other modes it is committed at
   the end of its batch.
2. Every metadata names all transactions up to its barrier that are not known to be committed. At most once it names none: a commit
   in doubt is not repeated.
3. Each sink commits in the order of the batches, by its own actions; sinks are independent of each other. No transaction is in two
   actions.
4. A checkpoint is marked as committed only when all its promised transactions are committed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from penstock.checkpoint.content import Content, Identity, LaterVersions
from penstock.checkpoint.events import (
    Action,
    Announce,
    AnswerTaken,
    BatchFinished,
    CheckpointWanted,
    Commit,
    Committed,
    Discard,
    Drain,
    Event,
    FailureReason,
    JobEnded,
    MarkCommitted,
    MetadataFailed,
    MetadataWritten,
    SnapshotDeclined,
    SnapshotDurable,
    SweepTransactions,
    TimePassed,
    WriteMetadata,
)
from penstock.checkpoint.model import Completed, PreCommitted
from penstock.checkpoint.needed_files import NeededFiles
from penstock.checkpoint.pending import EventTimestamp, Pending, PendingCheckpoints
from penstock.config import Checkpointing, Mode
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.sinks.two_phase_commit import TransactionName
from penstock.state.handle import StateHandle


class DueCommits:
    """The transactions of one run that are pre-committed and not known to be committed, by their names, oldest batch first."""

    def __init__(self, mode: Mode, run: RunId) -> None:
        self._mode = mode
        self._run = run
        self._uncommitted: dict[TransactionName, PreCommitted] = {}
        self._committing: set[TransactionName] = set()

    def __len__(self) -> int:
        """The number of transactions that are not committed yet."""
        return len(self._uncommitted)

    @property
    def committing(self) -> int:
        """Transactions handed to a committer and not confirmed yet."""
        return len(self._committing)

    @property
    def uncommitted(self) -> tuple[PreCommitted, ...]:
        """All uncommitted transactions, oldest batch first."""
        return tuple(self._uncommitted.values())

    def promised(self, up_to: CheckpointId) -> tuple[PreCommitted, ...]:
        """The transactions that a metadata must name if its state has seen the batches up to this one."""
        if self._mode is Mode.AT_MOST_ONCE:
            return ()
        return tuple(one for one in self._uncommitted.values() if one.checkpoint <= up_to)

    def are_committed(self, completed: Completed) -> bool:
        """Whether all that a checkpoint of this run promised is committed. Promises of earlier runs were committed before it began."""
        return not any(one.name in self._uncommitted for one in completed.transactions)

    def batch_finished(self, event: BatchFinished) -> list[Action]:
        """Its transactions count now; those of other attempts never will."""
        self._uncommitted |= {one.name: one for one in event.transactions}
        return [] if self._mode is Mode.EXACTLY_ONCE else self._commit_up_to(event.batch)

    def completed(self, checkpoint: CheckpointId) -> list[Action]:
        """Its metadata exists: commit the transactions that it names, and abort those of attempts that do not count."""
        sweep = SweepTransactions(checkpoint, frozenset(self._uncommitted))
        return [*self._commit_up_to(checkpoint), sweep]

    def committed(self, transactions: Iterable[PreCommitted], completed: Sequence[Completed]) -> list[Action]:
        """These are visible. `completed`: the checkpoints that exist, the newest last."""
        for one in transactions:
            self._committing.discard(one.name)
            self._uncommitted.pop(one.name, None)
        newest = completed[-1] if completed else None
        if newest is None or newest.run != self._run:
            return []
        left = any(one.name in self._uncommitted for one in newest.transactions)
        return [] if left else [MarkCommitted(newest)]

    def _commit_up_to(self, checkpoint: CheckpointId) -> list[Action]:
        by_sink: dict[str, list[PreCommitted]] = {}
        for name, one in self._uncommitted.items():
            if one.checkpoint <= checkpoint and name not in self._committing:
                by_sink.setdefault(one.sink, []).append(one)
                self._committing.add(name)
        return [Commit(sink, tuple(transactions)) for sink, transactions in by_sink.items()]


class Protocol:
    """One per run. `begin_batch` asks whether a batch ends in a checkpoint, `handle` takes everything that happens."""

    def __init__(
        self,
        settings: Checkpointing,
        identity: Identity,
        completed: Iterable[Completed],
        started: EventTimestamp,
        restored: Iterable[StateHandle] = (),
        *,
        held: frozenset[str] = frozenset(),
    ) -> None:
        self._settings = settings
        self.completed: list[Completed] = list(completed)
        self.files = NeededFiles(self.completed, restored, held)
        self.commits = DueCommits(settings.delivery_mode, identity.run)
        self._under_way = PendingCheckpoints(settings, started)
        self.pending = self._under_way.pending
        self._content = Content(identity, settings)
        may_be_later = settings.delivery_mode is Mode.AT_LEAST_ONCE
        self._later = LaterVersions(identity.upstream) if may_be_later else None
        self._newest: BatchFinished | None = None
        self._draining = False
        self._waited_for: dict[str, CheckpointId] = {}
        """For each request that waits for a checkpoint, by its token: the batch that the checkpoint must include."""

    # ── asking ─────────────────────────────────────────────────────────────────────────────────

    def begin_batch(self, batch: CheckpointId, now: EventTimestamp) -> bool:
        """Trigger a checkpoint with this batch's barrier, if one is due; true if so."""
        if not self._due(now):
            return False
        self._trigger(batch, now)
        return True

    @property
    def needed_files(self) -> set[str]:
        """Every file that a checkpoint or a task may still need."""
        return self.files.needed(self._wanted())

    @property
    def undurable_handles(self) -> list[StateHandle]:
        """Files that pending checkpoints and the working version name, and that are not known to be in storage."""
        batches = [*(pending.batch for pending in self.pending.values()), self._newest]
        return self.files.undurable_handles(batch for batch in batches if batch)

    @property
    def last_completed(self) -> CheckpointId:
        """The newest checkpoint that exists."""
        return self.completed[-1].id if self.completed else NO_CHECKPOINT

    def answer_to(self, token: str, *, committed: bool = False) -> Completed | None:
        """The newest checkpoint that satisfies a `CheckpointWanted`; with `committed`, one whose transactions are all visible, too."""
        at_least = self._waited_for.get(token)
        for completed in reversed(self.completed):
            if at_least is None or completed.id < at_least:
                return None
            if not committed or self.commits.are_committed(completed):
                return completed
        return None

    @property
    def newest_committed(self) -> Completed | None:
        """The newest checkpoint all of whose transactions are visible."""
        return next((one for one in reversed(self.completed) if self.commits.are_committed(one)), None)

    @property
    def settled(self) -> bool:
        """Whether a drain is over: the newest batch is in a completed checkpoint and every transaction is committed.

        Never before `Drain` was taken: until then the protocol may not know of all finished batches.
        """
        newest = self._newest.batch if self._newest else NO_CHECKPOINT
        return self._draining and not self.pending and not self.commits and self.last_completed >= newest

    # ── events ─────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: Event, now: EventTimestamp) -> list[Action]:  # noqa: C901, PLR0911 - one line an event
        """Take one event; return what must be done, in this order."""
        match event:
            case BatchFinished():
                return self._batch_finished(event, now)
            case SnapshotDurable():
                return self._snapshot_durable(event, now)
            case SnapshotDeclined():
                return self._snapshot_declined(event, now)
            case MetadataWritten():
                return self._metadata_written(event, now)
            case MetadataFailed():
                pending = self._under_way.being_written(event.checkpoint)
                actions = self._give_up(pending, FailureReason.METADATA_FAILED, event.cause, now)
                return self._completions(now) + actions
            case Committed():
                return self.commits.committed(event.transactions, self.completed)
            case TimePassed():
                late = self._under_way.late(now)
                return self._give_up_all(late, FailureReason.EXPIRED, now) + self._trigger_idle(now)
            case CheckpointWanted() | AnswerTaken():
                return self._record_waiter(event, now)
            case Drain():
                self._draining = True
                return self._trigger_idle(now)
            case JobEnded():
                return self._job_ended(now)

    def _batch_finished(self, event: BatchFinished, now: EventTimestamp) -> list[Action]:
        self._newest = event
        self.files.batch_finished(event)
        if self._later:
            self._later.batch_finished(event, self.files.durable)
        actions = self.commits.batch_finished(event)
        if pending := self.pending.get(event.batch):
            pending.attach(event)
            self._acknowledge(pending)
            actions += self._give_up_if_declined(pending, now)
        return actions + self._completions(now) + self._discard()

    def _snapshot_durable(self, event: SnapshotDurable, now: EventTimestamp) -> list[Action]:
        self.files.stored(event.handle)
        if self._later:
            self._later.hand_in(event.handle)
        self._content.uploaded(event.handle, event.async_ms, now)
        return self._completions(now) + self._discard()

    def _snapshot_declined(self, event: SnapshotDeclined, now: EventTimestamp) -> list[Action]:
        self.files.may_be_stored(event.files, event.version if event.tried is None else event.tried)
        pending = self.pending.get(CheckpointId(event.version))
        if pending is None or pending.writing:
            return self._discard()
        pending.decline(event)
        return self._give_up_if_declined(pending, now)

    def _give_up_if_declined(self, pending: Pending, now: EventTimestamp) -> list[Action]:
        if (event := pending.declined) is None:
            return self._discard()
        return self._give_up(pending, FailureReason.DECLINED, f"{event.subtask}: {event.cause}", now)

    def _metadata_written(self, event: MetadataWritten, now: EventTimestamp) -> list[Action]:
        checkpoint = event.checkpoint
        written = self._under_way.complete(checkpoint, now)
        self.completed.append(written)
        self.files.completed(written)
        if self._later:
            self._later.forget(checkpoint)
        self._content.forget(checkpoint)
        actions = self.commits.completed(checkpoint)
        done = f"checkpoint {checkpoint} is complete"
        older = [(one, done) for one in self._under_way.in_order() if one.checkpoint <= checkpoint]
        actions += self._give_up_all(older, FailureReason.SUBSUMED, now)
        return actions + self._subsume() + self._trigger_idle(now) + self._completions(now)

    def _record_waiter(self, event: CheckpointWanted | AnswerTaken, now: EventTimestamp) -> list[Action]:
        if isinstance(event, AnswerTaken):
            self._waited_for.pop(event.token, None)
            return []
        newest = self.last_completed if self._newest is None else self._newest.batch
        self._waited_for[event.token] = max(newest, CheckpointId(0))  # where there is none yet, any will do
        return self._trigger_idle(now)

    def _job_ended(self, now: EventTimestamp) -> list[Action]:
        """Give up all checkpoints, except one whose metadata is being written: recovery finds out whether it exists, so its files stay."""
        left = [(one, "the run is over") for one in self._under_way.not_being_written()]
        actions = self._give_up_all(left, FailureReason.JOB_ENDED, now)
        self._newest = None
        self.files.run_ended()
        return actions + self._discard()

    # ── triggering and completing ──────────────────────────────────────────────────────────────

    def _due(self, now: EventTimestamp) -> bool:
        """Whether a checkpoint is due: by the settings, or because of a request that no pending checkpoint satisfies."""
        newest = max([self.last_completed, *self.pending])
        at_once = any(at_least > newest for at_least in self._waited_for.values())
        return self._under_way.due(now, at_once=at_once)

    def _trigger(self, batch: CheckpointId, now: EventTimestamp) -> Pending:
        return self._under_way.trigger(
            batch, now, ahead=not self._draining and not self._under_way.is_time(now)
        )

    def _trigger_idle(self, now: EventTimestamp) -> list[Action]:
        """Trigger a checkpoint at the newest finished batch, if one is due and no new batch has begun that could carry it."""
        newest = self._newest
        if newest is None or newest.batch <= self.last_completed or newest.batch in self.pending:
            return []
        if not self._draining and not (self._due(now) and not self.files.undurable_working):
            return []
        last = f"checkpoint {newest.batch} is the last one"  # what older ones have it has too
        older = [(one, last) for one in self._under_way.in_the_way()]
        actions = self._give_up_all(older, FailureReason.SUBSUMED, now)
        if self._under_way.full:
            return actions
        self._trigger(newest.batch, now).attach(newest)
        return self._completions(now) + actions

    def _completions(self, now: EventTimestamp) -> list[Action]:
        """Complete the oldest checkpoint that can be, unless one is being written."""
        for pending in self._under_way.in_order():
            self._acknowledge(pending)
        first = self._under_way.next_to_write()
        if first is None:
            return []
        first.writing = self._content_of(first, now)
        return [WriteMetadata(first.writing, wanted=self._under_way.is_ahead(first))]

    def _acknowledge(self, pending: Pending) -> None:
        """Every subtask with a version in storage that the checkpoint may take has acknowledged it."""
        if self._later:
            pending.take(self._later.to_take(pending.checkpoint))
        else:
            pending.acknowledge_durable(self.files.durable)

    def _content_of(self, pending: Pending, now: EventTimestamp) -> Completed:
        cut = self._later.cut(pending) if self._later else pending.batch
        transactions = self.commits.promised(pending.last_version)
        time_us = 0 if self._newest is None else self._newest.now_us
        return self._content.of(
            pending, cut, transactions=transactions, completed=self.completed, now=now, time_us=time_us
        )

    # ── giving up, and forgetting ──────────────────────────────────────────────────────────────

    def _give_up_all(
        self, these: Iterable[tuple[Pending, str]], reason: FailureReason, now: EventTimestamp
    ) -> list[Action]:
        """Each with a detail of its own."""
        return list(chain(*(self._give_up(one, reason, detail, now) for one, detail in these)))

    def _give_up(
        self, pending: Pending, reason: FailureReason, detail: str, now: EventTimestamp
    ) -> list[Action]:
        too_many = self._under_way.given_up(pending, reason, detail, now, self.last_completed)
        announced = Announce(pending.checkpoint, reason, detail, pending.triggered.wall)
        return [announced, *self._discard(), *too_many]

    def _subsume(self) -> list[Action]:
        """Retain only the newest completed checkpoints, as many as `retained` says."""
        left = max(0, len(self.completed) - self._settings.retained)
        old, self.completed = self.completed[:left], self.completed[left:]
        self.files.subsumed(old)
        return self._discard(tuple(old))

    def _discard(self, checkpoints: tuple[Completed, ...] = ()) -> list[Action]:
        garbage = self.files.discard(self._wanted())
        return [Discard(checkpoints, garbage)] if garbage or checkpoints else []

    def _wanted(self) -> list[set[str]]:
        """The files that pending checkpoints may name."""
        later = [self._later.files_since(min(self.pending))] if self._later and self.pending else []
        return [*later, *(pending.files for pending in self.pending.values())]
