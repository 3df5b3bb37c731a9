"""Claims a job: the run with the highest number owns it, and a run that does not own it does nothing any more. Driver.

Two facts make a zombie (a run thought dead that wakes up) harmless:
1. It checks its claim again after its sinks pre-committed and before anything is completed or committed. If a newer run exists, it stops.
2. A newer run records from which checkpoint it resumed, see `Descent`. A checkpoint of an older run beyond that point is outside the job's
   history, whenever it was written.

If no claim is visible at all, storage is away. It may come back, so the run goes back to its checkpoint and looks again for a while.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import FencedError, UnavailableError
from penstock.ids import NO_CHECKPOINT, SYSTEM_RANDOMNESS, CheckpointId, RunId
from penstock.log_fields import of_run
from penstock.ownership.records import damaged, read_record, records
from penstock.storage import Storage
from penstock.wording import duration

CLAIMANT_DIGITS = 16


AWAY_S = 120.0
"""A storage without any claim is awaited this long. After that it is taken for deleted."""


JOB_FILE = "job.json"
"""Says which job a storage belongs to; see `ownership.job_record`."""


class RunRecord(msgspec.Struct, frozen=True):
    """What a run says about itself in `runs/<k>.json`, when it claims the job."""

    run: int
    host: str
    pid: int
    process_started: str
    started_at: float
    claimant: str = ""
    supervisor: str = ""
    """Which supervisor keeps the program alive: by this its later attempts know what earlier ones got done, see `EarlierAttempts`."""
    pid_space: str = ""
    """Where the pid means this process, see `pid_space`. '' in records of earlier versions, and where the system does not say."""


_RUN_RECORDS = msgspec.json.Decoder(RunRecord)


class StorageAwayError(UnavailableError):
    """No claim is visible, of no run. The run that meets it completes and commits nothing any more; the next run looks again."""


@dataclass
class Absence:
    """Since when a start sees no claim, and which run noticed it."""

    clock: Clock = SYSTEM_CLOCK
    since_s: float | None = None
    met_by: RunId | None = None
    """Files of this run may have been written into the empty folder below a mount: it stays unable to complete a checkpoint."""

    def error(self, storage: Storage, run: RunId) -> FencedError | StorageAwayError:
        """What to raise while no claim is visible."""
        self.met_by = run
        now_s = self.clock.monotonic()
        self.since_s = now_s if self.since_s is None else self.since_s
        gone = (
            f"the claims of all runs are gone from {storage.uri}: the folder was deleted, replaced by a copy, or is not mounted; run {run} "
            "commits nothing any more"
        )
        if now_s - self.since_s < AWAY_S:
            return StorageAwayError(
                f"{gone}. The job goes back to its last checkpoint if the storage is there again within {duration(AWAY_S)}",
                run=run,
            )
        return FencedError(
            f"{gone}, and the job does not restart: this has lasted for more than {duration(AWAY_S)}. Bring the storage back and start the "
            "job again",
            run=run,
            owner=0,
        )


@dataclass
class Claimant:
    """One `start` of a job. Its first claim takes the job from any owner, its later ones (restarts) only from itself."""

    token: str = field(default_factory=lambda: SYSTEM_RANDOMNESS.token(CLAIMANT_DIGITS))
    first_run: RunId | None = None
    newest_run: RunId | None = None
    supervisor: str = ""
    """The id of the supervisor of this program, if it has one."""
    absence: Absence = field(default_factory=Absence)

    @property
    def has_claimed(self) -> bool:
        """Whether this start has had the job."""
        return self.first_run is not None


@dataclass(frozen=True)
class Claim:
    """The claim of one run to the job in this storage. It is checked right before anything is completed, committed or deleted."""

    storage: Storage
    run: RunId
    token: str
    """Of the claimant: a job that was deleted and began anew has runs of the same numbers."""
    absence: Absence = field(default_factory=Absence, compare=False)
    """Of the claimant."""

    def check(self) -> None:
        """Raise `FencedError` unless the run is the newest, and by this very claim.

        Its own record must be there: a folder without it was deleted, brought back from a copy, or is not mounted any more, and another
        run may own the job where this one cannot see it. Raises `StorageAwayError` while no claim is visible, and ever after.
        """
        newest = newest_run(self.storage)
        record = self._own_record() if newest == self.run else None
        if newest == self.run and record is None:  # it went away between the two
            newest = newest_run(self.storage)
        if newest == 0:
            raise self.absence.error(self.storage, self.run)
        self.absence.since_s = None
        if newest > self.run:
            raise FencedError(
                f"nothing is lost: run {self.run} was replaced by run {newest}, which owns the job in {self._uri} now. This run is "
                "fenced: it stops, and commits nothing any more",
                run=self.run,
                owner=newest,
            )
        if record is None:
            raise self._fenced(
                f"the claim of run {self.run}, runs/{self.run}.json, is gone from {self._uri} (the newest there is {newest}): "
                "the folder was deleted or replaced by a copy",
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
        if self.absence.met_by == self.run:
            raise StorageAwayError(
                f"the claims of all runs were gone from {self._uri} for a while, as if it was not mounted: run {self.run} commits nothing "
                "any more, and the job goes back to its last checkpoint",
                run=self.run,
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
    return None if run is None else Claim(storage, run, claimant.token, claimant.absence)


def newest_run(storage: Storage) -> RunId:
    """The owner of the job; 0 when it never ran."""
    return RunId(max((run for _, run in records(storage, "json")), default=0))


def read_run(storage: Storage, run: RunId) -> RunRecord:
    """The record that a run wrote when it claimed the job."""
    return read_record(storage, f"runs/{run}.json", _RUN_RECORDS)


def claim(storage: Storage, now: float, claimant: Claimant | None = None, *, above: int = 0) -> Claim:
    """Become the owner of the job: from here on every earlier run is fenced.

    Only after this may the checkpoints be listed: an earlier run that completes one later can no longer commit it.
    A claimant that had the job and lost it to another gets `FencedError`: a zombie fails in many ways, and must not take the job
    back by restarting. Where it sees no claim at all it gets `StorageAwayError`, and may try again.
    `above`: the number of the run is higher than this, too.
    """
    claimant = claimant or Claimant()
    while True:
        newest = newest_run(storage)
        if newest == 0 and claimant.newest_run is not None:
            raise claimant.absence.error(storage, claimant.newest_run)
        claimant.absence.since_s = None
        if claimant.has_claimed and not _is_of(storage, newest, claimant):
            raise _lost_to(storage, newest)
        run = RunId(max(newest, above) + 1)
        record = RunRecord(
            run,
            *this_process(),
            started_at=now,
            claimant=claimant.token,
            supervisor=claimant.supervisor,
            pid_space=pid_space(),
        )
        if storage.create(f"runs/{run}.json", msgspec.json.encode(record)):
            claimant.first_run = claimant.first_run or run
            claimant.newest_run = run
            of_run(run)
            return Claim(storage, run, claimant.token, claimant.absence)


def _is_of(storage: Storage, run: RunId, claimant: Claimant) -> bool:
    return read_run(storage, run).claimant == claimant.token


def _lost_to(storage: Storage, owner: RunId) -> FencedError:
    return FencedError(
        f"nothing is lost: this start was replaced by another one, whose run {owner} owns the job in {storage.uri} now. This one is "
        "fenced: it stops, does not restart, and commits nothing any more",
        owner=owner,
    )


def forget_old_runs(storage: Storage, run: RunId, keep: int = 20) -> None:
    """Delete the records of old runs. The newest ones stay: they decide the line of descent."""
    files = records(storage, "json", "restored", "alive", "ended", "plan", "live")
    storage.delete([name for name, number in files if number <= run - keep])


class Descent(msgspec.Struct, frozen=True):
    """The checkpoint from which a run resumed: `runs/<k>.restored`, written once, before the run does anything else."""

    run: int
    restored_from: Annotated[int, msgspec.Meta(ge=NO_CHECKPOINT)]
    completed_by: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The run that completed that checkpoint; 0 when there was none."""


