"""Forgetting all that a job has kept, when it is cancelled and its checkpoints are to go. Driver."""

from __future__ import annotations

from penstock.checkpoint.completed import Barrier
from penstock.errors import InternalError
from penstock.ids import NO_CHECKPOINT, RunId
from penstock.ownership.claim import Claimant, claim
from penstock.ownership.descent import record_descent
from penstock.ownership.heartbeat import beat
from penstock.recovery.started_batches import StartedBatch, record_started
from penstock.storage import Storage


def forget_everything(storage: Storage, now: float, claimant: Claimant) -> RunId:
    """Delete all checkpoints, all state and Spark's progress logs. Raises `FencedError` if the job has another owner.

    Nobody's hold keeps anything of it: who cancels a job so wants it gone, and a reader is told that it is.

    Called by a start that has had the job: one that never came up has nothing to forget, and whoever has the job is none of its business.

    It is a run of its own that goes back to nothing. So whoever takes the job over later starts from nothing too, also while this
    one is still deleting; and what it deletes was listed before, so it is never what a later run has made.
    """
    if not claimant.has_claimed:
        raise InternalError(f"a start that never had the job in {storage.uri} is to forget what it holds")
    mine = claim(storage, now, claimant)
    record_descent(mine, NO_CHECKPOINT, completed_by=0)
    listed = [name for name in storage.names() if name.startswith(("chk-", "state/", "spark/", "begun/"))]
    record_started(storage, StartedBatch(mine.run, Barrier()))  # whoever looks meanwhile: nothing was begun
    mine.check()
    storage.delete(listed)
    beat(storage, mine.run, now, ended=True)
    return mine.run
