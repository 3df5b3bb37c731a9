"""Read a completed checkpoint of a job that may be running, without owning it. A hold keeps its files meanwhile. Readers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.metadata import is_committed, name_of
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ConfigError, CorruptStateError, PenstockError
from penstock.ids import CheckpointId
from penstock.ownership.descent import read_descents
from penstock.ownership.holds import ANY, holding
from penstock.recovery.history import History, read_history
from penstock.storage import Storage
from penstock.wording import counted

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

LOOKS = 2
"""A checkpoint may be subsumed and deleted between the listing of checkpoints and that of files."""
MOST_LOOKS = 20


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
            f"{whole[-1].checkpoint} is whole, but what came after it may have been committed, and would be written again by who goes on "
            "from it. Bring the files back from a copy, or choose that one by its number to accept this",
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
