"""Heartbeats: whether a run is alive. They inform a second start and the views of a job; safety does not depend on them. Driver."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import RunningAlreadyError, UnavailableError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.log_fields import in_context
from penstock.ownership.claim import Claim, RunRecord, is_gone, newest_run, pid_space, read_run
from penstock.ownership.records import read_record
from penstock.storage import Storage
from penstock.wording import start_option

_log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
STALE_AFTER_S = 10.0
CLOCKS_S = 60.0
"""So far the clocks of two machines may differ."""
SILENT_S = CLOCKS_S + STALE_AFTER_S
"""A process of this machine that lives and says nothing is taken for alive so long: its storage may be away or slow."""
FAR_S = 3600.0
"""A heartbeat that is so old, or so far ahead, is not waited for at a start."""

Alive = Callable[[Claim], AbstractContextManager[None]]
"""Inside, the run of a claim is seen to be alive, as with `beating`."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Says until when a run was surely alive, and whether it ended by itself."""

    run: int
    at: float
    ended: bool = False
    completed: int = NO_CHECKPOINT
    """The newest checkpoint that the run knew to exist: it shows whether one was deleted."""


_HEARTBEATS = msgspec.json.Decoder(Heartbeat)


def beat(
    storage: Storage,
    run: RunId,
    now: float,
    *,
    ended: bool = False,
    completed: CheckpointId = NO_CHECKPOINT,
) -> None:
    """Record that the run is alive, or that it ended, and which checkpoint it had."""
    storage.put(f"runs/{run}.alive", msgspec.json.encode(Heartbeat(run, now, ended, completed)))


def last_completed(storage: Storage, run: RunId) -> CheckpointId:
    """The newest checkpoint that this run is known to have had."""
    heartbeat = last_beat(storage, run)
    return NO_CHECKPOINT if heartbeat is None else CheckpointId(heartbeat.completed)


@contextmanager
def beating(storage: Storage, run: RunId, clock: Clock) -> Iterator[None]:
    """Inside, the run is seen to be alive, however long it takes."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            try:
                beat(storage, run, clock.wall())
            except UnavailableError as error:
                _log.debug("no heartbeat of run %d: %s", run, error)
            clock.wait(over, HEARTBEAT_S)

    thread = threading.Thread(target=in_context(work), name="penstock-heart", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def refuse_if_running(storage: Storage, now: float, own: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
    """Raise `RunningAlreadyError` when the newest run is alive. A courtesy, asked before anything is done and right before the claim.

    Where only the heartbeat can tell, and by the clock it is not fresh, it is looked at until it has changed, or should have.
    `own`: the token of the claimant that asks, whose own runs do not count.
    """
    newest = newest_run(storage)
    if newest == 0:
        return
    record = read_run(storage, newest)
    if (not own or record.claimant != own) and _is_running(storage, record, now, clock):
        raise RunningAlreadyError(
            f"the job in {storage.uri} is running already: run {record.run}, pid {record.pid} on {record.host}; "
            f"stop it first, or start with {start_option(takeover=True)} to fence it off",
            run=record.run,
            pid=record.pid,
            host=record.host,
        )


def _is_running(storage: Storage, record: RunRecord, now: float, clock: Clock) -> bool:
    heartbeat = last_beat(storage, RunId(record.run)) or Heartbeat(record.run, record.started_at)
    if heartbeat.ended or _process_is_gone(record):
        return False
    if _is_of_this_machine(record):
        return seems_alive(record, heartbeat, now)
    age_s = now - heartbeat.at
    if abs(age_s) < STALE_AFTER_S:
        return True
    if abs(age_s) > FAR_S:
        return False
    return _changes(storage, heartbeat, clock)


def _changes(storage: Storage, heartbeat: Heartbeat, clock: Clock) -> bool:
    """Whether a run beats on, whatever its clock says; waits until it should have."""
    until_s = clock.monotonic() + STALE_AFTER_S
    while clock.monotonic() < until_s:
        clock.sleep(HEARTBEAT_S / 2)
        newest = last_beat(storage, RunId(heartbeat.run))
        if newest is not None and newest.at != heartbeat.at:
            return not newest.ended
    return False


class Pulse:
    """Heartbeats of one job as one looker sees them, by whose clock it counts for how long they have not changed."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[float, float]] = {}
        """By run: its last heartbeat, and when that was first seen."""

    def is_felt(self, heartbeat: Heartbeat, now: float) -> bool:
        """Whether it has changed lately. One that is seen for the first time is believed if the clocks may differ so far."""
        said, since = self._seen.get(heartbeat.run, (None, 0.0))
        if said is None:
            since = now if abs(now - heartbeat.at) < SILENT_S else -math.inf
        elif said != heartbeat.at:
            since = now
        self._seen = {heartbeat.run: (heartbeat.at, since)}
        return now - since < STALE_AFTER_S


def seems_alive(
    record: RunRecord, heartbeat: Heartbeat | None, now: float, pulse: Pulse | None = None
) -> bool:
    """Whether a run is to be taken for alive. One that says nothing is for a while, on the same machine only as long as its process is.

    There it may be silent for longer: the process lives, and storage may be away. `pulse`: of who looks again and again.
    """
    heartbeat = heartbeat or Heartbeat(record.run, record.started_at)
    if heartbeat.ended or _process_is_gone(record):
        return False
    if _is_of_this_machine(record):
        return now - heartbeat.at < SILENT_S
    return (pulse or Pulse()).is_felt(heartbeat, now)


def _process_is_gone(record: RunRecord) -> bool:
    """No need to wait for its heartbeat to grow old. A pid says nothing where it may be that of another process."""
    return _is_of_this_machine(record) and is_gone(record.pid, record.process_started)


def _is_of_this_machine(record: RunRecord) -> bool:
    return bool(record.pid_space) and record.pid_space == pid_space()


def last_beat(storage: Storage, run: RunId) -> Heartbeat | None:
    """The last heartbeat of a run; None if it has none."""
    try:
        return read_record(storage, f"runs/{run}.alive", _HEARTBEATS)
    except FileNotFoundError:
        return None
