"""What lies in the storage of a job."""

from __future__ import annotations

from penstock.checkpoint.metadata import found_checkpoints
from penstock.ids import CheckpointId
from penstock.storage import Storage


def checkpoint_ids(storage: Storage) -> list[CheckpointId]:
    """The numbers of all checkpoints that have metadata, valid or not, ascending."""
    return [name.checkpoint for name in found_checkpoints(storage)]
