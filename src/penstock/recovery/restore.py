"""From whatever a failure left to a clean starting point. Driver, at the start of every run, before Spark's query.

The order is what makes it safe:
1. claim the job, so that no earlier run can commit any more;
2. list the checkpoints and choose the newest one that is whole;
3. check that the job as it is now can go on from it: whatever is refused is refused before anything is changed;
4. record the choice;
5. commit what it promised, abort every other transaction of the job;
6. delete the checkpoints and files that no longer belong to anything.
A crash in between leaves the same choice to the next run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec

from penstock.checkpoint.commits import commit_in_order
from penstock.checkpoint.completed import Barrier, Completed, PreCommitted
from penstock.checkpoint.metadata import found_checkpoints, is_committed, name_of
from penstock.checkpoint.sink_lanes import IN_THIS_THREAD, RecoveryCalls
from penstock.config import Mode
from penstock.decoding import decoded
from penstock.errors import (
    ConfigError,
    CorruptStateError,
    IncompatibleStateError,
    PenstockError,
    UnavailableError,
)
from penstock.ids import LONGEST_NAME, NO_CHECKPOINT, CheckpointId, RunId
from penstock.log_fields import about
from penstock.logins import refuses_login
from penstock.ownership.claim import JOB_FILE, Claim, Claimant, claim, forget_old_runs, newest_run
from penstock.ownership.descent import read_descents, record_descent
from penstock.ownership.heartbeat import Alive, beat
from penstock.ownership.holds import find_holds
from penstock.randomness import SYSTEM_RANDOMNESS
from penstock.recovery import started_batches as begun_batches
from penstock.recovery.history import choose, read_history
from penstock.recovery.stale_storage import (
    NOT_RENAMED,
    FormerSinks,
    named,
    newest_run_in_targets,
    refuse_if_targets_know_more,
    uids_of,
)
from penstock.recovery.started_batches import StartedBatch
from penstock.sinks.two_phase_commit import Transaction, TransactionName, TwoPhaseCommitSink
from penstock.storage import Storage
from penstock.wording import counted

_log = logging.getLogger(__name__)

ABANDONED_AFTER_S = 600.0
"""How long nobody has written to a temporary file before its writer is taken for dead; a live one writes, or is done, in seconds."""


class JobRecord(msgspec.Struct, frozen=True):
    """What may never change in the life of a job."""

    job: str
    max_parallelism: int
    identity: str = ""
    """Drawn at the first start. Two jobs of one name, with storages of their own, may write to one target."""
    format: int = 2

    @property
    def owner(self) -> str:
        """The name under which sinks keep the transactions of this job and of no other."""
        return f"{self.job[: LONGEST_NAME - len(self.identity) - 1]}-{self.identity}"


_JOB_RECORDS = msgspec.json.Decoder(JobRecord)


@dataclass(frozen=True)
class Fitted:
    """A checkpoint for the job as it is now, see `recovery.fitting`."""

    checkpoint: Completed | None
    barrier: Barrier
    former: Mapping[str, str] = field(default_factory=dict)
    """Old uids by new ones."""
    said: tuple[str, ...] = ()
    """What somebody has asked for and should know about, when it is done."""


Fitting = Callable[["RestorePoint"], "RestorePoint"]
"""Makes of what was found what the job as it is now goes on from; raises where it cannot."""


@dataclass(frozen=True)
class RestorePoint:
    """Where a run goes on: its claim, and the retained checkpoints up to the restored one (oldest first, may be empty)."""

    claim: Claim
    retained: tuple[Completed, ...]
    begun: StartedBatch | None = None
    """What earlier runs had begun, if a checkpoint that is retained knows nothing of it."""
    left_over: tuple[str, ...] = ()
    """What belongs to nothing any more, and is kept as long as somebody holds it: the run deletes it later, in this order."""
    fitted: Fitted | None = None
    """What all this means for the job as it is now. What is in storage is `retained` and stays as it is."""

    @property
    def run(self) -> RunId:
        """The number of the run."""
        return self.claim.run

    @property
    def checkpoint(self) -> Completed | None:
        """The checkpoint to go on from; None for a job that never completed one."""
        if self.fitted:
            return self.fitted.checkpoint
        return self.retained[-1] if self.retained else None

    @property
    def id(self) -> CheckpointId:
        """Its number, or `NO_CHECKPOINT`."""
        return self.retained[-1].id if self.retained else NO_CHECKPOINT

    @property
    def completed_by(self) -> RunId:
        """The run that completed it; 0 when there is none."""
        return RunId(self.retained[-1].run if self.retained else 0)

    @property
    def last_read(self) -> CheckpointId:
        """The last batch that is not read again: that of the checkpoint, or one after it that was begun at most once."""
        return max(self.id, self.begun.id) if self.begun else self.id

    @property
    def begun_files(self) -> frozenset[str]:
        """What the record of it names."""
        return self.begun.files if self.begun else frozenset()

    @property
    def begun_decides(self) -> bool:
        """Whether reading goes on where the record says, and not at the end of the checkpoint's batch."""
        return self.begun is not None and (self.checkpoint is None or self.begun.id > self.id)

    @property
    def barrier(self) -> Barrier:
        """Where reading goes on."""
        if self.fitted:
            return self.fitted.barrier
        if self.begun and self.begun_decides:
            time = self.begun.barrier.time.with_state_of(self.id)
            return msgspec.structs.replace(self.begun.barrier, time=time)
        if self.begun and self.begun.instead:
            return self.begun.instead.barrier
        return self.checkpoint.barrier if self.checkpoint else Barrier()

    @property
    def positions_set(self) -> Mapping[str, Any]:
        """What was set by choice when the barrier came to be."""
        if self.begun and (self.begun_decides or self.begun.instead):
            return self.begun.positions_set
        return self.checkpoint.positions_set if self.checkpoint else {}

    @property
    def former_uids(self) -> dict[str, tuple[str, ...]]:
        """Those that operators had before."""
        operators = self.checkpoint.operators if self.checkpoint else {}
        return {uid: one.former_uids for uid, one in operators.items() if one.former_uids}

    @property
    def former_sinks(self) -> FormerSinks:
        """The uid that a sink had before, by the one that it has now."""
        return self.fitted.former if self.fitted else {}


