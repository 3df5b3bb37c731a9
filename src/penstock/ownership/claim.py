"""Claiming a job: the run with the highest number owns it, and a run that does not own it does nothing any more. Driver.

Two facts make a zombie (a run thought dead that wakes up) harmless:
1. It checks its claim again after its sinks pre-committed and before anything is completed or committed. A newer number is there: it stops.
2. A newer run records which checkpoint it started from, see `descent`.
"""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from penstock.errors import FencedError
from penstock.ids import RunId
from penstock.log_fields import of_run
from penstock.ownership.records import read_record, records
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.storage import Storage

CLAIMANT_DIGITS = 16
JOB_FILE = "job.json"
"""Says which job a storage belongs to; see `recovery.restore.JobRecord`."""


class RunRecord(msgspec.Struct, frozen=True):
    """What a run says about itself in `runs/<k>.json`, when it claims the job."""

    run: int
    host: str
    pid: int
    process_started: str
    started_at: float
    claimant: str = ""
    supervisor: str = ""
    """Which supervisor keeps the program alive: by this its later attempts know what earlier ones got done, see `attempts`."""


_RUN_RECORDS = msgspec.json.Decoder(RunRecord)


@dataclass
class Claimant:
    """One `start` of a job. Its first claim takes the job from anybody, its later ones (restarts) only from itself."""

    token: str = field(default_factory=lambda: SYSTEM_RANDOMNESS.token(CLAIMANT_DIGITS))
    first_run: RunId | None = None
    newest_run: RunId | None = None
    supervisor: str = ""
    """The id of the supervisor of this program, if it has one."""

    @property
    def has_claimed(self) -> bool:
        """Whether this start has had the job."""
        return self.first_run is not None

    def still_to_drop(self, drop_state: tuple[str, ...], completed_by: int) -> tuple[str, ...]:
        """What a start was allowed to drop is dropped once: a checkpoint of one of its own runs holds nothing that is to go."""
        spent = self.first_run is not None and completed_by >= self.first_run
        return () if spent else drop_state


@dataclass(frozen=True)
class Claim:
    """The claim of one run to the job in this storage. Whoever completes, commits or deletes checks it right before."""

    storage: Storage
    run: RunId
    token: str
    """Of the claimant: a job that was deleted and began anew has runs of the same numbers."""

    def check(self) -> None:
        """Raise `FencedError` unless the run is the newest, and by this very claim.

        Its own record must be there: a folder without it was deleted, brought back from a copy, or is not mounted any more, and another
        run may own the job where this one cannot see it.
        """
        newest = newest_run(self.storage)
        if newest > self.run:
            raise FencedError(
                f"nothing is lost: run {self.run} was replaced by run {newest}, which owns the job in {self._uri} now. This run is "
                "fenced: it stops, and commits nothing any more",
                run=self.run,
                owner=newest,
            )
        record = self._own_record() if newest == self.run else None
        if record is None:
            raise self._fenced(
                f"the claim of run {self.run}, runs/{self.run}.json, is gone from {self._uri} (the newest there is {newest or 'none'}): "
                "the folder was deleted, replaced by a copy, or is not mounted",
                newest,
                "bring the storage back and start the job again",
            )
        if record.claimant != self.token:
            raise self._fenced(
                f"run {self.run} is fenced: runs/{self.run}.json in {self._uri} is the claim of another start, of pid {record.pid} on "
                f"{record.host}: the folder was deleted or replaced, and the job has begun anew there",
                newest,
                "see which of the two is to go on",
            )

    @property
    def _uri(self) -> str:
        return self.storage.uri

    def _own_record(self) -> RunRecord | None:
        try:
            return read_run(self.storage, self.run)
        except FileNotFoundError:
            return None

    def _fenced(self, what: str, owner: RunId, what_to_do: str) -> FencedError:
        text = f"{what}; this run stops and commits nothing any more; {what_to_do}"
        return FencedError(text, run=self.run, owner=owner)


def newest_claim(storage: Storage, claimant: Claimant) -> Claim | None:
    """The claim of the newest run of a start; None as long as it has had none."""
    run = claimant.newest_run
    return None if run is None else Claim(storage, run, claimant.token)


def newest_run(storage: Storage) -> RunId:
    """The owner of the job; 0 when it never ran."""
    return RunId(max((run for _, run in records(storage, "json")), default=0))


def read_run(storage: Storage, run: RunId) -> RunRecord:
    """What a run said when it claimed the job."""
    return read_record(storage, f"runs/{run}.json", _RUN_RECORDS)


def claim(storage: Storage, now: float, claimant: Claimant | None = None) -> Claim:
    """Become the owner of the job: from here on every earlier run is fenced.

    Only after this may the checkpoints be listed: an earlier run that completes one later can no longer commit it.
    A claimant that had the job and lost it to another gets `FencedError`: a zombie fails in many ways, and must not take the job
    back by restarting.
    """
    claimant = claimant or Claimant()
    while True:
        newest = newest_run(storage)
        if claimant.has_claimed and not _is_of(storage, newest, claimant):
            raise _lost_to(storage, newest)
        run = RunId(newest + 1)
        record = RunRecord(
            run,
            *this_process(),
            started_at=now,
            claimant=claimant.token,
            supervisor=claimant.supervisor,
        )
        if storage.create(f"runs/{run}.json", msgspec.json.encode(record)):
            claimant.first_run = claimant.first_run or run
            claimant.newest_run = run
            of_run(run)
            return Claim(storage, run, claimant.token)


def _is_of(storage: Storage, run: RunId, claimant: Claimant) -> bool:
    return run > 0 and read_run(storage, run).claimant == claimant.token


def _lost_to(storage: Storage, owner: RunId) -> FencedError:
    if not owner:
        return FencedError(
            f"the claims of this start are gone from {storage.uri}: the folder was deleted, replaced by a copy, or is not mounted; "
            "this start does not restart and commits nothing any more; bring the storage back and start the job again",
            owner=owner,
        )
    return FencedError(
        f"nothing is lost: this start was replaced by another one, whose run {owner} owns the job in {storage.uri} now. This one is "
        "fenced: it stops, does not restart, and commits nothing any more",
        owner=owner,
    )


def forget_old_runs(storage: Storage, run: RunId, keep: int = 20) -> None:
    """Delete what is left of runs long gone; the newest ones stay, they decide what the line of descent is."""
    files = records(storage, "json", "restored", "alive", "ended", "plan", "live")
    storage.delete([name for name, number in files if number <= run - keep])


def this_process() -> tuple[str, int, str]:
    """Its host, its pid, and when it was started: as they are in the record of a run."""
    return platform.node(), os.getpid(), process_start(os.getpid())


def process_start(pid: int) -> str:
    """Tell one process from a later one with the same pid; '' when there is none (or the system does not say)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat[stat.rindex(")") + 2 :].split()
    state, start_ticks = fields[0], fields[19]
    return "" if state in "ZX" else start_ticks
