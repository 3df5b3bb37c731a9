"""A completed checkpoint: the content of `_metadata`. Driver; read by recovery, the command line and people."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from penstock.ids import NO_CHECKPOINT, CheckpointId, SubtaskId
from penstock.sinks.two_phase_commit import TransactionName
from penstock.state.handle import StateHandle
from penstock.state.lifetimes import FAR_AWAY_US

FORMAT = 4

Upstream = Mapping[str, Sequence[str]]
"""All upstream operators of each operator, in topological order."""


class SourceFile(msgspec.Struct, frozen=True):
    """A copy in storage of a file that a source keeps for itself, because Spark does not sync its own."""

    path: str
    """Below the folder `sources` of Spark's progress log."""
    name: str
    size: int
    checksum: str


class SourceTime(msgspec.Struct, frozen=True):
    """The event time that a source has reached: its watermark, and the newest event time of each partition, in microseconds."""

    watermark_us: int
    newest_us: dict[str, int] = {}
    told_by: tuple[str, ...] | None = None
    """The columns that identify its partitions; None if they are not recorded."""
    seen_us: dict[str, int] = {}
    """By partition, by the clock: when it last had rows, or became known. Not noted by versions before this field."""


class TimeReached(msgspec.Struct, frozen=True):
    """How far time had come when a batch ended. It comes back with the checkpoint."""

    watermarks_us: dict[str, int] = {}
    """By operator: all that was due up to it has been done."""
    sources: dict[str, SourceTime] = {}
    """Those with event time, with the rows of the batch."""
    clock_us: int = 0
    """The time of the batch: timers by the clock up to it have fired."""
    to_go_on_from_us: dict[str, int] = {}
    """By operator, after a drain to the end of time: the watermark before that, from which a job continues."""
    over_us: dict[str, int] = {}
    """By operator with windows in event time: those that end up to it are forgotten, for a lateness that is longer now comes too late."""
    anew_in: int = NO_CHECKPOINT
    """The last batch that removed what had lived by event time, after its end."""

    def renamed(self, names: Mapping[str, str]) -> TimeReached:
        """The same where operators and sources have other uids: new ones by old ones."""

        def under(by_uid: dict[str, Any]) -> dict[str, Any]:
            return {names.get(uid, uid): one for uid, one in by_uid.items()}

        return msgspec.structs.replace(
            self, sources=under(self.sources), **{name: under(getattr(self, name)) for name in _BY_OPERATOR}
        )

    def without(self, operators: Collection[str]) -> TimeReached:
        """The same, without the watermarks of operators that start with new state."""
        kept = {
            name: {uid: us for uid, us in getattr(self, name).items() if uid not in operators}
            for name in _BY_OPERATOR
        }
        return msgspec.structs.replace(self, **kept)

    @property
    def counted_from_us(self) -> dict[str, int]:
        """By operator: the watermark from which it continues, also after a drain to the end of time."""
        return {**self.watermarks_us, **self.to_go_on_from_us}

    def with_state_of(self, checkpoint: CheckpointId) -> TimeReached:
        """The same for the state of a checkpoint, which may be older: closed windows that are still in it must be removed again."""
        if checkpoint >= self.anew_in or self.to_go_on_from_us:
            return self
        over = dict.fromkeys(self.watermarks_us, FAR_AWAY_US)
        return msgspec.structs.replace(self, watermarks_us=over, to_go_on_from_us=dict(self.watermarks_us))


_BY_OPERATOR = ("watermarks_us", "to_go_on_from_us", "over_us")
"""The fields of `TimeReached` that have an entry per operator."""


class Barrier(msgspec.Struct, frozen=True):
    """Where a batch ended in every source: all before it is in, all after it is not.

    `progress_log` is Spark's own record of the positions, verbatim, so that a query can be set back to exactly here.
    """

    positions: dict[str, Any] = {}
    progress_log: str = ""
    source_log: tuple[SourceFile, ...] = ()
    """Further files of the sources: the list of files read, or the position chosen by a first start."""
    time: TimeReached = TimeReached()
    numbers: dict[str, tuple[int, ...]] = {}
    """By source: for each of its streams the number under which Spark keeps its notes. Empty: in order, as checkpoints of old had them."""

    @property
    def files(self) -> frozenset[str]:
        """The names in storage that must exist to go back to here."""
        return frozenset(file.name for file in self.source_log)


class SubtaskReport(msgspec.Struct, frozen=True):
    """Measurements of one subtask in the batch that ended with the barrier."""

    subtask: SubtaskId
    rows: int = 0
    alignment_ms: float = 0.0
    """How long it waited until the barrier had arrived on all inputs."""
    sync_ms: float = 0.0
    """How long freezing the state held it up."""
    async_ms: float = 0.0
    """How long the upload took, while later records were already being processed."""
    state_bytes: int = 0
    new_bytes: int = 0
    host: str = ""
    reused_files: int = 0
    reused_bytes: int = 0
    """Files of state that an earlier run had left on the machine, and that were right."""
    fetched_files: int = 0
    fetched_bytes: int = 0
    """Files of state that had to come from storage."""
    acknowledged_at: float = 0.0
    """When the coordinator learned that its state was in storage; 0 if not recorded."""