def read_job_record(storage: Storage) -> JobRecord:
    """What a job in this storage said at its first start; `FileNotFoundError` where none ever ran."""
    try:
        return decoded(_JOB_RECORDS, storage.get(JOB_FILE))
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{JOB_FILE} in {storage.uri} is not readable: {error}") from error


def job_record_of(storage: Storage, record: JobRecord, *, may_have_other_groups: bool = False) -> JobRecord:
    """What `job.json` says, or before the first start a record with a new identity; refuses a job that has changed since. Writes nothing.

    `may_have_other_groups`: it begins with a savepoint, with which `max_parallelism` may change; see `record_key_groups`.
    """
    if storage.size(JOB_FILE) is None:
        return msgspec.structs.replace(record, identity=SYSTEM_RANDOMNESS.token(8))
    known = read_job_record(storage)
    if (known.job, known.format) != (record.job, record.format):
        raise ConfigError(
            f"{storage.uri} belongs to the job {known.job!r} (format {known.format}), this is {record.job!r} (format "
            f"{record.format}); give every job a storage of its own",
            job=record.job,
            expected=known.job,
        )
    if known.max_parallelism != record.max_parallelism and not may_have_other_groups:
        raise ConfigError(
            f"max_parallelism={record.max_parallelism} but the job in {storage.uri} was started with "
            f"{known.max_parallelism}; key groups would no longer match: set it back, or stop the job with a savepoint and start it from "
            "that, which may change it",
            setting="max_parallelism",
            value=record.max_parallelism,
            expected=known.max_parallelism,
        )
    return known


def keep_job_record(storage: Storage, record: JobRecord) -> None:
    """Write `job.json` at the first start. When nothing is refused any more, right before the claim: it is never taken back.

    A first start beside it has drawn another identity. Only the one in the file may have transactions, for later starts look for those of
    no other: the second one is refused.
    """
    if storage.create(JOB_FILE, msgspec.json.encode(record)):
        return
    known = read_job_record(storage)
    if (known.job, known.identity) != (record.job, record.identity):
        raise ConfigError(
            f"another start has just begun a job in {storage.uri}, for the first time as this one; nothing was changed. See whether it "
            "runs: `penstock status`; if it does not, start the job again",
            job=record.job,
            expected=known.job,
        )


def check_job_record(storage: Storage, record: JobRecord) -> JobRecord:
    """Both at once: the record of the job, which is in storage then."""
    found = job_record_of(storage, record)
    keep_job_record(storage, found)
    return found


def record_key_groups(mine: Claim, max_parallelism: int) -> None:
    """The job has begun with state of other key groups. Until this is written, a start without the savepoint is refused.

    A run that was replaced meanwhile writes nothing: the job may have other key groups by now.
    """
    storage = mine.storage
    if storage.size(JOB_FILE) is None:
        return  # whoever has no record has none that could be wrong
    known = read_job_record(storage)
    if known.max_parallelism != max_parallelism:
        changed = msgspec.structs.replace(known, max_parallelism=max_parallelism)
        mine.check()
        storage.put(JOB_FILE, msgspec.json.encode(changed))


