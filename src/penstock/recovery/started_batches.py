"""Where the job goes on reading when that is not what a checkpoint says: `begun/<run>.json`. Driver.

Three things are decided before a checkpoint knows of them:
1. At most once, a batch counts as done from the moment it begins: it is recorded first, then performed.
2. Sources that choose where to begin (the latest messages, say) do so at the job's first start. Until there is a checkpoint, that choice
   is all there is: without the record the next run would choose again, and miss what came in between. So it is with a source that is
   added to the job later.
3. Somebody sets the position of a source by choice. That happens once: the next run goes on there, and does not choose again.

A run takes the record of the run before it over as its own, before it begins anything: so the newest run that has a record knows all.
It does not matter how the run before it ended, or in which mode it was: what may be visible is not read again.
The record of a batch is written before the run looks whether it still owns the job and commits. So a run that takes over reads the
record of every batch of which anything can ever become visible.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec

from penstock.checkpoint.completed import Barrier, Completed
from penstock.decoding import decoded
from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.storage import Storage

_log = logging.getLogger(__name__)

_NAME = re.compile(r"begun/(\d+)\.json")


class BarrierOverride(msgspec.Struct, frozen=True):
    """Where reading goes on for somebody who goes on from this very checkpoint: not at its barrier."""

    checkpoint: int
    completed_by: int
    barrier: Barrier

    def is_of(self, completed: Completed) -> bool:
        """Whether it is about this one."""
        return (self.checkpoint, self.completed_by) == (completed.checkpoint, completed.run)


class StartedBatch(msgspec.Struct, frozen=True):
    """The last batch that must not be read again, and where it ends."""

    run: int
    barrier: Barrier
    batch: int = NO_CHECKPOINT
    """`NO_CHECKPOINT`: the sources have decided where to begin, and that is all."""
    instead: BarrierOverride | None = None
    """What was decided beside the newest checkpoint: where new sources begin, and positions that were set by choice."""
    positions_set: dict[str, Any] = {}
    """What was set by choice, as `Completed.positions_set` has it."""

    @property
    def id(self) -> CheckpointId:
        """The batch's number."""
        return CheckpointId(self.batch)

    @property
    def files(self) -> frozenset[str]:
        """The names in storage that must exist to go on there."""
        return self.barrier.files | (self.instead.barrier.files if self.instead else frozenset())


_DECODER = msgspec.json.Decoder(StartedBatch)  # made before there are threads, see `snapshot.mailbox`


def record_started(storage: Storage, begun: StartedBatch) -> None:
    """When this returns, no later run reads again what lies before the end of the batch."""
    storage.put(f"begun/{begun.run}.json", msgspec.json.encode(begun))


def last_started(storage: Storage) -> StartedBatch | None:
    """What the newest run that recorded anything had begun."""
    while records := _records(storage):
        name = records[max(records)]
        try:
            found = decoded(_DECODER, storage.get(name))
        except FileNotFoundError:
            _log.info("%s was taken over by another run in this moment", name)
        except msgspec.DecodeError as error:
            raise CorruptStateError(
                f"{name} in {storage.uri} is not readable: {error}. It says what must not be read again; bring it back from a copy, or "
                "delete it to go on from the newest checkpoint",
                name=name,
            ) from error
        else:
            return None if found == StartedBatch(found.run, Barrier()) else found
    return None


def resume_barrier(storage: Storage, completed: Completed) -> Barrier:
    """Where a run that goes on from this checkpoint reads on: at its end, or where that was decided otherwise beside it."""
    begun = last_started(storage)
    instead = begun.instead if begun else None
    return instead.barrier if instead is not None and instead.is_of(completed) else completed.barrier


def refuse_if_started_beyond(storage: Storage, completed: Completed) -> None:
    """For those who go on elsewhere from a checkpoint of a job that does not run: what it has begun behind it must not be read again."""
    begun = last_started(storage)
    if begun is not None and begun.id > completed.id:
        raise ConfigError(
            f"the job in {storage.uri} has begun batch {begun.id} at most once, behind checkpoint {completed.checkpoint}: who goes on from "
            "that would read it again. Start the job once more and stop it: its last checkpoint has all it has begun",
            batch=begun.id,
            checkpoint=completed.checkpoint,
        )


def inherit_started(storage: Storage, run: RunId, begun: StartedBatch | None) -> None:
    """Make what counts of earlier runs this run's own, also if that is nothing, then forget theirs.

    From here on a zombie that adds to its own record changes nothing; what it names may be deleted.
    """
    earlier = [name for number, name in _records(storage).items() if number < run]
    record_started(
        storage, msgspec.structs.replace(begun, run=run) if begun else StartedBatch(run, Barrier())
    )
    storage.delete(earlier)


def _records(storage: Storage) -> dict[int, str]:
    matches = (_NAME.fullmatch(name) for name in storage.names("begun"))
    return {int(match[1]): match[0] for match in matches if match}
