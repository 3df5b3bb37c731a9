"""What storage holds of a job: the checkpoints of its history, and what a run resumes from. Only reads; driver and readers.

A reader does not own the job, which may be running. A hold keeps the files of the checkpoint that it reads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from penstock.checkpoint.metadata import (
    CheckpointName,
    committed_checkpoints,
    found_checkpoints,
    is_committed,
    name_of,
    read_metadata,
)
from penstock.checkpoint.model import Completed
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config import Mode
from penstock.errors import ConfigError, CorruptStateError, PenstockError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.log_fields import about
from penstock.ownership.claim import Descent, in_line_of_descent, newest_descent, read_descents
from penstock.ownership.heartbeat import last_completed
from penstock.ownership.holds import ANY, holding
from penstock.recovery.started_batches import StartedBatch, last_started
from penstock.storage import Storage
from penstock.wording import counted, start_option

_log = logging.getLogger(__name__)


_T = TypeVar("_T")


LOOKS = 2
"""A checkpoint may be subsumed and deleted between the listing of checkpoints and that of files."""


MOST_LOOKS = 20


@dataclass
class History:
    """The checkpoints of the job, oldest first, and the problems of those that cannot be used."""

    whole: list[Completed] = field(default_factory=list)
    broken: dict[CheckpointId, str] = field(default_factory=dict)

    @property
    def newest(self) -> CheckpointId:
        """The number of the newest whole one."""
        return self.whole[-1].id if self.whole else NO_CHECKPOINT

    @property
    def broken_beyond(self) -> list[str]:
        """The problems of checkpoints newer than the newest whole one."""
        return [why for number, why in sorted(self.broken.items()) if number > self.newest]


@dataclass(frozen=True)
class StoredJob:
    """What storage holds for a run to resume from."""

    retained: tuple[Completed, ...] = ()
    """The checkpoints up to the one to restore, oldest first; empty for a job that never completed one."""
    started: StartedBatch | None = None
    """The record of started batches, if the oldest of these checkpoints does not include them."""
    committed: bool = False
    """Whether all transactions that the checkpoint promised are known to be committed."""

    @property
    def checkpoint(self) -> Completed | None:
        """The checkpoint to restore; None for a job without one."""
        return self.retained[-1] if self.retained else None


def read_stored(storage: Storage, mode: Mode, wanted: CheckpointId | None) -> StoredJob:
    """Choose the checkpoint to restore, the newest or the one that is `wanted`, and read what was recorded beside it."""
    history = read_history(storage, read_descents(storage))
    retained = choose(history, wanted=wanted, may_repeat=mode is not Mode.EXACTLY_ONCE)
    started = _started_beyond(last_started(storage), retained, wanted)
    newest = retained[-1] if retained else None
    committed = newest is None or not newest.transactions or is_committed(storage, newest)
    return StoredJob(tuple(retained), started, committed)


def _started_beyond(
    started: StartedBatch | None, retained: Sequence[Completed], wanted: CheckpointId | None
) -> StartedBatch | None:
    """The record, if a retained checkpoint that a person can choose does not include it.

    A start that chooses a checkpoint gets that one, and not the positions that were set beside it.
    """
    if started is None:
        return None
    instead = started.instead if wanted is None and retained else None
    if instead is not None and not instead.is_of(retained[-1]):
        instead = None
    if instead is None and retained and started.id <= retained[0].id:
        return None
    return msgspec.structs.replace(started, instead=instead)


def read_history(storage: Storage, descents: Sequence[Descent]) -> History:
    """The checkpoints in the line of descent. Raises `IncompatibleStateError` for metadata of another format."""
    history = History()
    found = _read_all(storage, descents, history)
    # after the checkpoints: a file is there before the checkpoint that names it
    files = set(storage.names("state"))
    subsumed_before = max((one.oldest_retained for one in found), default=NO_CHECKPOINT)
    for completed in found:
        missing = sorted(completed.files - files)
        if completed.id < subsumed_before:
            continue  # subsumed: its run may be about to delete it
        if missing:
            history.broken[completed.id] = (
                f"checkpoint {completed.checkpoint} needs {counted(len(missing), 'state file that is', 'state files that are')} gone, "
                f"such as {missing[0]}"
            )
        else:
            history.whole.append(completed)
    _notice_what_vanished(history, descents)
    _notice_what_was_deleted(storage, history, descents)
    _notice_marks_without_metadata(storage, descents, history, subsumed_before)
    return history


def _read_all(storage: Storage, descents: Sequence[Descent], history: History) -> list[Completed]:
    found: list[Completed] = []
    for name in found_checkpoints(storage):
        if not in_line_of_descent(name.checkpoint, name.run, descents):
            continue
        try:
            found.append(read_metadata(storage, name))
        except CorruptStateError as error:
            history.broken[name.checkpoint] = str(error)
        except FileNotFoundError:
            _log.info(
                "checkpoint %d was subsumed while the job was taken over",
                name.checkpoint,
                extra=about(checkpoint=name.checkpoint),
            )
    return found


def _notice_what_vanished(history: History, descents: Sequence[Descent]) -> None:
    """The checkpoint that the newest run restored, or one that it completed, must be there."""
    last = newest_descent(descents)
    if last is None or last.restored_from == NO_CHECKPOINT or last.completed_by is None:
        return
    name = CheckpointName(CheckpointId(last.restored_from), RunId(last.completed_by))
    known = max([history.newest, *history.broken], default=NO_CHECKPOINT)
    if known < name.checkpoint:
        history.broken[name.checkpoint] = (
            f"run {last.run} went on from checkpoint {name.checkpoint}, and neither {name.metadata} nor a later one is there"
        )


def _notice_what_was_deleted(storage: Storage, history: History, descents: Sequence[Descent]) -> None:
    """The heartbeat of a run names its newest checkpoint, so that an older one is never silently taken for the newest."""
    last = newest_descent(descents)
    if last is None:
        return
    completed = last_completed(storage, RunId(last.run))
    if completed > max([history.newest, *history.broken], default=NO_CHECKPOINT):
        history.broken[completed] = f"run {last.run} had checkpoint {completed}, and it is gone"


def _notice_marks_without_metadata(
    storage: Storage, descents: Sequence[Descent], history: History, subsumed_before: int
) -> None:
    """The mark is deleted before the metadata: a mark alone means that the metadata was deleted by hand."""
    for name in committed_checkpoints(storage):
        known = name.checkpoint <= max([history.newest, *history.broken], default=NO_CHECKPOINT)
        if known or name.checkpoint < subsumed_before:
            continue
        if in_line_of_descent(name.checkpoint, name.run, descents):
            history.broken[name.checkpoint] = (
                f"checkpoint {name.checkpoint} was committed, and {name.metadata} is gone"
            )


def choose(
    history: History, *, wanted: CheckpointId | None = None, may_repeat: bool = False
) -> list[Completed]:
    """The whole checkpoints up to the one to restore, oldest first; empty for a job that never completed one.

    `may_repeat`: whether the job may go back beyond a broken checkpoint by itself, and write again what that one committed.
    """
    if wanted is not None:
        return _up_to(history.whole, wanted)
    wrong = "; ".join(history.broken_beyond)
    if not wrong:
        return history.whole
    if not history.whole:
        raise CorruptStateError(
            f"no checkpoint can be restored: {wrong}. Nothing was changed. Bring the files back from a copy, or delete the "
            "job's folder to start from nothing",
        )
    if not may_repeat:
        raise CorruptStateError(
            f"the newest checkpoint cannot be restored: {wrong}. Nothing was changed. Checkpoint {history.newest} is whole, but what came "
            "after it may have been committed and would be written again, so the job does not go back to it by itself. Bring the "
            f"files back from a copy, or start with {start_option(restore=history.newest)} to accept that",
            whole=history.newest,
        )
    _log.warning(
        "a checkpoint cannot be used: %s. The job goes on from checkpoint %d; if a later one had been committed, its "
        "results are written again",
        *(wrong, history.newest),
    )
    return history.whole


def _up_to(whole: list[Completed], wanted: CheckpointId) -> list[Completed]:
    numbers = [completed.checkpoint for completed in whole]
    if wanted not in numbers:
        raise ConfigError(
            f"checkpoint {wanted} cannot be restored: there are {', '.join(map(str, numbers)) or 'none'}; nothing was changed",
            wanted=wanted,
        )
    return [completed for completed in whole if completed.id <= wanted]


# ── reading a job that may be running ──────────────────────────────────────────────────────────


def read_held(
    storage: Storage,
    read: Callable[[Completed], _T],
    *,
    why: str,
    wanted: CheckpointId | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> _T:
    """Put a hold, then call `read` with the newest checkpoint, or with the one that is `wanted`.

    If that fails and a newer checkpoint exists by then, that one is read: the hold had expired by the job's clock.
    """
    retained_checkpoint(storage, wanted)  # where there is no job, not even a folder is made for the hold
    with holding(storage, why, clock=clock) as held:
        return read_newest(storage, read, held.only, wanted)


def read_newest(
    storage: Storage,
    read: Callable[[Completed], _T],
    only: Callable[[int, int], None],
    wanted: CheckpointId | None = None,
) -> _T:
    """The same with an existing hold of the caller. `only` is called with the checkpoint that is read, see `Holding.only`."""
    first = retained_checkpoint(storage, wanted)
    only(first.checkpoint, first.run)
    try:
        return read(first)
    except (PenstockError, OSError) as error:
        only(ANY, 0)
        newest = retained_checkpoint(storage, wanted)
        if name_of(newest) == name_of(first):
            raise
        _log.info(
            "checkpoint %d went while it was read (%s), checkpoint %d is read instead",
            *(first.checkpoint, error, newest.checkpoint),
        )
        only(newest.checkpoint, newest.run)
        return read(newest)


def retained_checkpoint(storage: Storage, wanted: CheckpointId | None = None) -> Completed:
    """The newest checkpoint of the job, or the one that is `wanted`.

    If the newest is broken, an older one is not used instead: a job that resumed from it would write again what came after it.
    """
    for _ in range(LOOKS):
        history = steady_history(storage)
        whole, wrong = history.whole, "; ".join(history.broken_beyond)
        for completed in reversed(whole):
            if completed.id == wanted or (wanted is None and not wrong):
                return completed
    if wanted is None and whole and wrong:
        raise CorruptStateError(
            f"the newest checkpoint of the job in {storage.uri} cannot be read: {wrong}. Nothing was changed. Checkpoint "
            f"{whole[-1].checkpoint} is whole, but what came after it may have been committed, and would be written again by a job "
            "that resumes from it. Bring the files back from a copy, or choose that one by its number to accept this",
            whole=whole[-1].checkpoint,
        )
    there = f"there are {', '.join(str(one.checkpoint) for one in whole)}" if whole else "there is none"
    there += f" ({wrong})" if wrong and not whole else ""
    raise ConfigError(
        f"{'no checkpoint' if wanted is None else f'checkpoint {wanted}'} of the job in {storage.uri} "
        f"{'can' if wanted is None else 'cannot'} be read: {there}; "
        "nothing was changed; `penstock checkpoints` lists them, with what is wrong with each",
        wanted=wanted,
    )


def steady_history(storage: Storage) -> History:
    """The history of a job that may be running.

    Storage is listed several times. A checkpoint that completes in between shows only its mark or its heartbeat, and looks as if it were
    gone. So a problem with the newest checkpoint counts only if it is still there at the next look.
    """
    before: list[str] = []
    for _ in range(MOST_LOOKS):
        history = read_history(storage, read_descents(storage))
        if history.broken_beyond in ([], before):
            break
        before = history.broken_beyond
    return history


def check_committed(storage: Storage, completed: Completed) -> None:
    """Refuse a checkpoint with transactions that may not be committed: a job that resumes from a copy cannot commit them."""
    promised = counted(len(completed.transactions), "transaction")
    if completed.transactions and not is_committed(storage, completed):
        raise ConfigError(
            f"checkpoint {completed.checkpoint} in {storage.uri} promises to commit {promised}, and it "
            "is not known that this was done; no savepoint is made of it: a job that starts from one could never commit them. Start the "
            "job once, which commits them, stop it, and ask again; or choose another checkpoint (`penstock checkpoints` lists them)",
            checkpoint=completed.checkpoint,
            transactions=len(completed.transactions),
        )
