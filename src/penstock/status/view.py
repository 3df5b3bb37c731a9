"""The view of a job at one moment, for people and programs: its state, its unread rows, whether it has caught up. Pure; readers.

Every page has a JSON counterpart that is one of these, encoded. Times are seconds since the epoch, sizes bytes; units are in the names.
"""

from __future__ import annotations

import enum

import msgspec

from penstock.status.events import Event, SubtaskTimes
from penstock.status.journal import Budget, budget_of
from penstock.status.live import LIVE_S, Progress, SourceLive
from penstock.status.plan import Plan
from penstock.wording import counted, named


class JobState(enum.StrEnum):
    """Where a job is in its life."""

    STARTING = "starting"
    """A run has claimed it and has done no batch yet."""
    RUNNING = "running"
    STOPPING = "stopping"
    RESTARTING = "restarting"
    """It has failed, and goes back to its last checkpoint by itself."""
    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    DIED = "died"
    """Its process is gone or silent, and recorded no end: it was killed, or its machine is gone."""
    NEW = "new"
    """It has never run."""
    UNREADABLE = "unreadable"

    @property
    def is_alive(self) -> bool:
        """Whether some process works on it."""
        return self in (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.RESTARTING)

    @property
    def is_down(self) -> bool:
        """Whether it is down although it was not stopped."""
        return self in (JobState.FAILED, JobState.DIED, JobState.UNREADABLE)


class CheckpointStatus(enum.StrEnum):
    """What became of a checkpoint."""

    IN_PROGRESS = "in progress"
    COMPLETED = "completed"
    FAILED = "failed"