class PreCommitted(msgspec.Struct, frozen=True):
    """A transaction that is durable and invisible, and that the checkpoint promises to commit."""

    sink: str
    checkpoint: int
    subtask: int
    transaction: dict[str, Any]
    rows: int = 0

    @property
    def name(self) -> TransactionName:
        """The name of the transaction, without the data that the sink added to it."""
        return TransactionName.of(self.sink, self.transaction)


Columns = dict[str, str]
"""Names with their types."""


class TableColumns(msgspec.Struct, frozen=True):
    """A table of state: its identity columns, the operator's key first, and its value columns."""

    identity: Columns
    value: Columns
    schema: bytes = b""
    """The same columns, exactly: Arrow's own message."""
    ordered: bool = True
    by_time: bool = False
    on_rescale: str = "by key"


class StoredLifetime(msgspec.Struct, frozen=True):
    """The time to live of some columns of a table, and since when it applies, in microseconds since the epoch."""

    table: str
    columns: tuple[str, ...]
    ttl_us: int
    switched_on_us: int
    """By the watermark, as it was then."""
    measure: str = "clock"


class OperatorColumns(msgspec.Struct, frozen=True):
    """The typed columns of an operator's state: of its key, of the row that every key has, and of tables with rows of their own.

    Without stamps: `lifetimes` has, for each column of stamps, what it is for.
    """

    key: Columns
    value: Columns
    tables: dict[str, TableColumns] = {}
    lifetimes: dict[str, StoredLifetime] = {}
    schema: bytes = b""
    """The columns of the key and of the row that every key has, exactly: Arrow's own message."""


class OperatorState(msgspec.Struct, frozen=True):
    """The state of one operator: its typed columns and one handle per subtask."""

    key: Columns
    value: Columns
    handles: tuple[StateHandle, ...]
    tables: dict[str, TableColumns] = {}
    lifetimes: dict[str, StoredLifetime] = {}
    schema: bytes = b""
    former_uids: tuple[str, ...] = ()
    """The uids that the operator had before: some of its files may have been written under them."""

    @property
    def columns(self) -> OperatorColumns:
        """The kind of state, such as a value, a list or a map."""
        return OperatorColumns(self.key, self.value, self.tables, self.lifetimes, self.schema)


class Completed(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint: everything needed to restore the job."""

    job: str
    checkpoint: int
    run: int
    mode: str
    max_parallelism: int
    parallelism: int
    barrier: Barrier
    operators: dict[str, OperatorState]
    transactions: tuple[PreCommitted, ...] = ()
    subtasks: tuple[SubtaskReport, ...] = ()
    triggered_at: float = 0.0
    completed_at: float = 0.0
    barrier_at: float = 0.0
    """When the barrier had passed the whole job; 0 if not recorded."""
    duration_ms: float = 0.0
    """From the trigger until all it names was in storage, which may lie before the trigger when no batch came: then with the time
    that storing took, and without the time it waited for the interval."""
    restored_from: int = -1
    bad_records: dict[str, int] = {}
    """How many rows, from the job's first batch to the barrier, were bad and did not end it: by the uid of the operator or sink."""
    late_rows: dict[str, int] = {}
    """How many came too late, by the uid of the operator; also those whose time is missing or not believed."""
    oldest_retained: int = -1
    """Whether older checkpoints are subsumed by this one. Recorded before they are deleted, so that no run restores one meanwhile."""
    now_us: int = 0
    """The time of its batch, by which state expires, in microseconds since the epoch. It never decreases, even if the clock does."""
    savepoint: str = ""
    """The savepoint that it was made of, where a run has adopted one."""
    claimed: str = ""
    """The folder of that savepoint, where it became the job's own."""
    dropped: tuple[str, ...] = ()
    """The `drop_state=` of its start. It is done: a start with the same value does not repeat it."""
    positions_set: dict[str, Any] = {}
    """The `positions=` of its start. It is done: a start with the same value does not repeat it."""

    @property
    def id(self) -> CheckpointId:
        """The number of the checkpoint as a `CheckpointId`."""
        return CheckpointId(self.checkpoint)

    @property
    def files(self) -> frozenset[str]:
        """Every file below `state/` that this checkpoint needs."""
        handles = (handle for operator in self.operators.values() for handle in operator.handles)
        return self.barrier.files.union(*(handle.files for handle in handles))

    @property
    def state_bytes(self) -> int:
        """The size of all state it names."""
        return sum(handle.size for operator in self.operators.values() for handle in operator.handles)

    @property
    def new_bytes(self) -> int:
        """The bytes that its last batch added; the rest was already in storage."""
        return sum(report.new_bytes for report in self.subtasks)
