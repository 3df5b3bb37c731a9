"""Collects the progress of a running job and the events of its life, from the threads of its runs. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from penstock.checkpoint.events import Announce, CheckpointListener
from penstock.checkpoint.metadata import CheckpointName
from penstock.checkpoint.model import Completed, PreCommitted, SubtaskReport
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.ids import NO_CHECKPOINT, CheckpointId
from penstock.operators.state.timers import microseconds
from penstock.recovery.restore_plan import RestorePlan
from penstock.requests.request_files import Done, Request
from penstock.snapshot.mailbox import MergeDone, RepeatedTask
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
from penstock.status.live import MOST_BATCHES, BatchLive, OperatorLive, Progress, SinkLive, SourceLive

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceAccount:
    """What Spark reports of a source in one batch."""

    rows: int
    behind: int | None = None
    """Rows in the source after this batch; None where that is unknown."""
    position: str = ""


Tell = Callable[[Event], None]
_NOTHING_YET = Progress(run=0, at=0.0, status="starting")


class Observer(CheckpointListener):
    """Keeps the job's `Progress` up to date from the threads of a run, and tells what happens. It survives restarts.

    `progress` is replaced as a whole: a reader sees one consistent moment, without a lock.
    """

    def __init__(
        self,
        *,
        tell: Tell = lambda _: None,
        clock: Clock = SYSTEM_CLOCK,
        progress: Progress = _NOTHING_YET,
    ) -> None:
        self.progress = progress
        self.newest_committed: Completed | None = None
        """The newest checkpoint of this start that is known to be committed."""
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}
        """Rows of the batches after the newest completed checkpoint, by batch."""
        self._rows_counted_again = False
        """Whether these rows are in `rows_again` already: a restore that fails is another failure over the same rows."""
        self._rows_told = 0
        """`rows_in` at the last `CheckpointCompleted` event."""
        self._completed: dict[int, float] = {}
        """When each checkpoint was completed that is not known to be committed."""
        self._first_batch_since_s: float | None = None

    def _update(self, **changes: Any) -> None:
        """Change the progress; the caller holds the lock."""
        self.progress = replace(self.progress, **changes)

    def _tell_now(self, kind: Callable[..., Event], **facts: Any) -> None:
        """Report an event of the current run that happens at this moment."""
        self._tell(kind(at=self._clock.wall(), run=self.progress.run, **facts))

    # ── runs ───────────────────────────────────────────────────────────────────────────────────

    @property
    def is_coming_up(self) -> bool:
        """Whether the current run has neither finished a batch nor found that there is nothing to read."""
        return not self.progress.up_since

    def count_from(self, restarts: int, rows_again: int) -> None:
        """Add the totals of earlier starts."""
        with self._lock:
            self._update(
                restarts_total=self.progress.restarts_total + restarts,
                rows_again_total=self.progress.rows_again_total + rows_again,
            )

    def found(self, stored: Sequence[CheckpointName]) -> None:
        """The checkpoints of earlier runs, ascending. Until a run restores one, the newest is the one from which the job continues."""
        with self._lock:
            self._update(checkpoint=stored[-1].checkpoint if stored else NO_CHECKPOINT)

    def claimed(self, run: int) -> None:
        """A run has claimed the job. It may take long to come up, and reports from now on."""
        with self._lock:
            self._update(run=max(run, self.progress.run))

    def restored(self, point: RestorePlan) -> None:
        """A run begins from this checkpoint."""
        with self._lock:
            self._update(
                run=point.run,
                restored_from=point.id,
                checkpoint=point.id,
                checkpoint_at=point.checkpoint.completed_at if point.checkpoint else 0.0,
                batch_since=0.0,
                up_since=0.0,
                sinks={uid: replace(sink, down="") for uid, sink in self.progress.sinks.items()},
            )
            self._count_unsafe_rows({})
            self._completed, self._rows_counted_again = {}, False

    def run_started(
        self, point: RestorePlan, *, parallelism: int, restore_s: float, savepoint: str = ""
    ) -> None:
        """The query is about to start. `savepoint`: the folder that the job has just been restored from, if any."""
        self._first_batch_since_s = self._clock.monotonic()
        with self._lock:
            self._update(failure="", next_try_at=0.0)
        self._tell(
            make_events.run_started(
                point,
                at=self._clock.wall(),
                parallelism=parallelism,
                restore_s=restore_s,
                savepoint=savepoint,
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
        """A run has failed. `delay_s`: the pause before the restart, None where there is none. At most once, nothing is read again."""
        now = self._clock.wall()
        with self._lock:
            progress = self.progress
            rows_again = progress.rows_since_checkpoint if reads_again and not self._rows_counted_again else 0
            self._rows_counted_again = True
            self._update(
                rows_again=progress.rows_again + rows_again,
                rows_again_total=progress.rows_again_total + rows_again,
                failure=make_events.text_of(f"{type(error).__name__}: {make_events.error_text(error)}"),
                next_try_at=0.0 if delay_s is None else now + delay_s,
            )
        self._tell(
            make_events.run_failed(
                error,
                progress,
                at=now,
                strategy=strategy,
                delay_s=delay_s,
                decision=decision,
                rows_again=rows_again,
                shows_rows=shows_rows,
            )
        )

    def has_failed(self) -> None:
        """A run failed, or could not come up."""
        with self._lock:
            is_first = not self.progress.down_since
            self._update(
                down_since=self._clock.wall() if is_first else self.progress.down_since,
                failed_in_a_row=1 if is_first else self.progress.failed_in_a_row + 1,
                batch_since=0.0,
                up_since=0.0,
            )

    def restarting(self) -> None:
        """The next run is going to begin."""
        with self._lock:
            self._update(restarts=self.progress.restarts + 1, restarts_total=self.progress.restarts_total + 1)

    def ended(self, how: str, error: BaseException | None) -> None:
        """The last run has ended."""
        progress = self.progress
        self._tell_now(
            JobEnded,
            how=how,
            error="" if error is None else type(error).__name__,
            why="" if error is None else make_events.text_of(make_events.error_text(error)),
            batches=progress.batches,
            rows_in=progress.rows_in,
            checkpoint=progress.checkpoint,
        )

    # ── requests ───────────────────────────────────────────────────────────────────────────────

    def asked(self, request_id: str, request: Request) -> None:
        """The job has accepted a request."""
        self._tell_now(Asked, request=request_id, what=request.kind, by=make_events.text_of(request.by))

    def answered(self, request_id: str, request: Request, done: Done) -> None:
        """The job has answered a request."""
        self._tell_now(
            Answered,
            request=request_id,
            what=request.kind,
            by=make_events.text_of(request.by),
            ok=done.ok,
            error=make_events.text_of(done.error),
            checkpoint=done.facts.get("checkpoint", -1),
            folder=done.facts.get("savepoint", ""),
        )

    def savepoint_made(self, checkpoint: int, folder: str, took_s: float) -> None:
        """A savepoint was completed: report it."""
        self._tell_now(SavepointMade, checkpoint=checkpoint, folder=folder, took_s=took_s)

    # ── batches ────────────────────────────────────────────────────────────────────────────────

    def has_nothing_to_read(self) -> None:
        """The query has looked at its sources and waits for rows: the run is up."""
        with self._lock:
            self._update(up_since=self.progress.up_since or self._clock.wall(), down_since=0.0)

    def batch_begun(self) -> None:
        """A batch has begun: count its rows from here on."""
        with self._lock:
            self._update(batch_since=self._clock.wall())

    def batch_done(
        self,
        batch: CheckpointId,
        transactions: Sequence[PreCommitted],
        seconds: float,
        reports: Iterable[SubtaskReport] = (),
        handles: Iterable[StateHandle] = (),
    ) -> None:
        """A batch has passed every operator and sink."""
        now = self._clock.wall()
        with self._lock:
            progress = self.progress
            sinks, operators = dict(progress.sinks), dict(progress.operators)
            for one in transactions:
                sink = sinks.get(one.sink, SinkLive())
                sinks[one.sink] = replace(sink, rows=sink.rows + one.rows)
            for report in reports:
                operator = operators.get(report.subtask.uid, OperatorLive())
                operators[report.subtask.uid] = replace(operator, rows=operator.rows + report.rows)
            self._update(
                up_since=progress.up_since or now,
                down_since=0.0,
                batch=batch,
                batches=progress.batches + 1,
                sinks=sinks,
                operators=_with_state(operators, handles),
                batch_seconds=seconds,
                batch_at=now,
                batch_since=0.0,
            )
            first_since_s, self._first_batch_since_s = self._first_batch_since_s, None
        if first_since_s is not None:
            self._tell_now(FirstBatch, batch=batch, took_s=self._clock.monotonic() - first_since_s)

    def tasks_repeated(self, one: RepeatedTask) -> None:
        """A batch succeeded after Spark had repeated some of its tasks."""
        why = make_events.text_of(one.why)
        _log.warning(
            "batch %s is done after %s attempts of tasks of %s: %s",
            *(one.batch, one.attempts, one.uid, why or "one ended without an error message"),
        )
        self._tell_now(
            TasksRepeated,
            batch=one.batch,
            operator=one.uid,
            subtasks=one.subtasks[:MOST_SUBTASKS],
            attempts=one.attempts,
            why=why,
            batches_before=one.batches_before,
        )

    def rows_read(
        self,
        batch: int,
        sources: Mapping[str, SourceAccount],
        took: BatchLive | None = None,
        planned_anew: str = "",
    ) -> None:
        """Spark has reported the input of a batch. `took`: its durations, without its number and time."""
        rows, now = sum(one.rows for one in sources.values()), self._clock.wall()
        with self._lock:
            progress = self.progress
            recent = progress.recent_batches
            if took is not None:
                recent = (replace(took, batch=batch, at=now, rows=rows), *recent)[:MOST_BATCHES]
            found = dict(progress.sources)
            for uid, one in sources.items():
                before = found.get(uid, SourceLive())
                found[uid] = replace(
                    before,
                    rows=before.rows + one.rows,
                    behind=one.behind,
                    looked_at=now,
                    position=one.position,
                )
            rows_in = progress.rows_in + rows
            self._update(rows_in=rows_in, sources=found, recent_batches=recent, planned_anew=planned_anew)
            if batch > progress.checkpoint:
                self._count_unsafe_rows({**self._rows, batch: self._rows.get(batch, 0) + rows})

    def _count_unsafe_rows(self, rows: dict[int, int]) -> None:
        """Only with the lock. `rows`: those of the batches after the newest completed checkpoint."""
        self._rows = rows
        unsafe = sum(rows.values())
        since = (self.progress.unsafe_since or self._clock.wall()) if unsafe else 0.0
        self._update(rows_since_checkpoint=unsafe, unsafe_since=since)

    def bad_records(self, so_far: Mapping[str, int]) -> None:
        """Rows that failed, in this run and before it. A uid that is no sink's is an operator's."""
        with self._lock:
            sinks = {
                uid: replace(sink, bad_records=so_far.get(uid, 0))
                for uid, sink in self.progress.sinks.items()
            }
            operators = {
                uid: replace(self.progress.operators.get(uid, OperatorLive()), bad_records=so_far.get(uid, 0))
                for uid in (*self.progress.operators, *(uid for uid in so_far if uid not in sinks))
            }
            self._update(sinks=sinks, operators=operators)

    def late_rows(self, so_far: Mapping[str, int]) -> None:
        """Late rows, in this run and before it."""
        with self._lock:
            known = {uid: OperatorLive() for uid in so_far} | self.progress.operators
            operators = {uid: replace(one, late_rows=so_far.get(uid, 0)) for uid, one in known.items()}
            self._update(operators=operators)

    def event_time(
        self,
        watermarks: Mapping[str, datetime | None],
        due_next: Mapping[str, datetime],
        sources: Mapping[str, datetime | None],
    ) -> None:
        """The watermarks by operator and by source, and the first moment for which each operator waits."""
        with self._lock:
            operators = {
                uid: replace(
                    self.progress.operators.get(uid, OperatorLive()),
                    watermark_us=_us(watermarks.get(uid)),
                    due_next_us=_us(due_next.get(uid)),
                    timed=uid in watermarks,
                )
                for uid in {**self.progress.operators, **watermarks, **due_next}
            }
            found = {
                uid: replace(self.progress.sources.get(uid, SourceLive()), watermark_us=_us(sources.get(uid)))
                for uid in {**self.progress.sources, **sources}
            }
            self._update(operators=operators, sources=found)

    def merged(self, message: MergeDone) -> None:
        """Sorted files of state were merged in the background."""
        with self._lock:
            progress = self.progress
            self._update(
                merges=progress.merges + 1,
                merged_bytes=progress.merged_bytes + (message.merged.size if message.merged else 0),
                merge_ms=round(progress.merge_ms + message.duration_ms, 3),
            )

    # ── checkpoints, see `CheckpointListener` ──────────────────────────────────────────────────

    def completed(self, completed: Completed, complete_s: float = 0.0, *, wanted: bool = False) -> None:
        """A checkpoint was completed: update the progress and report it."""
        now = self._clock.wall()
        with self._lock:
            progress = self.progress
            self._update(
                checkpoint=completed.checkpoint,
                checkpoint_at=completed.completed_at,
                checkpoints_completed=progress.checkpoints_completed + 1,
            )
            rows, self._rows_told = progress.rows_in - self._rows_told, progress.rows_in
            self._count_unsafe_rows(
                {batch: number for batch, number in self._rows.items() if batch > completed.checkpoint}
            )
            self._completed[completed.checkpoint] = now
        self._tell(
            make_events.checkpoint_completed(
                completed, at=now, complete_s=complete_s, rows=rows, wanted=wanted
            )
        )

    def committed(self, completed: Completed) -> None:
        """The output of a checkpoint is visible."""
        self.newest_committed = completed
        now = self._clock.wall()
        with self._lock:
            since = self._completed.get(completed.checkpoint)
            self._completed = {one: at for one, at in self._completed.items() if one > completed.checkpoint}
        if since is not None:
            commit_ms = max(0.0, round((now - since) * 1000, 3))
            one, run = completed.checkpoint, completed.run
            self._tell(CheckpointCommitted(at=now, run=run, checkpoint=one, commit_ms=commit_ms))

    def given_up(self, announced: Announce) -> None:
        """A checkpoint has failed: count it and report it."""
        with self._lock:
            self._update(checkpoints_failed=self.progress.checkpoints_failed + announced.reason.counts)
        self._tell(make_events.checkpoint_failed(announced, at=self._clock.wall(), run=self.progress.run))

    def sink_down(self, sink: str, why: str, waiting: int) -> None:
        """The commits of a sink fail, and are retried."""
        self._set_down(sink, why)
        self._tell_now(SinkDown, sink=sink, why=make_events.text_of(why), waiting=waiting)

    def sink_up(self, sink: str, down_s: float) -> None:
        """The sink accepts commits again."""
        self._set_down(sink, "")
        self._tell_now(SinkUp, sink=sink, down_s=down_s)

    def _set_down(self, sink: str, why: str) -> None:
        with self._lock:
            before = self.progress.sinks.get(sink, SinkLive())
            self._update(sinks={**self.progress.sinks, sink: replace(before, down=why)})


def _with_state(
    operators: Mapping[str, OperatorLive], handles: Iterable[StateHandle]
) -> dict[str, OperatorLive]:
    """The same operators with the sizes of their state."""
    found = {uid: replace(one, state_bytes=0, files=0) for uid, one in operators.items()}
    for handle in handles:
        before = found.get(handle.subtask.uid, OperatorLive())
        found[handle.subtask.uid] = replace(
            before,
            state_bytes=before.state_bytes + handle.size,
            files=before.files + len(handle.refs),
        )
    return found


def _us(at: datetime | None) -> int | None:
    return None if at is None else microseconds(at, "event_time")