_DESCENTS = msgspec.json.Decoder(Descent)


def record_descent(claim: Claim, restored_from: CheckpointId, completed_by: int | None = None) -> None:
    """Record the checkpoint from which this run resumes. From now on, later checkpoints of earlier runs do not count.

    Raises `FencedError` when another run has claimed the job meanwhile, and then leaves no record: it may have decided without it.
    A run that claims the job after this has returned reads the record and follows it.
    """
    name = f"runs/{claim.run}.restored"
    claim.storage.create(name, msgspec.json.encode(Descent(claim.run, restored_from, completed_by)))
    try:
        claim.check()
    except FencedError:
        claim.storage.delete([name])
        raise


def read_descent(storage: Storage, run: RunId) -> Descent:
    """The checkpoint from which one run resumed."""
    name = f"runs/{run}.restored"
    descent = read_record(storage, name, _DESCENTS)
    if descent.run != run:
        raise damaged(storage, name, f"it is the record of run {descent.run}")
    return descent


def read_descents(storage: Storage) -> list[Descent]:
    """The checkpoints from which the runs resumed. A run that died before it decided is not in the list, and did nothing."""
    found: list[Descent] = []
    for _, run in records(storage, "restored"):
        try:
            found.append(read_descent(storage, RunId(run)))
        except FileNotFoundError:  # its run was fenced in this moment, and deleted its record
            continue
    return found


