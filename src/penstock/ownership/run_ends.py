"""How runs end: `runs/<k>.ended`, and the heartbeat between two runs of one start. Driver.

The records are for people. No start reads them and no job fails because one cannot be written.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import FencedError, PenstockError
from penstock.ids import CheckpointId, RunId
from penstock.ownership.claim import Claimant, read_run
from penstock.ownership.heartbeat import HEARTBEAT_S, beat
from penstock.ownership.records import read_record
from penstock.storage import Storage
from penstock.wording import storable

LONGEST_WHY = 1000
"""Characters of an error's text: a text with a user's rows in it may have any length."""


class RunOutcome(enum.StrEnum):
    """The ways in which a run ends when it can still say so."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    FENCED = "fenced"
    RESTARTED = "restarted"
    """It failed, and the same start tries again with the next run."""


class RunEnd(msgspec.Struct, frozen=True):
    """The last word of a run."""

    run: int
    how: str
    at: float
    error: str = ""
    """The class of what made it end; '' when nothing did."""
    why: str = ""


_ENDS = msgspec.json.Decoder(RunEnd)


def end_of(run: RunId, how: RunOutcome, at: float, error: BaseException | None = None) -> RunEnd:
    """What is written down about an end."""
    if error is None:
        return RunEnd(run, how, at)
    return RunEnd(run, how, at, type(error).__name__, _cut(str(error)))


def record_end(storage: Storage, end: RunEnd) -> None:
    """Write it down. A later word replaces it: a run that was to be tried again may find that it has lost the job."""
    storage.put(f"runs/{end.run}.ended", msgspec.json.encode(end))


def read_end(storage: Storage, run: RunId) -> RunEnd | None:
    """What a run said last; None when it said nothing. Raises `CorruptStateError` when that is not readable."""
    try:
        return read_record(storage, f"runs/{run}.ended", _ENDS)
    except FileNotFoundError:
        return None


def _cut(said: str) -> str:
    text = storable(said)
    return text if len(text) <= LONGEST_WHY else f"{text[: LONGEST_WHY - 4]} ..."


_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunEnds:
    """The ends of the runs of one claimant: always about the newest run that it has claimed."""

    storage: Storage
    claimant: Claimant
    newest_checkpoint: Callable[[RunId], CheckpointId]
    """The newest checkpoint that a run is known to have completed."""
    clock: Clock = SYSTEM_CLOCK

    def restarted(self, error: BaseException) -> None:
        """The run failed, and the job goes back. It is not said to be over: nobody is to start the job meanwhile."""
        self._record(RunOutcome.RESTARTED, error, over=False)

    def pause(self, delay_s: float, stopping: threading.Event) -> None:
        """Let time pass before the next attempt, in which the job is to be taken for running. A stop ends it."""
        until = self.clock.monotonic() + delay_s
        while (left := until - self.clock.monotonic()) > 0:
            if self.clock.wait(stopping, min(left, HEARTBEAT_S)):
                return
            self._beat()

    def ended(self, how: RunOutcome, error: BaseException | None = None) -> None:
        """The last run of this start is over: the next start is not told that the job is running."""
        self._record(RunOutcome.FENCED if isinstance(error, FencedError) else how, error, over=True)

    def _record(self, how: RunOutcome, error: BaseException | None, *, over: bool) -> None:
        run = self.claimant.newest_run
        if run is None:
            return
        try:
            if not self._is_ours(run):
                _log.debug("the records of run %d are gone or of another start: its end is not recorded", run)
                return
            now = self.clock.wall()
            if over:
                beat(self.storage, run, now, ended=True, completed=self.newest_checkpoint(run))
            record_end(self.storage, end_of(run, how, now, error))
        except PenstockError as failure:
            level = logging.WARNING if over else logging.INFO  # a restart has a warning of its own
            _log.log(level, "the end of run %d could not be recorded: %s", run, failure)
            _log.debug("where recording the end of run %d failed", run, exc_info=failure)

    def _beat(self) -> None:
        run = self.claimant.newest_run
        try:
            if run is not None and self._is_ours(run):
                beat(self.storage, run, self.clock.wall(), completed=self.newest_checkpoint(run))
        except PenstockError as failure:
            _log.debug("the heartbeat of run %s could not be written: %s", run, failure)

    def _is_ours(self, run: RunId) -> bool:
        """A folder that was deleted stays so, and what lies under this number may be of another life of the job."""
        try:
            return read_run(self.storage, run).claimant == self.claimant.token
        except FileNotFoundError:
            return False
