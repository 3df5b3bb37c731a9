"""What checkpoints a job has, and whether each can be used. Reads storage only: no Spark, and nothing is changed. Driver."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.checkpoint.completed import Completed
from penstock.checkpoint.metadata import CheckpointName, found_checkpoints, read_metadata
from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.ids import RunId
from penstock.ownership.descent import Descent, read_descents, went_on_without
from penstock.recovery.history import read_history
from penstock.storage import Storage
from penstock.wording import counted


class Entry(msgspec.Struct, frozen=True):
    """One checkpoint: what its metadata holds (None if that is not readable, or gone) and why it cannot be used ('' if it can)."""

    checkpoint: int
    completed: Completed | None
    unusable: str = ""


def list_checkpoints(storage: Storage) -> list[Entry]:
    """All checkpoints that have metadata, and those that are known to have had it; oldest first."""
    descents = read_descents(storage)
    files = set(storage.names("state"))
    found = [_entry(storage, name, descents, files) for name in found_checkpoints(storage)]
    return sorted([*found, *_gone(storage, descents, found)], key=lambda entry: entry.checkpoint)


def _gone(storage: Storage, descents: Sequence[Descent], found: Sequence[Entry]) -> list[Entry]:
    """What a start would miss, by what else is there of it: a mark that it was committed, the record of a run."""
    try:
        broken = read_history(storage, descents).broken
    except IncompatibleStateError:
        return []  # one of those that were found is of another version, and says so
    listed = {entry.checkpoint for entry in found}
    return [Entry(number, None, why) for number, why in broken.items() if number not in listed]


def _entry(storage: Storage, name: CheckpointName, descents: Sequence[Descent], files: set[str]) -> Entry:
    try:
        completed = read_metadata(storage, name)
    except (CorruptStateError, IncompatibleStateError) as error:
        return Entry(name.checkpoint, None, str(error))
    except FileNotFoundError:
        return Entry(name.checkpoint, None, "it was discarded while this list was made")
    return Entry(name.checkpoint, completed, _why_unusable(completed, descents, files))


def _why_unusable(completed: Completed, descents: Sequence[Descent], files: set[str]) -> str:
    decided = went_on_without(completed.id, RunId(completed.run), descents)
    if decided is not None:
        return _left_behind(completed, decided)
    missing = sorted(completed.files - files)
    if missing:
        are = "is" if len(missing) == 1 else "are"
        return f"{len(missing)} of its {counted(len(completed.files), 'state file')} {are} gone, such as {missing[0]}"
    return ""


def _left_behind(completed: Completed, decided: Descent) -> str:
    if decided.run < completed.run:
        return (
            f"no record says where run {completed.run} went on from, and run {decided.run} is the newest that has one: "
            f"runs/{completed.run}.restored is gone, or the checkpoint is of another life of the job"
        )
    origin = f"checkpoint {decided.restored_from}" if decided.restored_from >= 0 else "the beginning"
    whose = f" of run {decided.completed_by}" if completed.checkpoint <= decided.restored_from else ""
    return f"run {completed.run} was fenced off: run {decided.run} went on from {origin}{whose}"