def restore(
    storage: Storage,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    owner: str,
    mode: Mode,
    now: float,
    wanted: CheckpointId | None = None,
    claimant: Claimant | None = None,
    fitting: Fitting = lambda point: point,
    former: FormerSinks = NOT_RENAMED,
    check: Callable[[RestorePoint], None] = lambda _: None,
    alive: Alive = lambda _: nullcontext(),
    calls: RecoveryCalls = IN_THIS_THREAD,
) -> RestorePoint:
    """Take the job over and clean up. `wanted` names an older retained checkpoint instead of the newest.

    `owner`: see `JobRecord`. `former`: sinks that `fitting` renames, asked about before there is anything to fit. `check` refuses, by
    raising, a checkpoint that the job cannot go on from. `alive` keeps the run's heartbeat going: a sink that does not answer may take
    long to say so. `calls`: how sinks are called, which a cancel may end.
    After `UnavailableError` the caller says whether the run is over.
    """
    known = 0 if wanted is None else newest_run_in_targets(sinks, owner, former, calls)
    mine = claim(storage, now, claimant, above=known)
    try:
        point = fitting(_choose_point(mine, mode, wanted))
        promised = _promised(storage, point, sinks)
        check(point)
        with alive(mine):
            if wanted is None:
                refuse_if_targets_know_more(
                    point.claim, point.id, sinks, point.former_sinks, owner=owner, mode=mode, calls=calls
                )
            else:
                _warn_of_what_goes(point)
            left_over = _take_over(point, sinks, calls, owner=owner, promised=promised, now=now)
    except UnavailableError:
        raise
    except Exception:
        beat(storage, mine.run, now, ended=True)  # the next start must not be told that this run is alive
        raise
    return replace(point, left_over=tuple(left_over))


def _warn_of_what_goes(point: RestorePoint) -> None:
    """A person has chosen an older checkpoint: say what that costs, before it is done."""
    found = {name.checkpoint for name in found_checkpoints(point.claim.storage)}
    newer = sorted(number for number in found if number > point.id)
    if newer:
        _log.warning(
            "the job goes back to checkpoint %d, and %s deleted: %s. What they made visible stays visible, and is written again",
            *(
                point.id,
                counted(len(newer), "newer checkpoint is", "newer checkpoints are"),
                ", ".join(map(str, newer)),
            ),
        )


def check_restorable(
    storage: Storage,
    sinks: Mapping[str, TwoPhaseCommitSink],
    *,
    owner: str,
    mode: Mode,
    wanted: CheckpointId | None,
    fitting: Fitting = lambda point: point,
    check: Callable[[RestorePoint], None],
    calls: RecoveryCalls = IN_THIS_THREAD,
) -> None:
    """Refuse what `restore` would refuse, before the job is claimed: a mistake must not fence off a run that is well.

    Called once, before a start's first claim. Everything is looked at again afterwards.
    """
    try:
        nobodys = Claim(storage, newest_run(storage), token="")
        point = fitting(_choose_point(nobodys, mode, wanted))
        _promised(storage, point, sinks)
        check(point)
    except CorruptStateError as error:
        _log.debug("looked at again when the job is claimed, its owner may just be deleting: %s", error)
        return
    try:
        if wanted is None:
            refuse_if_targets_know_more(
                point.claim, point.id, sinks, point.former_sinks, owner=owner, mode=mode, calls=calls
            )
    except UnavailableError as error:
        _log.debug("looked at again when the job is claimed, a sink is away: %s", error)


def _choose_point(claim: Claim, mode: Mode, wanted: CheckpointId | None) -> RestorePoint:
    history = read_history(claim.storage, read_descents(claim.storage))
    may_repeat = mode is not Mode.EXACTLY_ONCE
    retained = choose(history, wanted=wanted, may_repeat=may_repeat)
    return RestorePoint(claim, tuple(retained), _begun_beyond(claim.storage, retained, wanted))


def _begun_beyond(
    storage: Storage, retained: Sequence[Completed], wanted: CheckpointId | None
) -> StartedBatch | None:
    """What was begun and is in no checkpoint; also what is in the newest, but not in the oldest that a person can choose.

    Who chooses a checkpoint gets that one, and not what was decided beside it.
    """
    begun = begun_batches.last_started(storage)
    if begun is None:
        return None
    instead = begun.instead if wanted is None and retained else None
    begun = msgspec.structs.replace(
        begun, instead=instead if instead is not None and instead.is_of(retained[-1]) else None
    )
    return None if begun.instead is None and retained and begun.id <= retained[0].id else begun


def _take_over(
    point: RestorePoint,
    sinks: Mapping[str, TwoPhaseCommitSink],
    calls: RecoveryCalls,
    *,
    owner: str,
    promised: Sequence[PreCommitted],
    now: float,
) -> list[str]:
    storage = point.claim.storage
    record_descent(point.claim, point.id, point.completed_by)
    _commit_promised(point.id, promised, sinks, calls)
    _abort_others(point, promised, sinks, calls, owner)
    begun_batches.inherit_started(storage, point.run, point.begun)
    left_over = _delete_leftovers(storage, point, now)
    forget_old_runs(storage, point.run)
    return left_over


