"""The line of descent: which checkpoint each run went on from. Driver.

A checkpoint of an older run beyond the point where a newer one went on is outside the job's history and counts for nothing, whenever it
was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec

from penstock.errors import FencedError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.ownership.claim import Claim
from penstock.ownership.records import damaged, read_record, records
from penstock.storage import Storage


class Descent(msgspec.Struct, frozen=True):
    """From which checkpoint a run went on: `runs/<k>.restored`, written once, before the run does anything else."""

    run: int
    restored_from: Annotated[int, msgspec.Meta(ge=NO_CHECKPOINT)]
    completed_by: Annotated[int, msgspec.Meta(ge=0)] | None = None
    """The run that completed that checkpoint; 0 when there was none."""


_DESCENTS = msgspec.json.Decoder(Descent)


def record_descent(claim: Claim, restored_from: CheckpointId, completed_by: int | None = None) -> None:
    """Say which checkpoint this run goes on from. Whatever earlier runs have beyond it counts for nothing from now on.

    Raises `FencedError` when another run has claimed the job meanwhile, and then leaves no record: it may have decided without it.
    Whoever claims the job after this has returned reads the record, and keeps to it.
    """
    name = f"runs/{claim.run}.restored"
    claim.storage.create(name, msgspec.json.encode(Descent(claim.run, restored_from, completed_by)))
    try:
        claim.check()
    except FencedError:
        claim.storage.delete([name])
        raise


def read_descent(storage: Storage, run: RunId) -> Descent:
    """Where one run went on from."""
    name = f"runs/{run}.restored"
    descent = read_record(storage, name, _DESCENTS)
    if descent.run != run:
        raise damaged(storage, name, f"it is the record of run {descent.run}")
    return descent


def read_descents(storage: Storage) -> list[Descent]:
    """Where the runs went on from; a run that died before it decided is not in the list, and did nothing."""
    found: list[Descent] = []
    for _, run in records(storage, "restored"):
        try:
            found.append(read_descent(storage, RunId(run)))
        except FileNotFoundError:  # its run was fenced in this moment, and has taken its word back
            continue
    return found


def newest_descent(descents: Sequence[Descent]) -> Descent | None:
    """That of the newest run that has decided."""
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
