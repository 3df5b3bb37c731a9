"""The events that the coordinator takes, the actions that it performs, and the listener that observes it. Driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from penstock.checkpoint.model import Barrier, Completed, PreCommitted, SubtaskReport
from penstock.ids import CheckpointId, SubtaskId
from penstock.sinks.two_phase_commit import TransactionName
from penstock.state.handle import StateHandle

# ── events ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BatchFinished:
    """Every subtask acknowledged the batch and every sink task pre-committed: the barrier has passed the whole job."""

    batch: CheckpointId
    barrier: Barrier
    handles: dict[SubtaskId, StateHandle]
    transactions: tuple[PreCommitted, ...] = ()
    reports: dict[SubtaskId, SubtaskReport] = field(default_factory=dict)
    bad_records: dict[str, int] = field(default_factory=dict)
    """How many rows of all batches so far were bad, by operator or sink."""
    now_us: int = 0
    """The time of the batch, by which state expires."""
    late_rows: dict[str, int] = field(default_factory=dict)
    """How many rows of all batches so far came too late, by operator."""
    finished_at: float = 0.0
    """When the batch finished, in seconds since the epoch."""

    @property
    def files(self) -> frozenset[str]:
        """Everything below `state/` that a checkpoint at the end of the batch would name."""
        return self.barrier.files.union(*(handle.files for handle in self.handles.values()))


@dataclass(frozen=True)
class SnapshotDurable:
    """The asynchronous part of one subtask is done: every file of the handle is in storage."""

    handle: StateHandle
    async_ms: float = 0.0


@dataclass(frozen=True)
class SnapshotDeclined:
    """The asynchronous part of one subtask failed; some of `files` may be in storage all the same."""

    subtask: SubtaskId
    version: int
    cause: str
    asked: frozenset[str]
    """The files of the state that was to be stored. They identify the attempt; Spark may have kept another one."""
    files: tuple[str, ...] = ()
    tried: int | None = None
    """The version of `files`, if a newer one was uploaded instead of the requested one. Spark may not have kept its attempt."""


@dataclass(frozen=True)
class MetadataWritten:
    """The metadata is written: the checkpoint exists."""

    checkpoint: CheckpointId


@dataclass(frozen=True)
class MetadataFailed:
    """The checkpoint does not exist, and its metadata will not be written again."""

    checkpoint: CheckpointId
    cause: str


@dataclass(frozen=True)
class Committed:
    """These transactions are visible in their sinks."""

    transactions: tuple[PreCommitted, ...]


@dataclass(frozen=True)
class TimePassed:
    """Time has passed: check timeouts and intervals. Sent every 0.1 s; not to be confused with a tick, which is a batch."""


@dataclass(frozen=True)
class CheckpointWanted:
    """A request for a checkpoint of all finished batches: it is due at once, regardless of the interval."""

    token: str
    """Identifies the request, in `Protocol.answer_to` and in `AnswerTaken`."""


@dataclass(frozen=True)
class AnswerTaken:
    """The requester has its checkpoint, or no longer waits for it."""

    token: str


@dataclass(frozen=True)
class Drain:
    """No more batches will come: complete the pending work, regardless of the interval."""


@dataclass(frozen=True)
class JobEnded:
    """The run is over; pending checkpoints are given up."""


Event = (
    BatchFinished
    | SnapshotDurable
    | SnapshotDeclined
    | MetadataWritten
    | MetadataFailed
    | Committed
    | TimePassed
    | CheckpointWanted
    | AnswerTaken
    | Drain
    | JobEnded
)

# ── actions ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class WriteMetadata:
    """Check the claim, then write `_metadata`; answer with `MetadataWritten` or `MetadataFailed`."""

    completed: Completed
    wanted: bool = False
    """Whether it was triggered early, because of a request."""


@dataclass(frozen=True)
class Commit:
    """Check the claim, then commit these transactions of one sink in order, until it succeeds; answer with `Committed`.

    One action per sink: a sink that is down delays only its own transactions.
    """

    sink: str
    transactions: tuple[PreCommitted, ...]


@dataclass(frozen=True)
class MarkCommitted:
    """Record next to the metadata that all its promised transactions are committed."""

    completed: Completed


@dataclass(frozen=True)
class SweepTransactions:
    """Abort transactions in the sinks, up to this batch, that belong to task attempts which Spark did not keep."""

    up_to: CheckpointId
    keep: frozenset[TransactionName]


@dataclass(frozen=True)
class Discard:
    """Delete the metadata of these checkpoints, then these files."""

    checkpoints: tuple[Completed, ...]
    files: tuple[str, ...]


class FailureReason(enum.Enum):
    """Why a checkpoint was given up, and whether it counts against `tolerable_failures`."""

    EXPIRED = ("was not complete in time", True)
    DECLINED = ("was declined by a subtask: its state could not be stored", True)
    METADATA_FAILED = ("could not be completed: its metadata could not be written", True)
    SUBSUMED = ("was overtaken by a newer one", False)
    JOB_ENDED = ("was under way when the job ended", False)

    def __init__(self, text: str, counts: bool) -> None:
        self.text = text
        self.counts = counts


@dataclass(frozen=True)
class Announce:
    """A checkpoint was given up: report it, and count it in the history."""

    checkpoint: CheckpointId
    reason: FailureReason
    detail: str
    triggered_at: float = 0.0


@dataclass(frozen=True)
class FailJob:
    """More checkpoints in a row failed than is tolerated: go back to the last completed one."""

    detail: str


Action = WriteMetadata | Commit | MarkCommitted | SweepTransactions | Discard | Announce | FailJob


class CheckpointListener:
    """Observes checkpoints. Called after the fact, by the coordinator's thread or by that of a sink; it must return at once.

    An exception raised here ends the run. Do not write to storage or to the network in a listener.
    """

    def completed(self, completed: Completed, complete_s: float, *, wanted: bool) -> None:
        """A checkpoint exists; writing its metadata took `complete_s`. `wanted`: it was requested, and came before its interval."""

    def committed(self, completed: Completed) -> None:
        """All transactions of a checkpoint are committed."""

    def given_up(self, announced: Announce) -> None:
        """A checkpoint was aborted and never completes."""

    def sink_down(self, sink: str, why: str, waiting: int) -> None:
        """Commits of a sink fail; `waiting` transactions are pending. Called once per outage."""

    def sink_up(self, sink: str, down_s: float) -> None:
        """The sink accepts commits again."""
