"""The events of a job, for the journal and for listeners. Data only; driver.

Times are in seconds since the epoch, by the clock of the machine that says so. A field that is added has a default, so that a journal of an
older version can be read; a reader passes over events that it does not know.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

LONGEST_TEXT = 4000
"""Characters of a text of others: an error may have a user's rows in it."""
MOST_SUBTASKS = 128
"""Of a checkpoint with more only the slowest are written down one by one."""


class SubtaskTimes(msgspec.Struct, frozen=True, array_like=True):
    """What one subtask measured in a checkpoint."""

    operator: str
    index: int
    rows: int = 0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    state_bytes: int = 0
    new_bytes: int = 0
    acknowledged_at: float = 0.0
    host: str = ""


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    at: float
    run: int
    """The run that says so; 0 where no run does: a supervisor."""


class RunStarted(_Event, frozen=True, kw_only=True, tag="run_started"):
    """A run has claimed the job and gone back to a checkpoint; its query is about to start."""

    host: str
    pid: int
    restored_from: int = -1
    """-1: from nothing."""
    restored_from_run: int = 0
    completed_at: float = 0.0
    """When that checkpoint was completed."""
    parallelism: int = 0
    rescaled_from: int = 0
    """The parallelism of that checkpoint, where it was another."""
    savepoint: str = ""
    """The savepoint with which the job began, where this run was given one."""
    restore_s: float = 0.0
    """How long the way back took, from the claim on."""


class FirstBatch(_Event, frozen=True, kw_only=True, tag="first_batch"):
    """The first batch of a run is done: the job is processing again."""

    batch: int
    took_s: float


class CheckpointCompleted(_Event, frozen=True, kw_only=True, tag="checkpoint_completed"):
    """A checkpoint exists. `at` is when its metadata was in storage."""

    checkpoint: int
    triggered_at: float
    barrier_at: float
    """When the barrier had passed the whole job: the end of its batch."""
    stored_at: float
    """When all it names was in storage."""
    duration_ms: float
    """From the trigger until it existed; see `Completed.duration_ms` for one that was triggered while no batch came."""
    batch_ms: float
    alignment_ms: float
    """The longest of all subtasks; so are the next two."""
    sync_ms: float
    async_ms: float
    complete_ms: float
    """Writing the metadata."""
    state_bytes: int
    new_bytes: int
    transactions: int
    rows: int = 0
    """Rows that the job read since the checkpoint before, as far as Spark has accounted for them."""
    subtasks: tuple[SubtaskTimes, ...] = ()
    subtasks_in_all: int = 0
    wanted: bool = False
    """Whether a user had requested it."""


class CheckpointCommitted(_Event, frozen=True, kw_only=True, tag="checkpoint_committed"):
    """All that a checkpoint promised is visible."""

    checkpoint: int
    commit_ms: float
    """From the moment that it existed."""


class CheckpointFailed(_Event, frozen=True, kw_only=True, tag="checkpoint_failed"):
    """A checkpoint was given up."""

    checkpoint: int
    reason: str
    """A word of `FailureReason`, in lower case."""
    text: str
    detail: str
    counts: bool
    """Against `tolerable_failures`."""
    triggered_at: float = 0.0


class RunFailed(_Event, frozen=True, kw_only=True, tag="run_failed"):
    """A run has failed, and this was decided."""

    error: str
    """The class of the error."""
    why: str
    root: str = ""
    """The first cause, where that is another error."""
    notes: tuple[str, ...] = ()
    trace: str = ""
    strategy: str
    restarts: bool
    """Whether the job goes back to its last checkpoint."""
    delay_s: float = 0.0
    """After so long."""
    decision: str = ""
    """Why it is tried again, or is not, in words."""
    batch: int = -1
    """The last batch that was done."""
    batch_at: float = 0.0
    checkpoint: int = -1
    """The newest checkpoint that the run had."""
    rows_again: int = 0
    """Rows after that checkpoint that were processed, and are processed again."""


class JobEnded(_Event, frozen=True, kw_only=True, tag="job_ended"):
    """The job has ended, for good or until it is started again."""

    how: str
    error: str = ""
    why: str = ""
    batches: int = 0
    rows_in: int = 0
    checkpoint: int = -1


class TasksRepeated(_Event, frozen=True, kw_only=True, tag="tasks_repeated"):
    """Attempts of tasks have failed, Spark has repeated them, and the batch was done: nothing is lost.

    Reported at most once a minute for each operator.
    """

    batch: int
    operator: str
    """Or the sink."""
    subtasks: tuple[int, ...] = ()
    """Those that are known by their number; of very many the first."""
    attempts: int
    """The most that one of them needed."""
    why: str = ""
    """The error of the first failed attempt; '' if there was none: its process died, or Spark gave it up."""
    batches_before: int = 0
    """How many batches had the same problem since the last report."""


class SavepointMade(_Event, frozen=True, kw_only=True, tag="savepoint_made"):
    """A savepoint was completed."""

    checkpoint: int
    folder: str
    took_s: float


class SavepointDeleted(_Event, frozen=True, kw_only=True, tag="savepoint_deleted"):
    """A savepoint is deleted by request. The dashboard reports it before it begins."""

    folder: str
    by: str = ""
    files: int = 0


class Asked(_Event, frozen=True, kw_only=True, tag="asked"):
    """The job has accepted a request."""

    what: str
    by: str = ""
    request: str = ""
    """By which its answer is found."""


class Answered(_Event, frozen=True, kw_only=True, tag="answered"):
    """The result of a request."""

    request: str
    what: str
    by: str = ""
    ok: bool
    error: str = ""
    """Why it came to nothing."""
    checkpoint: int = -1
    """The one that was made for it; of a stop or a cancel, the last one."""
    folder: str = ""
    """Of the savepoint, where one was asked for."""


class SinkDown(_Event, frozen=True, kw_only=True, tag="sink_down"):
    """Commits of a sink do not come through. They are tried again until they do."""

    sink: str
    why: str
    waiting: int
    """Transactions."""


class SinkUp(_Event, frozen=True, kw_only=True, tag="sink_up"):
    """The sink accepts commits again."""

    sink: str
    down_s: float


class ProcessDied(_Event, frozen=True, kw_only=True, tag="process_died"):
    """A supervisor has seen the driver end, and this was decided."""

    how: str
    """`exit code 1`, `signal SIGKILL`."""
    restarts: bool
    delay_s: float = 0.0
    decision: str = ""
    pid: int = 0


class ProcessStarted(_Event, frozen=True, kw_only=True, tag="process_started"):
    """A supervisor has started the program of the job."""

    pid: int
    attempt: int
    host: str = ""
    supervisor: int = 0
    """The pid of the supervisor itself: a reader on the same machine sees by it whether it is alive."""
    supervisor_started: str = ""
    """Tells it from a later process with that pid."""
    pid_space: str = ""
    """Where that pid means the supervisor, see `ownership.claim.pid_space`."""


class Lost(_Event, frozen=True, kw_only=True, tag="lost"):
    """Events that could not be written: storage did not accept them in time."""

    events: int
    MOST_WAITING: ClassVar[int] = 10_000


Event = (
    RunStarted
    | FirstBatch
    | CheckpointCompleted
    | CheckpointCommitted
    | CheckpointFailed
    | RunFailed
    | JobEnded
    | TasksRepeated
    | SavepointMade
    | SavepointDeleted
    | Asked
    | Answered
    | SinkDown
    | SinkUp
    | ProcessDied
    | ProcessStarted
    | Lost
)
