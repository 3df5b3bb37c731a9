"""The runs that a job has had, and how they ended: `runs/<k>.ended`. Driver, and readers of the job's storage.

The records are for people. No start reads them and no job fails because one cannot be written. Unreadable records are shown as such.
"""

from __future__ import annotations

import enum
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.decoding import refuse_absurd
from penstock.errors import CorruptStateError, FencedError, PenstockError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.ownership.claim import (
    Claimant,
    Descent,
    RunRecord,
    newest_run,
    read_descent,
    read_run,
    this_process,
)
from penstock.ownership.heartbeat import HEARTBEAT_S, Heartbeat, Pulse, beat, last_beat, seems_alive
from penstock.ownership.records import read_record, records
from penstock.places import safe_text
from penstock.storage import Storage

_log = logging.getLogger(__name__)


_T = TypeVar("_T")


LONGEST_WHY = 1000
"""Characters of an error's text: a text with a user's rows in it may have any length."""


RUNNING = "running"


ENDED = "ended"


DID_NOT_SAY = "did not say"
"""The process was killed, or its machine is gone: it could not record its end."""


class RunOutcome(enum.StrEnum):
    """The ways in which a run ends, as far as it can record that."""

    FINISHED = "finished"
    STOPPED = "stopped"
    CANCELLED = "cancelled"
    FAILED = "failed"
    FENCED = "fenced"
    RESTARTED = "restarted"
    """It failed, and the same start tries again with the next run."""


class RunEnd(msgspec.Struct, frozen=True):
    """The record of how a run ended."""

    run: int
    how: str
    at: float
    error: str = ""
    """The class of the error that ended it; '' if there was none."""
    why: str = ""


_ENDS = msgspec.json.Decoder(RunEnd)


def end_of(run: RunId, how: RunOutcome, at: float, error: BaseException | None = None) -> RunEnd:
    """The record of an end."""
    if error is None:
        return RunEnd(run, how, at)
    return RunEnd(run, how, at, type(error).__name__, _cut(str(error)))


def record_end(storage: Storage, end: RunEnd) -> None:
    """Write the record. A later one replaces it: a run that was about to restart may find that it has lost the job."""
    storage.put(f"runs/{end.run}.ended", msgspec.json.encode(end))


def read_end(storage: Storage, run: RunId) -> RunEnd | None:
    """The recorded end of a run; None if it recorded none. Raises `CorruptStateError` if the record is not readable."""
    try:
        return read_record(storage, f"runs/{run}.ended", _ENDS)
    except FileNotFoundError:
        return None


def _cut(said: str) -> str:
    text = safe_text(said)
    return text if len(text) <= LONGEST_WHY else f"{text[: LONGEST_WHY - 4]} ..."


@dataclass(frozen=True)
class RunEnds:
    """The ends of the runs of one claimant: always about the newest run that it has claimed."""

    storage: Storage
    claimant: Claimant
    newest_checkpoint: Callable[[RunId], CheckpointId]
    """The newest checkpoint that a run is known to have completed."""
    clock: Clock = SYSTEM_CLOCK

    def restarted(self, error: BaseException) -> None:
        """The run failed, and the job restarts. The run is not marked as ended, so that no other start takes the job meanwhile."""
        self._record(RunOutcome.RESTARTED, error, over=False)

    def pause(self, delay_s: float, stopping: threading.Event) -> None:
        """Wait before the next attempt. The heartbeat continues meanwhile, and a stop ends the wait."""
        until = self.clock.monotonic() + delay_s
        while (left := until - self.clock.monotonic()) > 0:
            if self.clock.wait(stopping, min(left, HEARTBEAT_S)):
                return
            self._beat()

    def ended(self, how: RunOutcome, error: BaseException | None = None) -> None:
        """The last run of this start is over: the next start must not take the job for running."""
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


