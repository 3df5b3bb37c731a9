"""All that one start of a job writes down for people: its plan, what it does now, what happens. Driver.

Nothing here holds up a batch or ends a job. See `journal`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.engine.living import LiveWriter
from penstock.errors import PenstockError
from penstock.journal.events import Event
from penstock.journal.files import write_plan
from penstock.journal.listening import Listeners
from penstock.journal.live import Live
from penstock.journal.plan import Plan
from penstock.journal.writing import JournalWriter
from penstock.ownership.claim import Claimant, newest_claim, read_run
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
    ) -> None:
        self._storage = storage
        self._claimant = claimant
        self._plan = plan
        self._journal = JournalWriter(storage, may_write=self._is_ours, may_delete=self._owns_the_job)
        self._listeners = listeners
        self._look = look
        self._live: LiveWriter | None = None

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
            self._live = LiveWriter(self._storage, self._look, self._is_ours)

    def close(self) -> None:
        """Write down what there is, and end."""
        if self._live is not None:
            self._live.close()
        self._journal.close()
        self._listeners.close()

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
