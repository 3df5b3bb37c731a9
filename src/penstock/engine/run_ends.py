"""Writing down how the runs of one start ended, and that it lives between two of them. No job fails for want of such a record. Driver."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import FencedError, PenstockError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.ownership.claim import Claimant, read_run
from penstock.ownership.ends import How, end_of, record_end
from penstock.ownership.heartbeat import HEARTBEAT_S, beat
from penstock.status.observer import Observer
from penstock.storage import Storage

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunEnds:
    """The ends of the runs of one claimant: always about the newest run that it has claimed."""

    storage: Storage
    claimant: Claimant
    observer: Observer
    clock: Clock = SYSTEM_CLOCK

    def restarted(self, error: BaseException) -> None:
        """The run failed, and the job goes back. It is not said to be over: nobody is to start the job meanwhile."""
        self._record(How.RESTARTED, error, over=False)

    def pause(self, delay_s: float, stopping: threading.Event) -> None:
        """Let time pass before the next attempt, in which the job is to be taken for running. A stop ends it."""
        until = self.clock.monotonic() + delay_s
        while (left := until - self.clock.monotonic()) > 0:
            if self.clock.wait(stopping, min(left, HEARTBEAT_S)):
                return
            self._beat()

    def ended(self, how: How, error: BaseException | None = None) -> None:
        """The last run of this start is over: the next start is not told that the job is running."""
        self._record(How.FENCED if isinstance(error, FencedError) else how, error, over=True)

    def _record(self, how: How, error: BaseException | None, *, over: bool) -> None:
        run = self.claimant.newest_run
        if run is None:
            return
        try:
            if not self._is_ours(run):
                _log.debug("the records of run %d are gone or of another start: its end is not recorded", run)
                return
            now = self.clock.wall()
            if over:
                beat(self.storage, run, now, ended=True, completed=self._newest_checkpoint(run))
            record_end(self.storage, end_of(run, how, now, error))
        except PenstockError as failure:
            level = logging.WARNING if over else logging.INFO  # a restart has a warning of its own
            _log.log(level, "the end of run %d could not be recorded: %s", run, failure)
            _log.debug("where recording the end of run %d failed", run, exc_info=failure)

    def _beat(self) -> None:
        run = self.claimant.newest_run
        try:
            if run is not None and self._is_ours(run):
                beat(self.storage, run, self.clock.wall(), completed=self._newest_checkpoint(run))
        except PenstockError as failure:
            _log.debug("the heartbeat of run %s could not be written: %s", run, failure)

    def _is_ours(self, run: RunId) -> bool:
        """A folder that was deleted stays so, and what lies under this number may be of another life of the job."""
        try:
            return read_run(self.storage, run).claimant == self.claimant.token
        except FileNotFoundError:
            return False

    def _newest_checkpoint(self, run: RunId) -> CheckpointId:
        progress = self.observer.progress
        return CheckpointId(progress.checkpoint) if progress.run == run else NO_CHECKPOINT