def _promised(
    storage: Storage, point: RestorePoint, sinks: Mapping[str, TwoPhaseCommitSink]
) -> Sequence[PreCommitted]:
    """What the checkpoint promised and is not known to be committed. A promise is kept under whichever mode the job runs now."""
    checkpoint = point.checkpoint
    if checkpoint is None or not checkpoint.transactions or is_committed(storage, checkpoint):
        return ()
    lost = sorted({one.sink for one in checkpoint.transactions} - set(sinks))
    if lost:
        raise IncompatibleStateError(
            f"checkpoint {point.id} promises to commit transactions of the sinks {', '.join(lost)}, which the job no longer "
            "has; run the job once more with them, then remove them"
        )
    return checkpoint.transactions


def _abort_others(
    point: RestorePoint,
    promised: Sequence[PreCommitted],
    sinks: Mapping[str, TwoPhaseCommitSink],
    calls: RecoveryCalls,
    owner: str,
) -> None:
    keep = {one.name for one in promised}
    for uid, sink in sinks.items():
        for known_as in uids_of(uid, point.former_sinks):
            with named(uid):
                for transaction in calls(uid, partial(_listed, sink, owner, known_as)):
                    name = TransactionName.of(uid, transaction)
                    if name.run <= point.run and name not in keep:
                        _log.info(
                            "sink %s: transaction %s is aborted, no checkpoint names it",
                            known_as,
                            tuple(name[1:]),
                            extra=about(operator=known_as),
                        )
                        calls(uid, partial(sink.abort, transaction))


def _listed(sink: TwoPhaseCommitSink, owner: str, uid: str) -> list[Transaction]:
    """All of them: a sink may look for each only when it is taken."""
    return list(sink.find_transactions(owner, uid))


def _commit_promised(
    checkpoint: CheckpointId,
    promised: Sequence[PreCommitted],
    sinks: Mapping[str, TwoPhaseCommitSink],
    calls: RecoveryCalls,
) -> None:
    """Each sink that can commit does, whatever becomes of the others. A run needs all of them: it must know what to abort."""
    failures: dict[str, Exception] = {}
    for uid in dict.fromkeys(one.sink for one in promised):
        own = [one for one in promised if one.sink == uid]
        try:
            calls(uid, partial(commit_in_order, sinks, own, calls.check))
        except Exception as error:  # noqa: BLE001 - raised below, after the other sinks had their turn
            failures[uid] = error
    for failure in failures.values():
        if isinstance(failure, PenstockError) and not isinstance(failure, UnavailableError):
            raise failure  # whatever else it is may pass, as it may while the job runs
    if failures:
        raise UnavailableError(
            "; ".join(
                f"the sink {uid} does not commit: {type(error).__name__}: {error}"
                for uid, error in failures.items()
            )
            + f". The job goes on from checkpoint {checkpoint} when all that it promised is committed, which the other sinks have done",
            sinks=tuple(failures),
            denied=any(map(refuses_login, failures.values())),
        ) from next(iter(failures.values()))


def _delete_leftovers(storage: Storage, point: RestorePoint, now: float) -> list[str]:
    """Delete what belongs to nothing any more; returned instead is what cannot go yet, because somebody may be reading it."""
    retained = {name for completed in point.retained for name in name_of(completed).files}
    stale = [name for name in storage.names() if name.startswith("chk-") and name not in retained]
    needed = {name for completed in point.retained for name in completed.files}
    needed |= point.begun_files
    unnamed = [name for name in storage.names("state") if name not in needed]
    if (stale or unnamed) and _may_be_held(storage, now):
        _log.info(
            "%s later: somebody reads a checkpoint, or may do so",
            counted(len(stale) + len(unnamed), "file is deleted", "files are deleted"),
        )
        return [*stale, *unnamed]
    point.claim.check()
    # Another run may take over in this moment: nothing in the lists is its own, for no name is used twice, and what it goes
    # on from is retained here, for it keeps to the record of this run.
    storage.delete(stale)
    storage.delete(unnamed)
    cleaned = storage.clean_temporary(ABANDONED_AFTER_S)
    if cleaned:
        _log.info("deleted %s of dead writers", counted(cleaned, "unfinished file"))
    return []


def _may_be_held(storage: Storage, now: float) -> bool:
    """Whether somebody reads a checkpoint. Holds may be files of another user, and are in no start's way."""
    try:
        return bool(find_holds(storage, now).good)
    except UnavailableError as error:
        _log.warning("it cannot be seen whether somebody reads a checkpoint: %s", error)
        return True
