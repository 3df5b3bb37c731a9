"""What people see of one start of a job: it collects, puts together and writes down, and is in no batch's way. Driver."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from penstock.checkpoint.coordinator import Coordinator
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Mode
from penstock.errors import FencedError, PenstockError
from penstock.ownership.claim import Claimant, newest_claim, read_run
from penstock.ownership.run_ends import RunOutcome
from penstock.ownership.run_list import DID_NOT_SAY, list_runs
from penstock.progress import doing
from penstock.recovery.restore_plan import RestorePlan
from penstock.status.events import Event
from penstock.status.journal import JournalWriter
from penstock.status.journal_files import read_live, write_plan
from penstock.status.listeners import Listeners
from penstock.status.live import Live
from penstock.status.live_status import LiveView, LiveWriter, Now
from penstock.status.make_events import error_text, text_of
from penstock.status.observer import Observer
from penstock.status.plan import Plan
from penstock.storage import Storage

_log = logging.getLogger(__name__)


class Chronicle:
    """One start. It begins to write when the start has claimed the job; `close` is called once, behind the last run."""

    def __init__(
        self,
        storage: Storage,
        claimant: Claimant,
        plan: Plan,
        look: Callable[[], Live],
        listeners: Listeners,
        *,
        on_totals: Callable[[Totals], None] = lambda _: None,
    ) -> None:
        self._on_totals = on_totals
        self._storage = storage
        self._claimant = claimant
        self._plan = plan
        self._journal = JournalWriter(storage, may_write=self._is_ours, may_delete=self._owns_the_job)
        self._listeners = listeners
        self._look = look
        self._live: LiveWriter | None = None
        self._first_run = 0
        self._before: Totals | None = None

    def tell(self, event: Event) -> None:
        """Something has happened. From any thread; returns at once."""
        self._journal.tell(event)
        self._listeners.tell(event)

    def run_began(self, run: int) -> None:
        """A run has the job: say what it is, and from now on what it does."""
        try:
            write_plan(self._storage, run, self._plan)
        except PenstockError as error:
            _log.info("what the job is could not be written down for people: %s", error)
        if self._live is None:
            self._first_run = run
            self._live = LiveWriter(self._storage, self._look_with_totals, self._is_ours)

    def close(self) -> None:
        """Write down what there is, and end."""
        if self._live is not None:
            self._live.close()
        self._journal.close()
        self._listeners.close()

    def _look_with_totals(self) -> Live:
        """By the thread that writes it down. Earlier runs are looked at once."""
        live = self._look()
        if self._before is None:
            reads_again = self._plan.settings.mode != Mode.AT_MOST_ONCE.value
            self._before = totals_before(self._storage, self._first_run, reads_again=reads_again)
            self._on_totals(self._before)
        return msgspec.structs.replace(
            live,
            restarts_total=self._before.restarts + live.restarts,
            rows_again_total=self._before.rows_again + live.rows_again,
        )

    def _is_ours(self) -> bool:
        """A folder that was deleted stays so, and what lies there now may be another life of the job."""
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


@dataclass(frozen=True)
class Totals:
    """What earlier starts of a job have counted."""

    restarts: int = 0
    rows_again: int = 0


def totals_before(storage: Storage, run: int, *, reads_again: bool) -> Totals:
    """What the starts before this run have counted, and what the end of the last one adds: this run is a restart, unless that was wanted.

    The journal forgets, and so do the records of runs: each start takes its totals over from the one before it.
    """
    total = Totals()
    for one in list_runs(storage, SYSTEM_CLOCK.wall()):
        if one.run >= run:
            break
        live = read_live(storage, one.run)
        if live is not None:
            total = Totals(
                max(total.restarts, live.restarts_total), max(total.rows_again, live.rows_again_total)
            )
        died = one.how == DID_NOT_SAY
        again = live.rows_since_checkpoint if live is not None and died and reads_again else 0
        total = Totals(
            total.restarts + (died or one.how == RunOutcome.FAILED),
            total.rows_again + again,
        )
    return total


STARTING, STOPPING = "starting", "stopping"
"""What a job does besides the words of its status."""


@dataclass(frozen=True)
class ReporterQueries:
    """What the face asks the start for, whenever it looks."""

    status: Callable[[], str]
    coordinator: Callable[[], Coordinator | None]
    """That of the present run, if there is one."""


class Page(Protocol):
    """The server of the job's pages, a process beside this one."""

    @property
    def address(self) -> str:
        """Where they are."""
        ...

    def close(self) -> None:
        """The job is over. May be called twice."""
        ...


class JobReporter:
    """One start, from its first claim to its end."""

    def __init__(
        self,
        storage: Storage,
        claimant: Claimant,
        plan: Plan,
        asked: ReporterQueries,
        *,
        listeners: Listeners,
        page: Page | None = None,
        shows_rows: bool = True,
    ) -> None:
        self._page = page
        self._claimant = claimant
        self._shows_rows = shows_rows
        self._plan = plan
        self._asked = asked
        self._now = Now(STARTING, SYSTEM_CLOCK.wall(), ui=page.address if page else "")
        self._view = LiveView(plan)
        self._chronicle = Chronicle(
            storage, claimant, plan, self._look, listeners, on_totals=self._count_from
        )
        self.observer = Observer(tell=self._chronicle.tell)

    @property
    def ui_address(self) -> str:
        """Where the job's pages are; '' where it has none."""
        return self._now.ui

    def run_began(self, point: RestorePlan, restore_s: float, savepoint: str = "") -> None:
        """A run has gone back to its checkpoint, which took so long. Its query is about to start.

        `savepoint`: with which the job has begun just now.
        """
        self._now.failure, self._now.next_try_at = "", 0.0
        self._chronicle.run_began(point.run)
        self.observer.run_started(
            point, parallelism=self._plan.settings.parallelism, restore_s=restore_s, savepoint=savepoint
        )

    def run_failed(self, error: BaseException, delay_s: float | None, decision: str) -> None:
        """One has failed, and this was decided; `delay_s`: None where it is not tried again. One that was fenced off goes on elsewhere."""
        if isinstance(error, FencedError):
            return
        self._say_from_now_on()
        self.observer.run_failed(
            error,
            strategy=self._plan.settings.restart,
            delay_s=delay_s,
            decision=decision,
            reads_again=self._plan.settings.mode != Mode.AT_MOST_ONCE.value,
            shows_rows=self._shows_rows,
        )
        self._now.failure = text_of(f"{type(error).__name__}: {error_text(error)}")
        self._now.next_try_at = 0.0 if delay_s is None else SYSTEM_CLOCK.wall() + delay_s

    def ended(self, how: str, met: BaseException | None) -> None:
        """The last run is over. Once."""
        self.observer.ended(how, met)
        self._chronicle.close()
        if self._page is not None:
            self._page.close()

    def _say_from_now_on(self) -> None:
        """Also a run that cannot come up says why, and when it is tried again."""
        run = self._claimant.newest_run
        if run is not None:
            self.observer.claimed(run)
            self._chronicle.run_began(run)

    def _count_from(self, before: Totals) -> None:
        self.observer.progress.restarts_before = before.restarts

    def _look(self) -> Live:
        if self._claimant.newest_run is not None:
            self.observer.claimed(self._claimant.newest_run)
        self._now.status, self._now.doing = self._asked.status(), doing(self._plan.job)
        return self._view.of(self.observer.progress, self._asked.coordinator(), self._now)
