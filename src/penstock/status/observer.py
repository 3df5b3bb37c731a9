"""What a running job shows of itself: counts, the last checkpoint, where it came back to. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from penstock.checkpoint.completed import Completed, PreCommitted, SubtaskReport
from penstock.checkpoint.events import Announce, CheckpointListener
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.ids import CheckpointId
from penstock.recovery.restore_plan import RestorePlan
from penstock.requests.request_files import Done, Request
from penstock.snapshot.messages import MergeDone
from penstock.state.handle import StateHandle
from penstock.status import make_events
from penstock.status.events import (
    MOST_SUBTASKS,
    Answered,
    Asked,
    CheckpointCommitted,
    Event,
    FirstBatch,
    JobEnded,
    SavepointMade,
    SinkDown,
    SinkUp,
    TasksRepeated,
)
from penstock.status.live import MOST_BATCHES, BatchLive
from penstock.wording import counted, size

_log = logging.getLogger(__name__)


def tell_origins(report: SubtaskReport) -> None:
    """Say what a subtask found on its machine and what it had to fetch: after a restart, or where an executor was lost."""
    if report.reused_files or report.fetched_files:
        _log.info(
            "%s: state on %s: %s (%s) used again, %s (%s) from storage",
            *(report.subtask, report.host),
            *(counted(report.reused_files, "file"), size(report.reused_bytes)),
            *(counted(report.fetched_files, "file"), size(report.fetched_bytes)),
        )


@dataclass(frozen=True)
class SourceAccount:
    """What Spark says of a source and one batch."""

    rows: int
    behind: int | None = None
    """Rows that lie in the source behind the batch; None where nobody knows."""
    position: str = ""


@dataclass(frozen=True)
class OperatorState:
    """How large the state of an operator is."""

    bytes: int = 0
    files: int = 0


@dataclass
class Progress:
    """A snapshot of a running job for people and tests."""

    run: int = 0
    restored_from: int = -1
    restarts: int = 0
    """Since this start."""
    restarts_before: int = 0
    """Of earlier starts, and this one if it follows a death: with these the job counts from its first start on."""
    down_since: float = 0.0
    """When the first failure came since a run was last up; counts while none is."""
    failed_in_a_row: int = 0
    """How many came since then."""
    up_since: float = 0.0
    """When the present run came up: it had done a batch, or found nothing to read. 0: none is up."""
    batch: int = -1
    batches: int = 0
    rows_in: int = 0
    """Rows that were read from the sources; those that are read again after a restart count again."""
    rows_out: Mapping[str, int] = field(default_factory=dict)
    """Rows that each sink, by its uid, was given; the same holds for them."""
    rows_by_source: Mapping[str, int] = field(default_factory=dict)
    rows_by_operator: Mapping[str, int] = field(default_factory=dict)
    """The same for rows that came to each operator."""
    sources: Mapping[str, SourceAccount] = field(default_factory=dict)
    """What Spark said last of each source, and when."""
    sources_at: float = 0.0
    state: Mapping[str, OperatorState] = field(default_factory=dict)
    batch_seconds: float = 0.0
    batch_at: float = 0.0
    """When the last batch ended, in seconds since the epoch; 0 when there was none."""
    batch_since: float = 0.0
    """When the present batch began; 0 when none runs."""
    recent_batches: tuple[BatchLive, ...] = ()
    """The newest batches that read rows, newest first."""
    checkpoint: int = -1
    checkpoint_at: float = 0.0
    """When that checkpoint was completed, in seconds since the epoch; 0 when there is none."""
    checkpoints_completed: int = 0
    checkpoints_failed: int = 0
    """Those whose failure counts."""
    rows_since_checkpoint: int = 0
    """Rows in batches that are done and in no completed checkpoint."""
    unsafe_since: float = 0.0
    """When the first of them was done; 0: there is none."""
    rows_again: int = 0
    """Rows that were to be processed again after failures."""
    merges: int = 0
    merged_bytes: int = 0
    merge_ms: float = 0.0
    sinks_down: Mapping[str, str] = field(default_factory=dict)
    """Sinks whose commits do not come through, and why."""
    bad_records: dict[str, int] = field(default_factory=dict)
    """Rows that were bad and did not end the job, by operator or sink, from its first batch on."""
    late_rows: dict[str, int] = field(default_factory=dict)
    """Rows that came too late, by operator, from its first batch on. A row may be late for several operators, and counts for each."""
    watermarks: dict[str, datetime | None] = field(default_factory=dict)
    """How far event time has come, by operator; None where no row has brought it anywhere. Those whose sources have none are not named."""
    source_watermarks: dict[str, datetime | None] = field(default_factory=dict)
    """The same by source; those without event time are not named."""
    due_next: dict[str, datetime] = field(default_factory=dict)
    """The operators in which something waits for event time (a window, a timer, a row without a partner), and the first moment of each."""


Tell = Callable[[Event], None]


class Observer(CheckpointListener):
    """Collects progress from the threads of a run, and tells what happens; survives restarts."""

    def __init__(
        self,
        on_change: Callable[[Progress], None] = lambda _: None,
        *,
        tell: Tell = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.on_change = on_change
        self.progress = Progress()
        self.newest_committed: Completed | None = None
        """The newest checkpoint of this start that is known to be committed."""
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}
        """Rows of the batches behind the newest completed checkpoint."""
        self._told_again = False
        """Whether these rows were counted as those that are processed again: a way back that fails is a failure, too."""
        self._rows_told = 0
        """Of all rows that were read: how many were, when a checkpoint was last told of."""
        self._completed: dict[int, float] = {}
        """When checkpoints that are not known to be committed came to exist."""
        self._first_batch_since_s: float | None = None

    # ── a run ──────────────────────────────────────────────────────────────────────────────────

    @property
    def is_coming_up(self) -> bool:
        """Whether the present run has neither done a batch nor found that there is nothing to do."""
        return not self.progress.up_since

    def restored(self, point: RestorePlan) -> None:
        """A run begins."""
        with self._lock:
            self.progress.run = point.run
            self.progress.restored_from = point.id
            self.progress.checkpoint = point.id
            self.progress.checkpoint_at = point.checkpoint.completed_at if point.checkpoint else 0.0
            self._count_what_is_unsafe({})
            self.progress.batch_since = self.progress.up_since = 0.0
            self.progress.sinks_down = {}
            self._completed, self._told_again = {}, False
        self.on_change(self.progress)

    def run_started(
        self, point: RestorePlan, *, parallelism: int, restore_s: float, savepoint: str = ""
    ) -> None:
        """It has gone back to its checkpoint, and its query is about to start. `savepoint`: with which the job has begun just now."""
        self._first_batch_since_s = self._clock.monotonic()
        now = self._clock.wall()
        self._tell(
            make_events.run_started(
                point, at=now, parallelism=parallelism, restore_s=restore_s, savepoint=savepoint
            )
        )

    def run_failed(
        self,
        error: BaseException,
        *,
        strategy: str,
        delay_s: float | None,
        decision: str,
        reads_again: bool = True,
        shows_rows: bool = True,
    ) -> None:
        """It has failed, and this was decided; `delay_s`: None where it is not tried again. At most once nothing is read again."""
        with self._lock:
            progress = self.progress
            rows_again = progress.rows_since_checkpoint if reads_again and not self._told_again else 0
            self._told_again = True
            progress.rows_again += rows_again
            told = make_events.run_failed(
                error,
                at=self._clock.wall(),
                run=progress.run,
                strategy=strategy,
                delay_s=delay_s,
                decision=decision,
                batch=progress.batch,
                batch_at=progress.batch_at,
                checkpoint=progress.checkpoint,
                rows_again=rows_again,
                shows_rows=shows_rows,
            )
        self._tell(told)

    def claimed(self, run: int) -> None:
        """A run has the job, and may take long to come up: what is said from now on is said by it."""
        with self._lock:
            self.progress.run = max(run, self.progress.run)

    def has_failed(self) -> None:
        """A run failed, or could not come up."""
        with self._lock:
            if self.progress.up_since or not self.progress.down_since:
                self.progress.down_since, self.progress.failed_in_a_row = self._clock.wall(), 0
            self.progress.failed_in_a_row += 1
            self.progress.batch_since = self.progress.up_since = 0.0

    def restarting(self) -> None:
        """Another is going to begin."""
        with self._lock:
            self.progress.restarts += 1
        self.on_change(self.progress)

    def ended(self, how: str, error: BaseException | None) -> None:
        """The last run is over."""
        progress = self.progress
        self._tell(
            JobEnded(
                at=self._clock.wall(),
                run=progress.run,
                how=how,
                error="" if error is None else type(error).__name__,
                why="" if error is None else make_events.text_of(make_events.error_text(error)),
                batches=progress.batches,
                rows_in=progress.rows_in,
                checkpoint=progress.checkpoint,
            )
        )

    def asked(self, request: str, wish: Request) -> None:
        """Somebody has asked for something, and it was taken on."""
        now, run = self._clock.wall(), self.progress.run
        self._tell(Asked(at=now, run=run, request=request, what=wish.kind, by=make_events.text_of(wish.by)))

    def answered(self, request: str, wish: Request, done: Done) -> None:
        """This came of it."""
        self._tell(
            Answered(
                at=self._clock.wall(),
                run=self.progress.run,
                request=request,
                what=wish.kind,
                by=make_events.text_of(wish.by),
                ok=done.ok,
                error=make_events.text_of(done.error),
                checkpoint=done.facts.get("checkpoint", -1),
                folder=done.facts.get("savepoint", ""),
            )
        )

    def savepoint_made(self, checkpoint: int, folder: str, took_s: float) -> None:
        """A savepoint is whole."""
        now, run = self._clock.wall(), self.progress.run
        self._tell(SavepointMade(at=now, run=run, checkpoint=checkpoint, folder=folder, took_s=took_s))

    # ── batches ────────────────────────────────────────────────────────────────────────────────

    def has_nothing_to_read(self) -> None:
        """The query has looked at its sources and waits for rows: the run is up."""
        with self._lock:
            self.progress.up_since = self.progress.up_since or self._clock.wall()

    def batch_begun(self) -> None:
        """A batch runs."""
        with self._lock:
            self.progress.batch_since = self._clock.wall()

    def batch_done(
        self,
        batch: CheckpointId,
        transactions: Sequence[PreCommitted],
        seconds: float,
        reports: Iterable[SubtaskReport] = (),
        handles: Iterable[StateHandle] = (),
    ) -> None:
        """A batch passed every operator and sink."""
        now = self._clock.wall()
        with self._lock:
            progress = self.progress
            progress.up_since = progress.up_since or now
            progress.batch = batch
            progress.batches += 1
            progress.rows_out = _more(progress.rows_out, ((one.sink, one.rows) for one in transactions))
            progress.rows_by_operator = _more(
                progress.rows_by_operator, ((one.subtask.uid, one.rows) for one in reports)
            )
            progress.state = _state_of(handles)
            progress.batch_seconds = seconds
            progress.batch_at, progress.batch_since = now, 0.0
            first_since_s, self._first_batch_since_s = self._first_batch_since_s, None
        if first_since_s is not None:
            took_s = self._clock.monotonic() - first_since_s
            self._tell(FirstBatch(at=now, run=self.progress.run, batch=batch, took_s=took_s))
        self.on_change(self.progress)

    def tasks_repeated(
        self,
        batch: int,
        operator: str,
        *,
        subtasks: Sequence[int],
        attempts: int,
        why: str,
        batches_before: int = 0,
    ) -> None:
        """A batch succeeded after Spark had repeated some of its tasks. The arguments are the fields of `TasksRepeated`."""
        told = TasksRepeated(
            at=self._clock.wall(),
            run=self.progress.run,
            batch=batch,
            operator=operator,
            subtasks=tuple(subtasks[:MOST_SUBTASKS]),
            attempts=attempts,
            why=make_events.text_of(why),
            batches_before=batches_before,
        )
        _log.warning(
            "batch %s is done after %s attempts of tasks of %s: %s",
            *(told.batch, told.attempts, told.operator, told.why or "one ended without a word"),
        )
        self._tell(told)

    def rows_read(
        self, batch: int, sources: Mapping[str, SourceAccount], took: BatchLive | None = None
    ) -> None:
        """Spark has accounted for a batch: so many more came from the sources. `took`: how long it took, without its number and time."""
        rows = sum(one.rows for one in sources.values())
        with self._lock:
            progress = self.progress
            if took is not None:
                newest = msgspec.structs.replace(took, batch=batch, at=self._clock.wall(), rows=rows)
                progress.recent_batches = (newest, *progress.recent_batches)[:MOST_BATCHES]
            progress.rows_in += rows
            progress.rows_by_source = _more(
                progress.rows_by_source, ((uid, one.rows) for uid, one in sources.items())
            )
            progress.sources, progress.sources_at = dict(sources), self._clock.wall()
            if batch > progress.checkpoint:
                self._count_what_is_unsafe({**self._rows, batch: self._rows.get(batch, 0) + rows})
        self.on_change(self.progress)

    def _count_what_is_unsafe(self, rows: dict[int, int]) -> None:
        """With the lock: these are the rows of batches behind the newest completed checkpoint."""
        progress, self._rows = self.progress, rows
        progress.rows_since_checkpoint = sum(rows.values())
        progress.unsafe_since = (
            (progress.unsafe_since or self._clock.wall()) if progress.rows_since_checkpoint else 0.0
        )

    def bad_records(self, so_far: Mapping[str, int]) -> None:
        """Some rows were bad, in this run or before it."""
        with self._lock:
            self.progress.bad_records = dict(so_far)
        self.on_change(self.progress)

    def late_rows(self, so_far: Mapping[str, int]) -> None:
        """Some rows came too late, in this run or before it."""
        with self._lock:
            self.progress.late_rows = dict(so_far)
        self.on_change(self.progress)

    def event_time(
        self,
        watermarks: Mapping[str, datetime | None],
        due_next: Mapping[str, datetime],
        sources: Mapping[str, datetime | None],
    ) -> None:
        """Event time has come so far, by operator and by source, and this waits for it."""
        with self._lock:
            self.progress.watermarks = dict(watermarks)
            self.progress.source_watermarks = dict(sources)
            self.progress.due_next = dict(due_next)
        self.on_change(self.progress)

    def merged(self, message: MergeDone) -> None:
        """Sorted files of state were merged in the background."""
        with self._lock:
            self.progress.merges += 1
            self.progress.merged_bytes += message.merged.size if message.merged else 0
            self.progress.merge_ms += message.duration_ms
        self.on_change(self.progress)

    # ── checkpoints, see `CheckpointListener` ─────────────────────────────────────────────────────────────

    def completed(self, completed: Completed, complete_s: float = 0.0, *, wanted: bool = False) -> None:
        """A checkpoint exists."""
        now = self._clock.wall()
        with self._lock:
            self.progress.checkpoint = completed.checkpoint
            self.progress.checkpoint_at = completed.completed_at
            self.progress.checkpoints_completed += 1
            rows, self._rows_told = self.progress.rows_in - self._rows_told, self.progress.rows_in
            left = {batch: number for batch, number in self._rows.items() if batch > completed.checkpoint}
            self._count_what_is_unsafe(left)
            self._completed[completed.checkpoint] = now
        self._tell(
            make_events.checkpoint_completed(
                completed, at=now, complete_s=complete_s, rows=rows, wanted=wanted
            )
        )
        self.on_change(self.progress)

    def committed(self, completed: Completed) -> None:
        """All that a checkpoint promised is visible."""
        self.newest_committed = completed
        now = self._clock.wall()
        with self._lock:
            since = self._completed.get(completed.checkpoint)
            self._completed = {one: at for one, at in self._completed.items() if one > completed.checkpoint}
        if since is not None:
            took_ms = round((now - since) * 1000, 3)
            self._tell(
                CheckpointCommitted(
                    at=now, run=completed.run, checkpoint=completed.checkpoint, commit_ms=max(0.0, took_ms)
                )
            )

    def given_up(self, announced: Announce) -> None:
        """A checkpoint never will exist."""
        with self._lock:
            self.progress.checkpoints_failed += announced.reason.counts
        self._tell(make_events.checkpoint_failed(announced, at=self._clock.wall(), run=self.progress.run))

    def sink_down(self, sink: str, why: str, waiting: int) -> None:
        """The commits of a sink do not come through."""
        with self._lock:
            self.progress.sinks_down = {**self.progress.sinks_down, sink: why}
        now, run = self._clock.wall(), self.progress.run
        self._tell(SinkDown(at=now, run=run, sink=sink, why=make_events.text_of(why), waiting=waiting))

    def sink_up(self, sink: str, down_s: float) -> None:
        """They do again."""
        with self._lock:
            self.progress.sinks_down = {
                uid: why for uid, why in self.progress.sinks_down.items() if uid != sink
            }
        self._tell(SinkUp(at=self._clock.wall(), run=self.progress.run, sink=sink, down_s=down_s))


def _more(rows: Mapping[str, int], added: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Another object: whoever looks at the old one sees nothing change."""
    result = dict(rows)
    for uid, number in added:
        result[uid] = result.get(uid, 0) + number
    return result


def _state_of(handles: Iterable[StateHandle]) -> dict[str, OperatorState]:
    found: dict[str, OperatorState] = {}
    for handle in handles:
        before = found.get(handle.subtask.uid, OperatorState())
        found[handle.subtask.uid] = OperatorState(before.bytes + handle.size, before.files + len(handle.refs))
    return found