def newest_descent(descents: Sequence[Descent]) -> Descent | None:
    """The record of the newest run that has decided."""
    return max(descents, key=lambda one: one.run, default=None)


def ancestors(run: RunId, descents: Sequence[Descent]) -> set[int]:
    """The runs that completed the checkpoint from which this one went on, the one from which that run did, and so on."""
    by_run = {descent.run: descent for descent in descents}
    found: set[int] = set()
    at = by_run.get(run)
    while at is not None and at.completed_by and at.completed_by not in found:
        found.add(at.completed_by)
        at = by_run.get(at.completed_by)
    return found


def in_line_of_descent(checkpoint: CheckpointId, run: RunId, descents: Sequence[Descent]) -> bool:
    """Whether a checkpoint of `run` belongs to the history that the newest run continues."""
    return went_on_without(checkpoint, run, descents) is None


def went_on_without(checkpoint: CheckpointId, run: RunId, descents: Sequence[Descent]) -> Descent | None:
    """The decision that left a checkpoint of `run` outside the history which the newest run continues; None: it belongs to it.

    Only ancestors of the newest run that has decided count: what a run decided that was fenced in that very moment, and so did
    nothing, is no part of the history. The way leads from newer runs to older ones only, so that it ends whatever the records say.
    """
    by_run = {descent.run: descent for descent in descents}
    at = newest_descent(descents)
    if at is not None and run > at.run:
        return at  # of another life of the job: a run decides before it completes anything
    while at is not None and run < at.run:
        if checkpoint > at.restored_from:
            return at
        if at.completed_by is None:
            return None
        if run > at.completed_by:
            return at
        at = by_run.get(at.completed_by) if at.completed_by < at.run else None
    return None


# ── processes ──────────────────────────────────────────────────────────────────────────────────


def this_process() -> tuple[str, int, str]:
    """Its host, its pid, and when it was started: as they are in the record of a run."""
    return platform.node(), os.getpid(), process_start(os.getpid())


def pid_space() -> str:
    """The boot of the machine and the pid namespace: in another one the same pid is another process. '' where the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def is_gone(pid: int, started: str) -> bool:
    """Whether a process of this pid space has ended. One that is hidden from this user has not."""
    start = process_start(pid)
    if start == started:
        return False
    # another process with that pid, or one that waits to be reaped
    if start or Path(f"/proc/{pid}").exists():
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:
        return False
    return False


def process_start(pid: int) -> str:
    """The start time of a process, which distinguishes it from a later one with the same pid; '' if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat[stat.rindex(")") + 2 :].split()
    state, start_ticks = fields[0], fields[19]
    return "" if state in "ZX" else start_ticks
