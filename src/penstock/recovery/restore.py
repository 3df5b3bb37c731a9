"""From whatever a failure left to a clean starting point. Driver, at the start of every run, before Spark's query.

The order is what makes it safe:
1. claim the job, so that no earlier run can commit any more;
2. list the checkpoints, choose the newest one that is whole, and record the choice;
3. commit what it promised, abort every other transaction of the job;
4. delete the checkpoints and files that no longer belong to anything.
A crash in between leaves the same choice to the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from penstock.checkpoint.completed import Completed, PreCommitted
from penstock.checkpoint.coordinator import commit_in_order, identity
from penstock.checkpoint.metadata import checkpoint_ids, files_of, is_committed, read_metadata
from penstock.config import Mode
from penstock.errors import (
    ConfigError,
    CorruptStateError,
    IncompatibleStateError,
    PenstockError,
    UnavailableError,
)
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.recovery.fencing import (
    Claimant,
    Descent,
    beat,
    check_owner,
    claim,
    forget_old_runs,
    in_line_of_descent,
    read_descents,
    record_descent,
)
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.storage import Storage

_log = logging.getLogger(__name__)

JOB_FILE = "job.json"
ABANDONED_AFTER_S = 600.0
"""How long nobody has written to a temporary file before its writer is taken for dead; a live one writes, or is done, in seconds."""


class JobRecord(msgspec.Struct, frozen=True):
    """What may never change in the life of a job."""

    job: str
    max_parallelism: int
    format: int = 1


_JOB_RECORDS = msgspec.json.Decoder(JobRecord)


@dataclass(frozen=True)
class RestorePoint:
    """Where a run goes on: its number, and the retained checkpoints up to the restored one (oldest first, may be empty)."""

    run: RunId
    retained: tuple[Completed, ...]

    @property
    def checkpoint(self) -> Completed | None:
        """The checkpoint to go on from; None for a job that never completed one."""
        return self.retained[-1] if self.retained else None

    @property
    def id(self) -> CheckpointId:
        """Its number, or `NO_CHECKPOINT`."""
        return self.retained[-1].id if self.retained else NO_CHECKPOINT


def check_job_record(storage: Storage, record: JobRecord) -> None:
    """Write `job.json` on the first run; refuse a job whose identity has changed since."""
    if storage.create(JOB_FILE, msgspec.json.encode(record)):
        return
    try:
        known = _JOB_RECORDS.decode(storage.get(JOB_FILE))
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{JOB_FILE} in {storage.uri} is not readable: {error}") from error
    if (known.job, known.format) != (record.job, record.format):
        raise ConfigError(
            f"{storage.uri} belongs to the job {known.job!r} (format {known.format}), this is {record.job!r} (format "
            f"{record.format}); give every job a storage of its own",
            job=record.job,
            expected=known.job,
        )
    if known.max_parallelism != record.max_parallelism:
        raise ConfigError(
            f"max_parallelism={record.max_parallelism} but the job in {storage.uri} was started with "
            f"{known.max_parallelism}; key groups would no longer match, so it can never change: set it back",
            setting="max_parallelism",
            value=record.max_parallelism,
            expected=known.max_parallelism,
        )


def restore(
    storage: Storage,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    job: str,
    mode: Mode,
    now: float,
    wanted: CheckpointId | None = None,
    claimant: Claimant | None = None,
) -> RestorePoint:
    """Take the job over and clean up. `wanted` names an older retained checkpoint instead of the newest."""
    run = claim(storage, now, claimant)
    try:
        return _take_over(storage, sinks, run=run, job=job, mode=mode, wanted=wanted)
    except Exception:
        beat(storage, run, now, ended=True)  # the next start must not be told that this run is alive
        raise


def _take_over(
    storage: Storage,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    run: RunId,
    job: str,
    mode: Mode,
    wanted: CheckpointId | None,
) -> RestorePoint:
    retained = choose(storage, read_descents(storage), wanted)
    point = RestorePoint(run, tuple(retained))
    completed_by = point.checkpoint.run if point.checkpoint else 0
    record_descent(storage, run, point.id, completed_by)
    check_owner(storage, run)  # whoever claims the job after this reads the record, and keeps to it
    done = point.checkpoint is None or is_committed(storage, point.checkpoint)
    _settle_transactions(point, sinks, job=job, commit=mode is not Mode.AT_MOST_ONCE and not done)
    _delete_leftovers(storage, point)
    forget_old_runs(storage, run)
    return point


def choose(
    storage: Storage, descents: Sequence[Descent], wanted: CheckpointId | None = None
) -> list[Completed]:
    """The whole checkpoints of the job's history, oldest first, up to the one to go on from."""
    found, broken = _read_all(storage)
    files = set(
        storage.names("state")
    )  # after the checkpoints: a file is there before the checkpoint that names it
    whole: list[Completed] = []
    for completed in found:
        if not in_line_of_descent(completed.id, RunId(completed.run), descents):
            continue
        try:
            _check_files(completed, files)
        except CorruptStateError as error:
            broken.append(str(error))
        else:
            whole.append(completed)
    if wanted is not None:
        return _up_to(whole, wanted)
    _say_what_is_broken(whole, broken)
    return whole


