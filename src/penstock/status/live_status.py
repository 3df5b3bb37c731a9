"""What a job does at this moment, put together for people, and written down every second. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from penstock.checkpoint.completed import PreCommitted
from penstock.checkpoint.coordinator import Coordinator, UnderWayNow
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.operators.timers import microseconds
from penstock.status.journal_files import write_live
from penstock.status.live import LIVE_S, Live, OperatorLive, PendingLive, SinkLive, SourceLive
from penstock.status.log_messages import Rate
from penstock.status.observer import Progress
from penstock.status.plan import Plan
from penstock.storage import Storage

_log = logging.getLogger(__name__)

MOST_MISSING = 8


@dataclass
class Now:
    """What only the start of a job knows of this moment."""

    status: str
    started_at: float
    ui: str = ""
    next_try_at: float = 0.0
    failure: str = ""
    doing: str = ""


@dataclass
class LiveView:
    """Makes `Live` out of counters. Called by one thread, about every second: rates are those of the last while."""

    plan: Plan
    clock: Clock = SYSTEM_CLOCK
    _rates: dict[tuple[str, str], Rate] = field(default_factory=dict)
    _waiting_since: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By sink: its oldest batch that waits, and when that was first seen to."""

    def of(self, progress: Progress, coordinator: Coordinator | None, now: Now) -> Live:
        """This moment."""
        under_way = [] if coordinator is None else coordinator.under_way
        uncommitted = () if coordinator is None else coordinator.uncommitted
        return Live(
            run=progress.run,
            at=self.clock.wall(),
            status=now.status,
            ui=now.ui,
            started_at=now.started_at,
            up_since=progress.up_since,
            batch=progress.batch,
            batches=progress.batches,
            batch_seconds=progress.batch_seconds,
            batch_at=progress.batch_at,
            batch_since=progress.batch_since,
            rows_in=progress.rows_in,
            rows_per_s=self._rate("job", "", progress.rows_in),
            rows_since_checkpoint=progress.rows_since_checkpoint,
            unsafe_since=progress.unsafe_since,
            restarts=progress.restarts,
            down_since=0.0 if progress.up_since else progress.down_since,
            failed_in_a_row=progress.failed_in_a_row,
            next_try_at=now.next_try_at,
            failure=now.failure,
            checkpoint=progress.checkpoint,
            checkpoint_at=progress.checkpoint_at,
            completed=progress.checkpoints_completed,
            failed=progress.checkpoints_failed,
            restored_from=progress.restored_from,
            merges=progress.merges,
            merged_bytes=progress.merged_bytes,
            merge_ms=round(progress.merge_ms, 3),
            rows_again=progress.rows_again,
            recent_batches=progress.recent_batches,
            pending=tuple(_pending(one) for one in under_way),
            sources={uid: self._source(uid, progress) for uid in self._uids("source")},
            operators={uid: self._operator(uid, progress) for uid in self._uids("operator")},
            sinks={uid: self._sink(uid, progress, uncommitted) for uid in self._uids("sink")},
            doing=now.doing,
        )

    def _uids(self, kind: str) -> Iterable[str]:
        return (node.uid for node in self.plan.nodes if node.kind == kind)

    def _rate(self, kind: str, uid: str, rows: int) -> float:
        rate = self._rates.setdefault((kind, uid), Rate())
        return round(rate.rows_per_s(rows, self.clock.monotonic()), 3)

    def _source(self, uid: str, progress: Progress) -> SourceLive:
        account, rows = progress.sources.get(uid), progress.rows_by_source.get(uid, 0)
        return SourceLive(
            rows=rows,
            rows_per_s=self._rate("source", uid, rows),
            behind=account.behind if account else None,
            looked_at=progress.sources_at if account else 0.0,
            watermark_us=_us(progress.source_watermarks, uid),
            position=account.position if account else "",
        )

    def _operator(self, uid: str, progress: Progress) -> OperatorLive:
        rows, state = progress.rows_by_operator.get(uid, 0), progress.state.get(uid)
        return OperatorLive(
            rows=rows,
            rows_per_s=self._rate("operator", uid, rows),
            state_bytes=state.bytes if state else 0,
            files=state.files if state else 0,
            watermark_us=_us(progress.watermarks, uid),
            due_next_us=_us(progress.due_next, uid),
            late_rows=progress.late_rows.get(uid, 0),
            bad_records=progress.bad_records.get(uid, 0),
            timed=uid in progress.watermarks,
        )

    def _sink(self, uid: str, progress: Progress, uncommitted: tuple[PreCommitted, ...]) -> SinkLive:
        rows = progress.rows_out.get(uid, 0)
        waiting = [one for one in uncommitted if one.sink == uid]
        return SinkLive(
            rows=rows,
            rows_per_s=self._rate("sink", uid, rows),
            waiting=len(waiting),
            waiting_rows=sum(one.rows for one in waiting),
            waiting_since=self._since(uid, waiting),
            down=progress.sinks_down.get(uid, ""),
            bad_records=progress.bad_records.get(uid, 0),
        )

    def _since(self, uid: str, waiting: list[PreCommitted]) -> float:
        if not waiting:
            self._waiting_since.pop(uid, None)
            return 0.0
        oldest = min(one.checkpoint for one in waiting)
        known = self._waiting_since.get(uid)
        if known is None or known[0] != oldest:
            known = self._waiting_since[uid] = (oldest, self.clock.wall())
        return known[1]


def _pending(one: UnderWayNow) -> PendingLive:
    return PendingLive(
        checkpoint=one.checkpoint,
        triggered_at=one.triggered_at,
        barrier_at=one.finished_at,
        acknowledged=one.subtasks - len(one.missing),
        subtasks=one.subtasks,
        missing=tuple(str(subtask) for subtask in one.missing[:MOST_MISSING]),
    )


def _us(times: Mapping[str, datetime | None] | Mapping[str, datetime], uid: str) -> int | None:
    at = times.get(uid)
    return None if at is None else microseconds(at, "live")


class LiveWriter:
    """Writes it down as long as the job lives, in a thread of its own. What does not come through is left out: the next one is newer."""

    def __init__(
        self, storage: Storage, look: Callable[[], Live | None], may_write: Callable[[], bool]
    ) -> None:
        self._storage = storage
        self._look = look
        self._may_write = may_write
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="penstock-live", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write it once more, and end."""
        self._over.set()
        self._thread.join(LIVE_S * 5)

    def _work(self) -> None:
        while not self._over.wait(LIVE_S):
            self._write()
        self._write()

    def _write(self) -> None:
        try:
            live = self._look()
            if live is not None and self._may_write():
                write_live(self._storage, live)
        except PenstockError as error:
            _log.debug("what the job does could not be written down: %s", error)
        except Exception as error:  # noqa: BLE001 - for people only: no job ends for want of it
            _log.warning("what the job does could not be put together, and the job goes on: %r", error)
