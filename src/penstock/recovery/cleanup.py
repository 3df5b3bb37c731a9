"""Deleting what a job no longer needs: leftovers of earlier runs, and everything when a job is cancelled for good. Driver."""

from __future__ import annotations

import logging

from penstock.checkpoint.metadata import name_of
from penstock.checkpoint.model import Barrier
from penstock.errors import InternalError, UnavailableError
from penstock.ids import NO_CHECKPOINT, RunId
from penstock.ownership.claim import Claimant, claim, record_descent
from penstock.ownership.heartbeat import beat
from penstock.ownership.holds import find_holds
from penstock.recovery.restore_plan import RestorePlan
from penstock.recovery.started_batches import StartedBatch, record_started
from penstock.storage import Storage
from penstock.wording import counted

_log = logging.getLogger(__name__)

ABANDONED_AFTER_S = 600.0
"""A temporary file that was not written to for so long is abandoned. A live writer writes, or is done, within seconds."""


def delete_leftovers(plan: RestorePlan, now: float) -> list[str]:
    """Delete files that belong to no retained checkpoint. Returns those that stay for now, because a reader may hold them."""
    storage = plan.claim.storage
    retained = {name for completed in plan.retained for name in name_of(completed).files}
    stale = [name for name in storage.names() if name.startswith("chk-") and name not in retained]
    needed = {name for completed in plan.retained for name in completed.files}
    needed |= plan.started_files
    unnamed = [name for name in storage.names("state") if name not in needed]
    if (stale or unnamed) and _may_be_held(storage, now):
        _log.info(
            "%s later: a reader holds a checkpoint, or may do so",
            counted(len(stale) + len(unnamed), "file is deleted", "files are deleted"),
        )
        return [*stale, *unnamed]
    plan.claim.check()
    # Another run may take over at this moment. Nothing in the lists is its own, because no name is used twice. What it resumes from is
    # retained here, because it follows the record of this run.
    storage.delete(stale)
    storage.delete(unnamed)
    cleaned = storage.clean_temporary(ABANDONED_AFTER_S)
    if cleaned:
        _log.info("deleted %s of dead writers", counted(cleaned, "unfinished file"))
    return []


def _may_be_held(storage: Storage, now: float) -> bool:
    """Whether a reader may hold a checkpoint. Holds may be files of another user: they never make a start fail."""
    try:
        return bool(find_holds(storage, now).good)
    except UnavailableError as error:
        _log.warning("holds of readers cannot be read, so files are deleted later: %s", error)
        return True


def forget_everything(storage: Storage, now: float, claimant: Claimant) -> RunId:
    """Delete all checkpoints, all state and Spark's progress logs. Raises `FencedError` if the job has another owner.

    Holds of readers keep nothing: a cancel that deletes means it, and a reader gets an error. Only a start that has had the job may call
    this; one that never claimed it has nothing to forget.

    The deletion is a run of its own that resumes from nothing. A run that takes over later, even while this one is still deleting, also
    starts from nothing. The files were listed before, so none of them belongs to a later run.
    """
    if not claimant.has_claimed:
        raise InternalError(
            f"a start that never had the job in {storage.uri} was asked to delete its checkpoints"
        )
    mine = claim(storage, now, claimant)
    record_descent(mine, NO_CHECKPOINT, completed_by=0)
    listed = [name for name in storage.names() if name.startswith(("chk-", "state/", "spark/", "begun/"))]
    # for a run that takes over meanwhile: nothing was started
    record_started(storage, StartedBatch(mine.run, Barrier()))
    mine.check()
    storage.delete(listed)
    beat(storage, mine.run, now, ended=True)
    return mine.run
