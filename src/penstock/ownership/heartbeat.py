"""Whether a run is alive. A courtesy to whoever starts a job twice, and to whoever looks: safety does not rest on it. Driver."""

from __future__ import annotations

import platform

import msgspec

from penstock import start_options
from penstock.errors import RunningAlreadyError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.ownership.claim import RunRecord, newest_run, process_start, read_run
from penstock.ownership.records import read_record
from penstock.storage import Storage

HEARTBEAT_S = 2.0
STALE_AFTER_S = 10.0


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


def refuse_if_running(storage: Storage, now: float) -> None:
    """Raise `RunningAlreadyError` when the newest run is alive. A courtesy, asked before anything is done and right before the claim."""
    newest = newest_run(storage)
    if newest == 0:
        return
    record = read_run(storage, newest)
    if seems_alive(record, last_beat(storage, newest), now):
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
