"""Fencing: every attempt to run a job takes the next run number; the highest owns the job. Driver.

Two facts make a zombie (a run thought dead that wakes up) harmless:
1. It looks at `runs/` again after its sinks pre-committed and before anything is completed or committed. A newer number is there: it stops.
2. A newer run records which checkpoint it started from. A checkpoint of an older run beyond that point is outside the job's
   line of descent and counts for nothing, whenever it was written.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from penstock.errors import ConfigError, CorruptStateError, FencedError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.storage import Storage

_FILE = re.compile(r"runs/(\d+)\.(json|restored|alive)")
"""Anything else in the folder is not ours: file managers and network file systems leave their own."""

CLAIMANT_DIGITS = 16
HEARTBEAT_S = 2.0
STALE_AFTER_S = 10.0


class RunRecord(msgspec.Struct, frozen=True):
    """What a run says about itself in `runs/<k>.json`, when it claims the job."""

    run: int
    host: str
    pid: int
    process_started: str
    started_at: float
    claimant: str = ""


class Descent(msgspec.Struct, frozen=True):
    """From which checkpoint a run went on: `runs/<k>.restored`, written once, before the run does anything else."""

    run: int
    restored_from: int
    completed_by: int | None = None
    """The run that completed that checkpoint; 0 when there was none."""


class Heartbeat(msgspec.Struct, frozen=True):
    """Says until when a run was surely alive, and whether it ended by itself."""

    run: int
    at: float
    ended: bool = False
    clean: bool = False
    completed: int = NO_CHECKPOINT
    """The newest checkpoint that the run knew to exist: nobody needs to guess whether one was deleted."""


@dataclass
class Claimant:
    """One `start` of a job. Its first claim takes the job from anybody, its later ones (restarts) only from itself."""

    token: str = field(default_factory=lambda: SYSTEM_RANDOMNESS.token(CLAIMANT_DIGITS))
    first_run: RunId | None = None

    @property
    def has_claimed(self) -> bool:
        """Whether this start has had the job."""
        return self.first_run is not None

    def still_to_drop(self, drop_state: tuple[str, ...], completed_by: int) -> tuple[str, ...]:
        """What a start was allowed to drop is dropped once: a checkpoint of one of its own runs holds nothing that is to go."""
        spent = self.first_run is not None and completed_by >= self.first_run
        return () if spent else drop_state


_T = TypeVar("_T")
_DECODERS: dict[type, msgspec.json.Decoder[object]] = {
    kind: msgspec.json.Decoder(kind) for kind in (RunRecord, Descent, Heartbeat)
}
"""Made before there are threads, see `snapshot.mailbox`."""


def newest_run(storage: Storage) -> RunId:
    """The owner of the job; 0 when it never ran."""
    return RunId(max((run for _, run in _files(storage, "json")), default=0))


def _files(storage: Storage, *kinds: str) -> list[tuple[str, int]]:
    """The records of these kinds, each with its run."""
    matches = ((name, _FILE.fullmatch(name)) for name in storage.names("runs"))
    return [(name, int(match[1])) for name, match in matches if match and match[2] in kinds]


def claim(storage: Storage, now: float, claimant: Claimant | None = None) -> RunId:
    """Become the owner of the job: from here on every earlier run is fenced.

    Only after this may the checkpoints be listed: an earlier run that completes one later can no longer commit it.
    A claimant that had the job and lost it to another gets `FencedError`: a zombie fails in many ways, and must not take the job
    back by restarting.
    """
    claimant = claimant or Claimant()
    while True:
        newest = newest_run(storage)
        if claimant.has_claimed and not _is_of(storage, newest, claimant):
            raise _fenced(storage, newest)
        run = RunId(newest + 1)
        record = RunRecord(run, platform.node(), os.getpid(), process_start(os.getpid()), now, claimant.token)
        if storage.create(f"runs/{run}.json", msgspec.json.encode(record)):
            claimant.first_run = claimant.first_run or run
            return run


def _is_of(storage: Storage, run: RunId, claimant: Claimant) -> bool:
    return run > 0 and _read(storage, f"runs/{run}.json", RunRecord).claimant == claimant.token


def _fenced(storage: Storage, owner: RunId) -> FencedError:
    return FencedError(
        f"the job in {storage.uri} belongs to run {owner} of another start now; this one stops, does not restart and commits "
        "nothing any more; nothing is lost",
        owner=owner,
    )


def record_descent(
    storage: Storage, run: RunId, restored_from: CheckpointId, completed_by: int | None = None
) -> None:
    """Say which checkpoint this run goes on from. Whatever earlier runs have beyond it counts for nothing from now on.

    Raises `FencedError` when another run has claimed the job meanwhile, and then leaves no record: it may have decided without it.
    Whoever claims the job after this has returned reads the record, and keeps to it.
    """
    name = f"runs/{run}.restored"
    storage.create(name, msgspec.json.encode(Descent(run, restored_from, completed_by)))
    try:
        check_owner(storage, run)
    except FencedError:
        storage.delete([name])
        raise


def read_descents(storage: Storage) -> list[Descent]:
    """Where the runs went on from; a run that died before it decided is not in the list, and did nothing."""
    found: list[Descent] = []
    for name, _ in _files(storage, "restored"):
        try:
            found.append(_read(storage, name, Descent))
        except FileNotFoundError:  # its run was fenced in this moment, and has taken its word back
            continue
    return found


def newest_descent(descents: Sequence[Descent]) -> Descent | None:
    """That of the newest run that has decided."""
    return max(descents, key=lambda one: one.run, default=None)


def in_line_of_descent(checkpoint: CheckpointId, run: RunId, descents: Sequence[Descent]) -> bool:
    """Whether a checkpoint of `run` belongs to the history that the newest run continues.

    Only ancestors of the newest run that has decided count: what a run decided that was fenced in that very moment, and so did
    nothing, is no part of the history.
    """
    by_run = {descent.run: descent for descent in descents}
    at = newest_descent(descents)
    if at is not None and run > at.run:
        return False  # of another life of the job: a run decides before it completes anything
    while at is not None and run < at.run:
        if checkpoint > at.restored_from:
            return False
        if at.completed_by is None:
            return True
        if run > at.completed_by:
            return False
        at = by_run.get(at.completed_by)
    return True


def check_owner(storage: Storage, run: RunId) -> None:
    """Raise `FencedError` unless `run` is the newest.

    Its own claim must be there: a folder without it was deleted, brought back from a copy, or is not mounted any more, and another
    run may own the job where this one cannot see it.
    """
    newest = newest_run(storage)
    if newest > run:
        raise FencedError(
            f"run {run} is fenced: run {newest} owns the job in {storage.uri}; this run stops and commits nothing any "
            "more; nothing is lost",
            run=run,
            owner=newest,
        )
    if newest < run:
        raise FencedError(
            f"the claim of run {run}, runs/{run}.json, is gone from {storage.uri} (the newest there is {newest or 'none'}): the folder was "
            "deleted, replaced by a copy, or is not mounted; this run stops and commits nothing any more; bring the storage back and start "
            "the job again",
            run=run,
            owner=newest,
        )


def beat(
    storage: Storage,
    run: RunId,
    now: float,
    *,
    ended: bool = False,
    clean: bool = False,
    completed: CheckpointId = NO_CHECKPOINT,
) -> None:
    """Record that the run is alive, or that it ended, and whether with everything completed and committed."""
    storage.put(f"runs/{run}.alive", msgspec.json.encode(Heartbeat(run, now, ended, clean, completed)))


def last_completed(storage: Storage, run: RunId) -> CheckpointId:
    """The newest checkpoint that this run is known to have had."""
    try:
        return CheckpointId(_read(storage, f"runs/{run}.alive", Heartbeat).completed)
    except FileNotFoundError:
        return NO_CHECKPOINT


def ended_cleanly(storage: Storage, run: RunId) -> bool:
    """Whether this run completed and committed everything it had begun."""
    try:
        return _read(storage, f"runs/{run}.alive", Heartbeat).clean
    except FileNotFoundError:
        return False


def refuse_if_running(storage: Storage, now: float) -> None:
    """Raise `ConfigError` when the newest run is alive. A courtesy against starting a job twice; safety does not rest on it."""
    newest = newest_run(storage)
    if newest == 0:
        return
    record = _read(storage, f"runs/{newest}.json", RunRecord)
    if not _seems_alive(storage, record, now):
        return
    raise ConfigError(
        f"the job in {storage.uri} is running already: run {record.run}, pid {record.pid} on {record.host}; "
        "stop it first, or start with takeover=True to fence it off",
        run=record.run,
        pid=record.pid,
        host=record.host,
    )


def forget_old_runs(storage: Storage, run: RunId, keep: int = 20) -> None:
    """Delete what is left of runs long gone; the newest ones stay, they decide what the line of descent is."""
    files = _files(storage, "json", "restored", "alive")
    storage.delete([name for name, number in files if number <= run - keep])


def _seems_alive(storage: Storage, record: RunRecord, now: float) -> bool:
    try:
        heartbeat = _read(storage, f"runs/{record.run}.alive", Heartbeat)
    except FileNotFoundError:
        heartbeat = Heartbeat(record.run, record.started_at)
    if heartbeat.ended:
        return False
    if record.host == platform.node() and process_start(record.pid) != record.process_started:
        return False  # the process is gone: no need to wait for its heartbeat to grow old
    return now - heartbeat.at < STALE_AFTER_S


def process_start(pid: int) -> str:
    """Tell one process from a later one with the same pid; '' when there is none (or the system does not say)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat[stat.rindex(")") + 2 :].split()
    state, start_ticks = fields[0], fields[19]
    return "" if state in "ZX" else start_ticks


def _read(storage: Storage, name: str, kind: type[_T]) -> _T:
    try:
        return cast("_T", _DECODERS[kind].decode(storage.get(name)))
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{name} in {storage.uri} is not readable: {error}", name=name) from error
