"""Whether a run is alive. A courtesy to whoever starts a job twice, and to whoever looks: safety does not rest on it. Driver."""

from __future__ import annotations

import logging
import platform
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import msgspec

from penstock import start_options
from penstock.clock import Clock
from penstock.errors import RunningAlreadyError, UnavailableError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.log_fields import in_context
from penstock.ownership.claim import Claim, RunRecord, newest_run, process_start, read_run
from penstock.ownership.records import read_record
from penstock.storage import Storage

_log = logging.getLogger(__name__)

HEARTBEAT_S = 2.0
STALE_AFTER_S = 10.0

Alive = Callable[[Claim], AbstractContextManager[None]]
"""Inside, the run of a claim is seen to be alive, as with `beating`."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Says until when a run was surely alive, and whether it ended by itself."""

    run: int
    at: float
    ended: bool = False
    completed: int = NO_CHECKPOINT
    """The newest checkpoint that the run knew to exist: nobody needs to guess whether one was deleted."""


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


def refuse_if_running(storage: Storage, now: float, own: str = "") -> None:
    """Raise `RunningAlreadyError` when the newest run is alive. A courtesy, asked before anything is done and right before the claim.

    `own`: the token of the claimant that asks, whose own runs do not count.
    """
    newest = newest_run(storage)
    if newest == 0:
        return
    record = read_run(storage, newest)
    if (not own or record.claimant != own) and seems_alive(record, last_beat(storage, newest), now):
        raise RunningAlreadyError(
            f"the job in {storage.uri} is running already: run {record.run}, pid {record.pid} on {record.host}; "
            f"stop it first, or start with {start_options.takeover()} to fence it off",
            run=record.run,
            pid=record.pid,
            host=record.host,
        )


def seems_alive(record: RunRecord, heartbeat: Heartbeat | None, now: float) -> bool:
    """Whether a run is to be taken for alive. One that says nothing is for a while, on the same machine only as long as its process is."""
    heartbeat = heartbeat or Heartbeat(record.run, record.started_at)
    if heartbeat.ended:
        return False
    if record.host == platform.node() and process_start(record.pid) != record.process_started:
        return False  # the process is gone: no need to wait for its heartbeat to grow old
    return now - heartbeat.at < STALE_AFTER_S


def last_beat(storage: Storage, run: RunId) -> Heartbeat | None:
    """What a run said last of being alive; None when it never did."""
    try:
        return read_record(storage, f"runs/{run}.alive", _HEARTBEATS)
    except FileNotFoundError:
        return None
