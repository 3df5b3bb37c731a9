"""What people see of one start of a job: it collects, puts together and writes down, and is in no batch's way. Driver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from penstock.checkpoint.coordinator import Coordinator
from penstock.clock import SYSTEM_CLOCK
from penstock.config import Mode
from penstock.engine.chronicle import Chronicle, Totals
from penstock.engine.living import LiveView, Now
from penstock.engine.observer import Observer
from penstock.engine.telling import said_by, text_of
from penstock.errors import FencedError
from penstock.job_spec import JobSpec
from penstock.journal.listening import Listeners
from penstock.journal.live import Live
from penstock.journal.plan import Plan
from penstock.ownership.claim import Claimant
from penstock.progress import doing
from penstock.recovery.restore import RestorePoint

STARTING, STOPPING = "starting", "stopping"
"""What a job does besides the words of its status."""


@dataclass(frozen=True)
class Asked:
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


class Face:
    """One start, from its first claim to its end."""

    def __init__(
        self,
        spec: JobSpec,
        claimant: Claimant,
        plan: Plan,
        asked: Asked,
        *,
        listeners: Listeners,
        page: Page | None = None,
    ) -> None:
        self._page = page
        self._claimant = claimant
        self._spec = spec
        self._plan = plan
        self._asked = asked
        self._now = Now(STARTING, SYSTEM_CLOCK.wall(), ui=page.address if page else "")
        self._view = LiveView(plan)
        self._chronicle = Chronicle(
            spec.storage, claimant, plan, self._look, listeners, on_totals=self._count_from
        )
        self.observer = Observer(tell=self._chronicle.tell)

    @property
    def ui_address(self) -> str:
        """Where the job's pages are; '' where it has none."""
        return self._now.ui

    def run_began(self, point: RestorePoint, restore_s: float, savepoint: str = "") -> None:
        """A run has gone back to its checkpoint, which took so long. Its query is about to start.

        `savepoint`: with which the job has begun just now.
        """
        self._now.failure, self._now.next_try_at = "", 0.0
        self._chronicle.run_began(point.run)
        self.observer.run_started(
            point, parallelism=self._spec.parallelism, restore_s=restore_s, savepoint=savepoint
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
            reads_again=self._spec.mode is not Mode.AT_MOST_ONCE,
            shows_rows=self._spec.shows_rows,
        )
        self._now.failure = text_of(f"{type(error).__name__}: {said_by(error)}")
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
        self._now.status, self._now.doing = self._asked.status(), doing(self._spec.name)
        return self._view.of(self.observer.progress, self._asked.coordinator(), self._now)