class CheckpointView(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint: under way, completed or given up."""

    checkpoint: int
    run: int
    status: CheckpointStatus
    triggered_at: float
    retained: bool = False
    """Whether it is still in storage, so that the job can go back to it."""
    completed_at: float = 0.0
    barrier_at: float = 0.0
    stored_at: float = 0.0
    committed_at: float = 0.0
    """0: not known to be committed."""
    duration_ms: float = 0.0
    batch_ms: float = 0.0
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    complete_ms: float = 0.0
    commit_ms: float = 0.0
    state_bytes: int = 0
    new_bytes: int = 0
    transactions: int = 0
    rows: int = 0
    subtasks: tuple[SubtaskTimes, ...] = ()
    """What was measured one by one; of very many only the slowest."""
    subtasks_in_all: int = 0
    acknowledged: int = 0
    missing: tuple[str, ...] = ()
    """Of one under way: some of those who have not acknowledged."""
    reason: str = ""
    detail: str = ""
    """Of one that was given up: why."""
    counts: bool = False
    """Whether its failure counts against `tolerable_failures`."""
    wanted: bool = False
    """Whether a user had requested it."""


class FailureView(msgspec.Struct, frozen=True, kw_only=True):
    """One failure of the job, and what it cost."""

    at: float
    run: int
    error: str
    """The class of the error; `died` for a driver that recorded none."""
    why: str
    root: str = ""
    notes: tuple[str, ...] = ()
    trace: str = ""
    strategy: str = ""
    decision: str = ""
    """What the restart strategy, or a supervisor, decided and why."""
    delay_s: float = 0.0
    restored_from: int | None = None
    """The checkpoint that the job went back to; -1: it began from nothing; None: it has not come back yet."""
    next_run: int | None = None
    tried_again: bool = False
    """Whether a run was begun after it, which may not have come up."""
    back_at: float = 0.0
    """When the first batch after it was done; 0: not yet."""
    down_s: float | None = None
    """For how long nothing was processed: from the last batch before until the first one after. None: not known, or not over."""
    rows_again: int | None = None
    """How many rows were processed again; None where that is unknown."""


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive failures with the same cause, apart from numbers in its text."""

    begins: int
    """Where the newest of them is in `JobView.failures`."""
    count: int
    first_at: float
    last_at: float
    down_s: float | None
    """For how long nothing was processed, over all of them, as far as is known: failures without a batch between them share that time."""
    rows_again: int | None
    """The sum of those that are known."""


class RequestView(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the job: from a shell, a page, or the program itself."""

    request: str
    what: str
    by: str
    asked_at: float
    state: str
    """`under way`, `done`, `failed`, or `unknown`: the process that had taken it on ended before it wrote the result."""
    answered_at: float = 0.0
    error: str = ""
    checkpoint: int = -1
    """The one that was made for it; of a stop or a cancel, the last one."""
    folder: str = ""
    """Of the savepoint, where one was asked for."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run as pages and tables show it."""

    run: int
    how: str
    """`running`, a word of `RunOutcome`, or `did not say`."""
    started_at: float = 0.0
    ended_at: float = 0.0
    host: str = ""
    pid: int = 0
    restored_from: int = -1
    newest_checkpoint: int = -1
    error: str = ""
    why: str = ""


class Percentiles(msgspec.Struct, frozen=True):
    """Of a measurement over the completed checkpoints that are known."""

    minimum: float
    average: float
    p50: float
    p90: float
    p95: float
    p99: float
    p999: float
    maximum: float


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Of the history that is known."""

    completed: int = 0
    failed: int = 0
    in_progress: int = 0
    restored: int = 0
    duration_ms: Percentiles | None = None
    state_bytes: Percentiles | None = None
    new_bytes: Percentiles | None = None


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """All that is shown of a job."""

    id: str
    """32 hexadecimal digits, made of its name: what Flink's own client knows it by."""
    name: str
    storage: str
    """The URI of the job's folder."""
    place: str
    """As it is written on a command line: the storage that the job's folder is in."""
    state: JobState
    now: float
    """When this was looked at, or, where `looked_at` is set, when it was shown."""
    looked_at: float = 0.0
    """When this was last seen, where that is some time ago: its storage does not answer since then. 0: it was seen just now."""
    since: float = 0.0
    """Since when it is in that state, as far as is known."""
    run: int = 0
    host: str = ""
    pid: int = 0
    supervised: bool = False
    """Whether `penstock run --keep-alive` starts it again when its process dies."""
    supervisor_gone: bool = False
    """Whether one has started the program that runs now, and lives no more."""
    plan: Plan | None = None
    live: Progress | None = None
    """The last progress; of a job that is not running, the progress before it ended."""
    checkpoints: tuple[CheckpointView, ...] = ()
    """Newest first: those under way, the history that the journal has, and what is retained."""
    summary: CheckpointSummary = CheckpointSummary()
    failures: tuple[FailureView, ...] = ()
    """Newest first."""
    restarts_counted: int = 0
    rows_again_counted: int = 0
    """What the newest run that wrote anything down had counted by then, since the job's first start. The journal knows only the newest."""
    runs: tuple[RunView, ...] = ()
    """Newest first."""
    events: tuple[Event, ...] = ()
    """The journal, newest first."""
    asked: tuple[RequestView, ...] = ()
    """What it was asked for, newest first."""
    savepoints: tuple[str, ...] = ()
    """Folders of savepoints that the journal knows of, newest first."""
    unreadable: tuple[str, ...] = ()
    """The problems of files of the job, for people."""

    @property
    def story(self) -> tuple[Event, ...]:
        """The journal without what happens all the time while a job is well."""
        return tuple(event for event in self.events if budget_of(event) is not Budget.CHECKPOINTS)

    @property
    def look_age_s(self) -> float:
        """How long ago it was seen."""
        return max(0.0, self.now - self.looked_at) if self.looked_at else 0.0

    @property
    def is_unseen(self) -> bool:
        """Whether that is so long ago that its current state is unknown."""
        return self.look_age_s > UNSEEN_AFTER_S

    @property
    def is_up(self) -> bool:
        """Whether a run is at work. If not, rates, and what lies in sources, are left of one that is over."""
        if self.state is JobState.STOPPING:
            return self.live is not None and self.live.up_since > 0
        return self.state is JobState.RUNNING

    @property
    def last_completed(self) -> CheckpointView | None:
        """The newest completed checkpoint that is known."""
        completed = (one for one in self.checkpoints if one.status is CheckpointStatus.COMPLETED)
        return next(completed, None)

    @property
    def last_commit_ms(self) -> float:
        """How long the commit of the last committed checkpoint took; 0 if none is known."""
        return next((one.commit_ms for one in self.checkpoints if one.committed_at), 0.0)

    @property
    def restarts(self) -> int:
        """How often it was begun again after a failure, or after its process died, as far as is known."""
        known = sum(failure.tried_again for failure in self.failures)
        return max(known, self.restarts_counted)

    @property
    def rows_again(self) -> int:
        """Rows that were processed again then, as far as is known."""
        known = sum(failure.rows_again or 0 for failure in self.failures if failure.next_run is not None)
        return max(known, self.rows_again_counted)

    @property
    def checkpoint_age_s(self) -> float | None:
        """How old it is; None when there is none."""
        last = self.last_completed
        return None if last is None else max(0.0, self.now - last.completed_at)

    @property
    def not_up_s(self) -> float:
        """How long it has been starting, or on its way back to a checkpoint, without a pause before the next try; 0 where it is neither."""
        if self.state not in (JobState.STARTING, JobState.RESTARTING) or not self.since:
            return 0.0
        failed_at = max((one.at for one in self.failures[:1]), default=0.0)
        live = self.live
        said = (0.0,) if live is None else (live.next_try_at, live.batch_at, live.checkpoint_at)
        return max(0.0, self.now - max(self.since, failed_at, *said))

    @property
    def is_stuck(self) -> bool:
        """Whether that takes so long that it may never be done."""
        return self.not_up_s > STUCK_AFTER_S

    @property
    def is_late(self) -> bool:
        """Whether a running job should have completed a checkpoint by now: there is something to complete, and three intervals are over.

        One that has done no batch yet is not late: a first batch takes as long as Spark needs to begin. Nor is one that had nothing to do
        for hours when its first rows come: time counts from there.
        """
        if self.is_stuck:
            return True
        if (
            self.live is None
            or self.plan is None
            or self.state is JobState.STARTING
            or not self.state.is_alive
        ):
            return False
        waits_since = [one.triggered_at for one in self.live.pending]
        waits_since += [self.live.unsafe_since] if self.live.rows_since_checkpoint > 0 else []
        since = max(self.live.checkpoint_at, self.live.started_at, min(waits_since, default=0.0))
        allowed_s = (
            LATE_AFTER * max(self.plan.settings.interval_s, self.plan.settings.min_pause_s)
            + self.live.batch_seconds
            + SEEN_AFTER_S
        )
        return bool(waits_since) and self.now - since > allowed_s

    @property
    def guarantee(self) -> str:
        """The end-to-end guarantee; '' if no run has written it."""
        return "" if self.plan is None else self.plan.guarantee


UNSEEN_AFTER_S = 15.0
"""Older observations are not taken for the current state."""
STUCK_AFTER_S = 600.0
"""A start that takes longer is not one that only takes its time."""
SEEN_AFTER_S = 3 * LIVE_S
"""A checkpoint may have been completed since the job last wrote down what it does."""
LATE_AFTER = 3.0
"""After this number of intervals without a completed checkpoint, a job is late."""


class Behind(msgspec.Struct, frozen=True):
    """Unread rows; None where the number is unknown."""

    rows: int | None = None
    as_of: float = 0.0
    """When it was found out by a run that is over; 0: the present run says so."""

    @property
    def now(self) -> int | None:
        """The rows, unless they are those of a run that is over."""
        return None if self.as_of else self.rows


def source_behind(view: JobView, source: SourceLive) -> Behind:
    """Of one source. A run that has only just come up has no number yet: Spark reports a batch after its end."""
    if source.behind is None or view.live is None:
        return Behind()
    is_old = not view.is_up or source.looked_at < view.live.up_since
    return Behind(source.behind, (source.looked_at or view.live.at) if is_old else 0.0)


def total_behind(view: JobView) -> Behind:
    """Of all sources of a job that is alive; of none where one cannot say it. As old as the oldest of them."""
    if view.live is None or not view.state.is_alive:
        return Behind()
    every = [source_behind(view, source) for source in view.live.sources.values()]
    known = [one.rows for one in every if one.rows is not None]
    if not every or len(known) < len(every):
        return Behind()
    return Behind(sum(known), min((one.as_of for one in every if one.as_of), default=0.0))


class CaughtUp(enum.StrEnum):
    """Whether a job has caught up."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """Nothing is known to be left, but a source cannot tell, or the job does not run."""


class CaughtUpView(msgspec.Struct, frozen=True):
    """The answer, and what is left to do, or why it is unknown."""

    answer: CaughtUp
    why: str = ""


def is_caught_up(view: JobView) -> CaughtUpView:
    """At the moment of the last word of the job, which is a second old while it runs."""
    live = view.live
    if live is None:
        return CaughtUpView(CaughtUp.UNKNOWN, "no run has said anything yet")
    under_way = ["a batch is being processed"] if live.batch_since and view.state.is_alive else []
    left = [*_left_to_read(view, live), *under_way, *_left_to_commit(live)]
    if left:
        return CaughtUpView(CaughtUp.NO, ", ".join(left))
    if not view.is_up:
        down = "no run is up" if view.state.is_alive else "the job does not run"
        return CaughtUpView(CaughtUp.UNKNOWN, f"{down} ({view.state}), so its sources are not watched")
    silent = sorted({*_sources(view), *live.sources} - _those_that_say_it(view, live))
    if silent or not live.sources:
        whose = named(silent, "source") if silent else "its sources"
        return CaughtUpView(
            CaughtUp.UNKNOWN, f"it is unknown how far behind {whose} {'are' if len(silent) != 1 else 'is'}"
        )
    return CaughtUpView(CaughtUp.YES)


def _sources(view: JobView) -> list[str]:
    return [] if view.plan is None else [node.uid for node in view.plan.nodes if node.kind == "source"]


def _those_that_say_it(view: JobView, live: Progress) -> set[str]:
    return {uid for uid, source in live.sources.items() if source_behind(view, source).now is not None}


def _left_to_read(view: JobView, live: Progress) -> list[str]:
    """While no run is up, what was unread stays so."""
    every = {uid: source_behind(view, source) for uid, source in live.sources.items()}
    left = {uid: one.now if view.is_up else one.rows for uid, one in every.items()}
    return [f"{counted(rows, 'row')} to read from {uid}" for uid, rows in left.items() if rows]


def _left_to_commit(live: Progress) -> list[str]:
    left: list[str] = []
    if live.rows_since_checkpoint:
        left.append(f"{counted(live.rows_since_checkpoint, 'row')} in no checkpoint yet")
    waiting = {uid: sink.waiting for uid, sink in live.sinks.items() if sink.waiting}
    left += [f"{counted(number, 'transaction')} of {uid} to commit" for uid, number in waiting.items()]
    return left
