"""All that one start of a job writes down for people: its plan, what it does now, what happens. Driver.

Nothing here holds up a batch or ends a job. See `journal`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.clock import SYSTEM_CLOCK
from penstock.config import Mode
from penstock.engine.living import LiveWriter
from penstock.errors import PenstockError
from penstock.journal.events import Event
from penstock.journal.files import read_live, write_plan
from penstock.journal.listening import Listeners
from penstock.journal.live import Live
from penstock.journal.plan import Plan
from penstock.journal.writing import JournalWriter
from penstock.ownership.claim import Claimant, newest_claim, read_run
from penstock.ownership.run_ends import RunOutcome
from penstock.ownership.run_list import DID_NOT_SAY, list_runs
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
