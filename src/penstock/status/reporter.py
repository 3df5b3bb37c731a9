"""Reports one start of a job: its plan, its progress every second, and its events. Nothing here delays a batch or fails a job. Driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from msgspec.structs import replace

from penstock.checkpoint.coordinator import Coordinator
from penstock.checkpoint.model import PreCommitted
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config import Mode
from penstock.errors import FencedError, PenstockError
from penstock.long_work import doing
from penstock.ownership.claim import Claimant, newest_claim, read_run
from penstock.ownership.runs import DID_NOT_SAY, RunOutcome, list_runs
from penstock.recovery.restore_plan import RestorePlan
from penstock.status.events import Event
from penstock.status.journal import JournalWriter, read_live, write_live, write_plan
from penstock.status.listeners import Listeners
from penstock.status.live import LIVE_S, OperatorLive, Progress, SinkLive, SourceLive
from penstock.status.observer import Observer
from penstock.status.plan import Plan
from penstock.status.sentences import Rate
from penstock.storage import Storage

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
        uncommitted = () if coordinator is None else coordinator.uncommitted
        sinks = self._with_rates("sink", progress.sinks)
        return replace(
            progress,
            at=self.clock.wall(),
            status=status,
            doing=doing,
            rows_per_s=self._rate("job", "", progress.rows_in),
            pending=() if coordinator is None else coordinator.under_way,
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


_log = logging.getLogger(__name__)

STARTING, STOPPING = "starting", "stopping"
"""States of a job in addition to those of `Status`."""


class Page(Protocol):
    """The server of the job's pages: a child process."""

    @property
    def address(self) -> str:
        """Its URL."""
        ...

    def close(self) -> None:
        """Called when the job has ended. May be called twice."""
        ...


class JobReporter:
    """One start of a job. It writes nothing before the start has claimed the job; `ended` is called once, after the last run."""

    def __init__(
        self,
        storage: Storage,
        claimant: Claimant,
        plan: Plan,
        *,
        status: Callable[[], str],
        coordinator: Callable[[], Coordinator | None],
        listeners: Listeners,
        page: Page | None = None,
        shows_rows: bool = True,
    ) -> None:
        """`status`, `coordinator`: asked at every report; the coordinator is that of the current run, if there is one."""
        self._storage = storage
        self._claimant = claimant
        self._plan = plan
        self._status = status
        self._coordinator = coordinator
        self._listeners = listeners
        self._page = page
        self._shows_rows = shows_rows
        self._reads_again = plan.settings.mode != Mode.AT_MOST_ONCE.value
        self._journal = JournalWriter(storage, may_write=self._is_ours, may_delete=self._owns_the_job)
        self._live_status = LiveStatus()
        self._writer: LiveWriter | None = None
        self._first_run: int | None = None
        """Until the totals of earlier starts are read."""
        self.ui_address = page.address if page else ""
        """The address of the job's pages; '' where it has none."""
        self.observer = Observer(tell=self.tell, progress=_first_progress(plan, self.ui_address))

    def tell(self, event: Event) -> None:
        """Report an event. From any thread; returns at once."""
        self._journal.tell(event)
        self._listeners.tell(event)

    def run_began(self, point: RestorePlan, restore_s: float, savepoint: str = "") -> None:
        """A run has restored its checkpoint, and its query is about to start. `savepoint`: that the job was just restored from, if any."""
        self.run_claimed(point.run)
        self.observer.run_started(
            point,
            parallelism=self._plan.settings.parallelism,
            restore_s=restore_s,
            savepoint=savepoint,
        )

    def run_claimed(self, run: int) -> None:
        """Write the plan of this run, and from now on its progress. A run that never comes up reports its failures, too."""
        self.observer.claimed(run)
        try:
            write_plan(self._storage, run, self._plan)
        except PenstockError as error:
            _log.info("the plan of the job could not be written: %s", error)
        if self._writer is None:
            self._first_run = run
            self._writer = LiveWriter(self._storage, self.look, self._is_ours)

    def run_failed(self, error: BaseException, delay_s: float | None, decision: str) -> None:
        """A run has failed. `delay_s`: the pause before the restart, None where there is none. A fenced run reports nothing."""
        if isinstance(error, FencedError):
            return
        if self._claimant.newest_run is not None:
            self.run_claimed(self._claimant.newest_run)
        self.observer.run_failed(
            error,
            strategy=self._plan.settings.restart,
            delay_s=delay_s,
            decision=decision,
            reads_again=self._reads_again,
            shows_rows=self._shows_rows,
        )

    def ended(self, how: str, met: BaseException | None) -> None:
        """The last run has ended: write the remaining events."""
        self.observer.ended(how, met)
        self.close()
        if self._page is not None:
            self._page.close()

    def close(self) -> None:
        """Write the remaining events, and end."""
        if self._writer is not None:
            self._writer.close()
        self._journal.close()
        self._listeners.close()

    def look(self) -> Progress:
        """The progress as it is now. Earlier starts are read once, by the thread that writes the progress."""
        if self._claimant.newest_run is not None:
            self.observer.claimed(self._claimant.newest_run)
        if self._first_run is not None:
            self.observer.count_from(
                *totals_before(self._storage, self._first_run, reads_again=self._reads_again)
            )
            self._first_run = None
        return self._live_status.of(
            self.observer.progress, self._coordinator(), self._status(), doing(self._plan.job)
        )

    def _is_ours(self) -> bool:
        """A folder that was deleted stays deleted; what is there now may belong to another life of the job."""
        run = self._claimant.newest_run
        try:
            return run is not None and read_run(self._storage, run).claimant == self._claimant.token
        except FileNotFoundError:
            return False

    def _owns_the_job(self) -> bool:
        claim = newest_claim(self._storage, self._claimant)
        if claim is None:
            return False
        claim.check()
        return True


def _first_progress(plan: Plan, ui: str) -> Progress:
    """Every source, operator and sink of the plan, before anything has happened."""

    def uids(kind: str) -> list[str]:
        return [node.uid for node in plan.nodes if node.kind == kind]

    now = SYSTEM_CLOCK.wall()
    return Progress(
        run=0,
        at=now,
        status=STARTING,
        started_at=now,
        ui=ui,
        sources={uid: SourceLive() for uid in uids("source")},
        operators={uid: OperatorLive() for uid in uids("operator")},
        sinks={uid: SinkLive() for uid in uids("sink")},
    )


def totals_before(storage: Storage, run: int, *, reads_again: bool) -> tuple[int, int]:
    """Restarts, and rows processed again, before this run. It is a restart itself, unless the end of the run before it was wanted.

    The journal and the records of runs are pruned, so each start takes its totals from the start before it.
    """
    restarts = rows_again = 0
    for one in list_runs(storage, SYSTEM_CLOCK.wall()):
        if one.run >= run:
            break
        live = read_live(storage, one.run)
        if live is not None:
            restarts = max(restarts, live.restarts_total)
            rows_again = max(rows_again, live.rows_again_total)
        died = one.how == DID_NOT_SAY
        restarts += died or one.how == RunOutcome.FAILED
        rows_again += live.rows_since_checkpoint if live is not None and died and reads_again else 0
    return restarts, rows_again
