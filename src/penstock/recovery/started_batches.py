"""Where reading resumes if that is not the barrier of a checkpoint: `begun/<run>.json`. Driver.

Three decisions are made before a checkpoint includes them:
1. At most once, a batch counts as read from the moment it starts: it is recorded first, then performed.
2. Sources that choose where to start (at the latest messages, say) do so at the job's first start. Until a checkpoint completes, only this
   record holds the choice: without it the next run would choose again and miss what came in between. The same holds for a source that is
   added to the job later.
3. The user sets the position of a source. That happens once: the next run resumes there, and does not set it again.

A run takes over the record of the run before it before it starts anything, so the newest record is complete. It does not matter how the
earlier run ended, or in which mode it was: what may be visible is not read again. The record of a batch is written before the run checks
its claim and commits, so a run that takes over reads the record of every batch of which anything can ever become visible.
"""

from __future__ import annotations

import logging
import re
from typing import Any

import msgspec

from penstock.checkpoint.model import Barrier, Completed
from penstock.decoding import decoded
from penstock.errors import ConfigError, CorruptStateError
from penstock.ids import NO_CHECKPOINT, CheckpointId, RunId
from penstock.storage import Storage

_log = logging.getLogger(__name__)

_NAME = re.compile(r"begun/(\d+)\.json")


class BarrierOverride(msgspec.Struct, frozen=True):
    """Where a run that restores this very checkpoint resumes reading, instead of at its barrier."""

    checkpoint: int
    completed_by: int
    barrier: Barrier

    def is_of(self, completed: Completed) -> bool:
        """Whether it applies to this checkpoint."""
        return (self.checkpoint, self.completed_by) == (completed.checkpoint, completed.run)


class StartedBatch(msgspec.Struct, frozen=True):
    """The last batch that must not be read again, and where it ends."""

    run: int
    barrier: Barrier
    batch: int = NO_CHECKPOINT
    """`NO_CHECKPOINT`: only the sources have chosen where to start."""
    instead: BarrierOverride | None = None
    """Decisions made after the newest checkpoint: where new sources start, and positions set by choice."""
    positions_set: dict[str, Any] = {}
    """The positions set by choice, as in `Completed.positions_set`."""

    @property
    def id(self) -> CheckpointId:
        """The number of the batch, as a checkpoint id."""
        return CheckpointId(self.batch)

    @property
    def files(self) -> frozenset[str]:
        """The names in storage that must exist to resume there."""
        return self.barrier.files | (self.instead.barrier.files if self.instead else frozenset())


_DECODER = msgspec.json.Decoder(StartedBatch)  # made before there are threads, see `snapshot.mailbox`


def record_started(storage: Storage, begun: StartedBatch) -> None:
    """Write the record. From then on no later run reads anything before the end of the batch again."""
    storage.put(f"begun/{begun.run}.json", msgspec.json.encode(begun))


def last_started(storage: Storage) -> StartedBatch | None:
    """The record of the newest run that has one."""
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
    """Where a run that restores this checkpoint resumes reading: at its barrier, or where a later decision says."""
    begun = last_started(storage)
    instead = begun.instead if begun else None
    return instead.barrier if instead is not None and instead.is_of(completed) else completed.barrier


def refuse_if_started_beyond(storage: Storage, completed: Completed) -> None:
    """Refuse to copy a checkpoint of a stopped job if a later batch was started: it must not be read again elsewhere."""
    begun = last_started(storage)
    if begun is not None and begun.id > completed.id:
        raise ConfigError(
            f"the at-most-once job in {storage.uri} has started batch {begun.id} after checkpoint {completed.checkpoint}: a start "
            "from this checkpoint would read the batch again. Start the job once more and stop it: its last checkpoint includes the batch",
            batch=begun.id,
            checkpoint=completed.checkpoint,
        )


def inherit_started(storage: Storage, run: RunId, begun: StartedBatch | None) -> None:
    """Make the record of earlier runs this run's own, even if it is empty, then delete theirs.

    From then on a zombie that writes its own record changes nothing; the files that it names may be deleted.
    """
    earlier = [name for number, name in _records(storage).items() if number < run]
    record_started(
        storage, msgspec.structs.replace(begun, run=run) if begun else StartedBatch(run, Barrier())
    )
    storage.delete(earlier)


def _records(storage: Storage) -> dict[int, str]:
    matches = (_NAME.fullmatch(name) for name in storage.names("begun"))
    return {int(match[1]): match[0] for match in matches if match}
