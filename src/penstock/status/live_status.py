"""Completes the progress of a job with rates and with what its coordinator has in flight, and writes it every second. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from penstock.checkpoint.completed import PreCommitted
from penstock.checkpoint.coordinator import Coordinator, UnderWayNow
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import PenstockError
from penstock.status.journal_files import write_live
from penstock.status.live import LIVE_S, OperatorLive, PendingLive, Progress, SinkLive, SourceLive
from penstock.status.log_messages import Rate
from penstock.storage import Storage

_log = logging.getLogger(__name__)

MOST_MISSING = 8
_Node = TypeVar("_Node", SourceLive, OperatorLive, SinkLive)


@dataclass
class LiveStatus:
    """Called by one thread, about every second: rates are those of the last seconds."""

    clock: Clock = SYSTEM_CLOCK
    _rates: dict[tuple[str, str], Rate] = field(default_factory=dict)
    _waiting_since: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By sink: its oldest uncommitted batch, and when that was first seen."""

    def of(
        self, progress: Progress, coordinator: Coordinator | None, status: str, doing: str = ""
    ) -> Progress:
        """The progress as it is now. `coordinator`: that of the current run, if there is one."""
        under_way = [] if coordinator is None else coordinator.under_way
        uncommitted = () if coordinator is None else coordinator.uncommitted
        sinks = self._with_rates("sink", progress.sinks)
        return replace(
            progress,
            at=self.clock.wall(),
            status=status,
            doing=doing,
            rows_per_s=self._rate("job", "", progress.rows_in),
            pending=tuple(_pending(one) for one in under_way),
            sources=self._with_rates("source", progress.sources),
            operators=self._with_rates("operator", progress.operators),
            sinks={uid: self._with_waiting(uid, sink, uncommitted) for uid, sink in sinks.items()},
        )

    def _with_rates(self, kind: str, nodes: Mapping[str, _Node]) -> dict[str, _Node]:
        return {
            uid: replace(node, rows_per_s=self._rate(kind, uid, node.rows)) for uid, node in nodes.items()
        }

    def _rate(self, kind: str, uid: str, rows: int) -> float:
        rate = self._rates.setdefault((kind, uid), Rate())
        return round(rate.rows_per_s(rows, self.clock.monotonic()), 3)

    def _with_waiting(self, uid: str, sink: SinkLive, uncommitted: Sequence[PreCommitted]) -> SinkLive:
        waiting = [one for one in uncommitted if one.sink == uid]
        return replace(
            sink,
            waiting=len(waiting),
            waiting_rows=sum(one.rows for one in waiting),
            waiting_since=self._since(uid, waiting),
        )

    def _since(self, uid: str, waiting: Sequence[PreCommitted]) -> float:
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


class LiveWriter:
    """Writes the progress as long as the job lives, in a thread of its own. A write that fails is skipped: the next one is newer."""

    def __init__(self, storage: Storage, look: Callable[[], Progress], may_write: Callable[[], bool]) -> None:
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
            progress = self._look()
            if self._may_write():
                write_live(self._storage, progress)
        except PenstockError as error:
            _log.debug("the progress of the job could not be written: %s", error)
        except Exception as error:  # noqa: BLE001 - for people only: no job fails because of it
            _log.warning("the progress of the job could not be computed; the job continues: %r", error)