def _read_all(storage: Storage) -> tuple[list[Completed], list[str]]:
    """All checkpoints, oldest first, and what is wrong with those that cannot be read."""
    found: list[Completed] = []
    broken: list[str] = []
    for number in checkpoint_ids(storage):
        try:
            found.append(read_metadata(storage, number))
        except CorruptStateError as error:
            broken.append(str(error))
        except FileNotFoundError:
            _log.info("checkpoint %d was subsumed while the job was taken over", number)
    return found, broken


def _check_files(completed: Completed, files: set[str]) -> None:
    missing = sorted(completed.files - files)
    if missing:
        raise CorruptStateError(
            f"checkpoint {completed.checkpoint} needs {len(missing)} state files that are gone, such as {missing[0]}"
        )


def _up_to(whole: list[Completed], wanted: CheckpointId) -> list[Completed]:
    numbers = [completed.checkpoint for completed in whole]
    if wanted not in numbers:
        raise ConfigError(
            f"checkpoint {wanted} cannot be restored: there are {numbers or 'none'}", wanted=wanted
        )
    return [completed for completed in whole if completed.id <= wanted]


def _say_what_is_broken(whole: list[Completed], broken: list[str]) -> None:
    if not broken:
        return
    if not whole:
        raise CorruptStateError(
            f"no checkpoint can be restored: {'; '.join(broken)}. Bring the files back from a copy, or delete the "
            "job's folder to start from nothing",
        )
    _log.warning(
        "a checkpoint cannot be used: %s. The job goes on from checkpoint %d; if a later one had been committed, its "
        "results are written again",
        "; ".join(broken),
        whole[-1].checkpoint,
    )


def _settle_transactions(
    point: RestorePoint, sinks: Mapping[str, TwoPhaseCommitSink], *, job: str, commit: bool
) -> None:
    promised = point.checkpoint.transactions if point.checkpoint and commit else ()
    lost = sorted({one.sink for one in promised} - set(sinks))
    if lost:
        raise IncompatibleStateError(
            f"checkpoint {point.id} promises to commit transactions of the sinks {', '.join(lost)}, which the job no longer "
            "has; run the job once more with them, then remove them"
        )
    _commit_promised(point.id, promised, sinks)
    keep = {(one.sink, identity(one.transaction)) for one in promised}
    for uid, sink in sinks.items():
        for transaction in list(sink.find_transactions(job, uid)):
            if transaction["run"] <= point.run and (uid, identity(transaction)) not in keep:
                _log.info(
                    "sink %s: transaction %s is aborted, no checkpoint names it", uid, identity(transaction)
                )
                sink.abort(transaction)


def _commit_promised(
    checkpoint: CheckpointId, promised: Sequence[PreCommitted], sinks: Mapping[str, TwoPhaseCommitSink]
) -> None:
    """Each sink that can commit does, whatever becomes of the others. A run needs all of them: it must know what to abort."""
    failures: dict[str, Exception] = {}
    for uid in dict.fromkeys(one.sink for one in promised):
        try:
            commit_in_order(sinks, [one for one in promised if one.sink == uid])
        except Exception as error:  # noqa: BLE001 - raised below, after the other sinks had their turn
            failures[uid] = error
    for failure in failures.values():
        if isinstance(failure, PenstockError) and not isinstance(failure, UnavailableError):
            raise failure  # whatever else it is may pass, as it may while the job runs
    if failures:
        raise UnavailableError(
            f"the job cannot go on from checkpoint {checkpoint} before all that it promised is committed, and "
            + "; ".join(
                f"the sink {uid} did not commit: {type(error).__name__}: {error}"
                for uid, error in failures.items()
            )
            + ". The other sinks have committed; bring it back, or start the job again when it is",
            sinks=tuple(failures),
        ) from next(iter(failures.values()))


def _delete_leftovers(storage: Storage, point: RestorePoint) -> None:
    retained = {name for completed in point.retained for name in files_of(completed.checkpoint)}
    stale = [name for name in storage.names() if name.startswith("chk-") and name not in retained]
    needed = {name for completed in point.retained for name in completed.files}
    unnamed = [name for name in storage.names("state") if name not in needed]
    check_owner(storage, point.run)  # after listing: nothing in the lists belongs to a newer run
    storage.delete(stale)
    storage.delete(unnamed)
    cleaned = storage.clean_temporary(ABANDONED_AFTER_S)
    if cleaned:
        _log.info("%d unfinished files of dead writers were deleted", cleaned)