class ListedRun(msgspec.Struct, frozen=True):
    """One run, as far as its records can be read."""

    run: int
    record: RunRecord | None
    descent: Descent | None
    heartbeat: Heartbeat | None
    end: RunEnd | None
    alive: bool
    unreadable: tuple[str, ...] = ()
    """The problems of the records of this run."""

    @property
    def how(self) -> str:
        """How it ended, in one word; or that it is running, or that it recorded no end."""
        if self.alive:
            return RUNNING
        if self.end is not None:
            return self.end.how
        return ENDED if self.heartbeat is not None and self.heartbeat.ended else DID_NOT_SAY

    @property
    def why(self) -> str:
        """The error that ended it; '' if there was none, or it is not known."""
        return f"{self.end.error}: {self.end.why}" if self.end is not None and self.end.error else ""

    @property
    def newest_checkpoint(self) -> int:
        """The newest one it is known to have had, its own or that from which it went on."""
        beaten = NO_CHECKPOINT if self.heartbeat is None else self.heartbeat.completed
        return max(beaten, NO_CHECKPOINT if self.descent is None else self.descent.restored_from)


def list_runs(storage: Storage, now: float, pulse: Pulse | None = None) -> list[ListedRun]:
    """All runs of which there is a record, oldest first. `pulse`: kept by a caller that looks repeatedly."""
    newest = newest_run(storage)
    numbers = sorted({run for _, run in records(storage, "json", "restored", "alive", "ended")})
    return [_listed(storage, RunId(run), now, pulse, newest=run == newest) for run in numbers]


def _listed(storage: Storage, run: RunId, now: float, pulse: Pulse | None, *, newest: bool) -> ListedRun:
    wrong: list[str] = []

    def readable(read: Callable[[Storage, RunId], _T]) -> _T | None:
        try:
            found = read(storage, run)
            refuse_absurd(msgspec.to_builtins(found))
        except FileNotFoundError:
            return None
        except (CorruptStateError, msgspec.DecodeError) as error:
            wrong.append(str(error))
            return None
        return found

    record, descent = readable(read_run), readable(read_descent)
    heartbeat, end = readable(last_beat), readable(read_end)
    alive = newest and record is not None and seems_alive(record, heartbeat, now, pulse)
    return ListedRun(run, record, descent, heartbeat, end, alive, tuple(wrong))


@dataclass(frozen=True)
class EarlierAttempts:
    """What earlier attempts of a supervised program, in other processes, have already done with the job.

    A supervisor repeats its command unchanged, and a program its calls. Two options must not be repeated after every crash: `takeover`, and
    `restore`, which discards what came after the checkpoint. Whether they were done is read from the records of earlier runs in storage.
    Every other option is safe to repeat: a start detects a savepoint that was restored, state that was dropped, a position that was set.
    """

    restored_from: frozenset[int] = frozenset()
    """The checkpoints that their runs have gone on from."""
    have_claimed: bool = False
    """Whether one of them had the job: then its current owner is not disturbed."""
    are_long: bool = False
    """Whether the records of the first runs are gone because later runs replaced them."""

    def have_restored(self, checkpoint: int) -> bool:
        """Whether one has gone back to it. Where that is not known any more it counts as done: nothing is thrown away by mistake."""
        return self.are_long or checkpoint in self.restored_from


def earlier_attempts(storage: Storage, supervisor: str) -> EarlierAttempts:
    """What lies in the storage of a job. `supervisor`: the id of that of this program; '' where it has none."""
    if not supervisor:
        return EarlierAttempts()
    known = sorted(RunId(run) for _, run in records(storage, "json"))
    own = [run for run in known if _is_of(storage, run, supervisor)]
    restored = (_restored_from(storage, run) for run in own)
    return EarlierAttempts(
        restored_from=frozenset(one for one in restored if one is not None),
        have_claimed=bool(own),
        are_long=bool(own) and own[0] == known[0] > 1,
    )


def _is_of(storage: Storage, run: RunId, supervisor: str) -> bool:
    """Another start in this very process is none of them: the program means what it says twice."""
    try:
        record = read_run(storage, run)
    except FileNotFoundError:  # forgotten in this moment
        return False
    here = (record.host, record.pid, record.process_started) == this_process()
    return record.supervisor == supervisor and not here


def _restored_from(storage: Storage, run: RunId) -> int | None:
    try:
        return read_descent(storage, run).restored_from
    except FileNotFoundError:  # it died before it had decided, and did nothing
        return None
