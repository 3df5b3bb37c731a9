"""The rows of one table of a savepoint or checkpoint, in parts, of which each task reads one. Driver and executors.

A part holds the key groups of one subtask. A reader of certain keys reads only the parts that own them, and of a savepoint's file only
the row groups that may hold them. Every file is looked at, size and checksum, before a row of it is used.
"""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.checkpoint.model import Completed, OperatorState
from penstock.checkpoint.state_columns import stored_layout
from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import CorruptStateError
from penstock.savepoint.manifest import SavedFile
from penstock.savepoint.table_files import read_table
from penstock.state.backends import backend_named
from penstock.state.backends.base import OpenState, StateLayout, TableLayout, Workplace
from penstock.state.backends.sorted_file import file_label
from penstock.state.handle import StateHandle
from penstock.state.keys import SORT_KEY, SortKeys, key_groups, owners
from penstock.state.lifetimes import LONG_AGO_US, StateTime
from penstock.storage import Storage

_MOST_NAMED = 3
"""Files of a subtask in an error."""


@dataclass(frozen=True)
class StoredSubtask:
    """The state of one subtask at a completed checkpoint, to be read as the subtask would: what has expired is not there."""

    storage: Storage
    layout: StateLayout
    handle: StateHandle
    parallelism: int
    max_parallelism: int
    time: StateTime
    former_uids: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, storage: Storage, completed: Completed, state: OperatorState, handle: StateHandle
    ) -> StoredSubtask:
        """That of a handle which the checkpoint names."""
        time = completed.barrier.time
        return cls(
            storage,
            stored_layout(state.columns),
            handle,
            completed.parallelism,
            completed.max_parallelism,
            StateTime(
                completed.now_us,
                {stamp: one.switched_on_us for stamp, one in state.lifetimes.items()},
                time.watermarks_us.get(handle.subtask.uid, LONG_AGO_US),
                time.clock_us or LONG_AGO_US,
            ),
            state.former_uids,
        )

    def open(self, scratch: Path, clock: Clock = SYSTEM_CLOCK) -> OpenState:
        """Open it for reading; files come to the folder `scratch`."""
        place = Workplace(
            storage=self.storage,
            local_dir=scratch,
            subtask=self.handle.subtask,
            parallelism=self.parallelism,
            max_parallelism=self.max_parallelism,
            version=self.handle.version,
            stem=f"savepoint-{self.handle.subtask.index}",
            former_uids=self.former_uids,
            clock=clock,
            time=self.time,
        )
        return backend_named(self.handle.backend).open(place, self.layout, self.handle)


class Part(ABC):
    """Rows of a table that belong to one subtask. Pickled into tasks."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The number of the subtask that wrote this part."""

    @abstractmethod
    def _read(self, scratch: Path, sort_keys: SortKeys | None) -> Iterator[pa.RecordBatch]:
        """The rows, with their sort numbers; with `sort_keys` at least those that have one of them."""

    def rows(self, sort_keys: SortKeys | None = None) -> Iterator[pa.RecordBatch]:
        """The rows with their sort numbers: all of them, or those with these sort keys, which are in ascending order."""
        with _scratch() as scratch:
            for batch in self._checked(scratch, sort_keys):
                found = batch if sort_keys is None else _among(batch, sort_keys)
                if found.num_rows:
                    yield found

    def _checked(self, scratch: Path, sort_keys: SortKeys | None) -> Iterator[pa.RecordBatch]:
        """The rows, each value of which can be used: a file may have a right checksum and be none of ours."""
        try:
            for batch in self._read(scratch, sort_keys):
                batch.validate(full=True)
                yield batch
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise CorruptStateError(
                f"{self.place} is corrupt: its rows cannot be read: {error}; nothing was changed; {self.instead}",
                place=self.place,
            ) from error

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the rows are, for people."""

    @property
    @abstractmethod
    def instead(self) -> str:
        """The advice in the error if they cannot be read."""


@dataclass(frozen=True)
class SavedPart(Part):
    """One file of a savepoint."""

    folder: Storage
    file: SavedFile
    table: TableLayout

    instead = "take another copy of the savepoint"

    @property
    @override
    def number(self) -> int:
        return self.file.part

    @property
    @override
    def place(self) -> str:
        return f"{self.file.path} of the savepoint {self.folder.uri}"

    def _read(self, scratch: Path, sort_keys: SortKeys | None) -> Iterator[pa.RecordBatch]:
        return read_table(self.folder, self.file, self.table, scratch, sort_keys)


@dataclass(frozen=True)
class CheckpointedPart(Part):
    """One table of a subtask of a checkpoint."""

    subtask: StoredSubtask
    table: str

    instead = "restore an older checkpoint"

    @property
    @override
    def number(self) -> int:
        return self.subtask.handle.subtask.index

    @property
    @override
    def place(self) -> str:
        handle = self.subtask.handle
        files = ", ".join(file_label(ref) for ref in handle.refs[:_MOST_NAMED])
        more = " or another" if len(handle.refs) > _MOST_NAMED else ""
        return f"state of {handle.subtask} ({files}{more}) in {self.subtask.storage.uri}"

    def _read(self, scratch: Path, sort_keys: SortKeys | None) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - all are read
        with closing(self.subtask.open(scratch)) as opened:
            yield from opened.table(self.table).numbered()


def owning(parts: Iterable[Part], sort_keys: SortKeys, parallelism: int) -> list[Part]:
    """The parts in which rows with these sort keys can be."""
    numbers = set(owners(key_groups(sort_keys), parallelism).tolist())
    return [part for part in parts if part.number in numbers]


def _among(batch: pa.RecordBatch, sort_keys: SortKeys) -> pa.RecordBatch:
    return batch.filter(pa.array(np.isin(batch.column(SORT_KEY).to_numpy(), sort_keys)))


@contextmanager
def _scratch() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="penstock-read-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
