"""The interface of a state backend. Runs in tasks on executors.

Two tasks of the same subtask in consecutive batches run in different worker processes, on any machine. So nothing
may live only in a worker's memory: a version is found again from its handle alone.
"""

from __future__ import annotations

import enum
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.ids import SubtaskId
from penstock.state.handle import FileRef, StateHandle, state_stem
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import TIMELESS, Expiry, Lifetime, Moment, StateTime
from penstock.state.local_files import MERGED, Origins
from penstock.state.sizes import PART_BYTES
from penstock.storage import Storage

VALUES = "__values"
"""The table that every operator has: one row a key."""


class OnRescale(enum.Enum):
    """Which subtasks get the rows of a table after a change of parallelism."""

    BY_KEY = "by key"
    """The new owner of their key. All others are of tables in which the subtask itself is the key, see `state.subtask_rows`."""
    SPLIT = "split"
    """All rows are dealt out evenly, in their order."""
    WHOLE = "whole"
    """Everyone gets all rows."""
    COPY = "copy"
    """Everyone has the same rows already; a new subtask gets those of one former."""


@dataclass(frozen=True)
class Parts:
    """What may change in an operator's state from one version of the job to the next. Here: nothing, the state is a single part.

    A subclass divides the state into parts that may be added and removed. A part has one or more columns of the row of a key, or tables.
    """

    divisible: ClassVar[bool] = False
    """Whether there are parts."""
    may_begin_empty: ClassVar[bool] = False
    """Whether a part that is new may begin with nothing of what came before."""

    def of_column(self, column: str) -> str:
        """The part that a column of the row of a key belongs to."""
        return column

    def of_table(self, table: str) -> str:
        """The part that a table belongs to."""
        return table

    def first_value(self, column: str) -> object | None:  # noqa: ARG002
        """The value that existing keys have in a new column."""
        return None

    def column_words(self, column: str) -> str:  # noqa: ARG002
        """The role of a column within a part of several columns."""
        return ""

    def table_words(self, table: str) -> str:  # noqa: ARG002
        """The role of a table, if its columns do not show it."""
        return ""


_WHOLE = Parts()


@dataclass(frozen=True)
class TableLayout:
    """One table of an operator's state: `identity` are the columns that identify a row, the operator's key first.

    `ordered`: a key may have many rows, sorted by a second number. `by_time`: that number comes first, so
    that rows are in its order across all keys. `lifetimes`: which columns expire; their stamps are the last columns of `value`.
    """

    name: str
    identity: pa.Schema
    value: pa.Schema
    ordered: bool = True
    by_time: bool = False
    lifetimes: tuple[Lifetime, ...] = ()
    on_rescale: OnRescale = OnRescale.BY_KEY

    @property
    def visible(self) -> pa.Schema:
        """The value columns without the stamps of lifetimes."""
        return visible(self.value, self.lifetimes)

    def expiry(self, time: StateTime) -> Expiry | None:
        """Finds expired values in its rows; None if nothing in the table expires."""
        return Expiry(self.value.names, self.lifetimes, time, rows=self.ordered) if self.lifetimes else None


def visible(value: pa.Schema, lifetimes: tuple[Lifetime, ...]) -> pa.Schema:
    """The columns of a row of values without the stamps at its end."""
    return pa.schema(list(value)[: len(value) - len(lifetimes)])


def with_stamps(value: pa.Schema, lifetimes: tuple[Lifetime, ...]) -> pa.Schema:
    """The columns of a row of values with a stamp for each lifetime."""
    return pa.schema([*value, *(lifetime.stamp_field for lifetime in lifetimes)])


@dataclass(frozen=True)
class StateLayout:
    """The typed columns of an operator's state: which key, which values of a key, and which tables with rows of their own."""

    key: pa.Schema
    value: pa.Schema
    tables: tuple[TableLayout, ...] = ()
    lifetimes: tuple[Lifetime, ...] = ()
    parts: Parts = _WHOLE

    @property
    def by_name(self) -> dict[str, TableLayout]:
        """All tables, that of the values first."""
        values = TableLayout(VALUES, self.key, self.value, ordered=False, lifetimes=self.lifetimes)
        return {table.name: table for table in (values, *self.tables)}

    @property
    def of_subtasks(self) -> tuple[TableLayout, ...]:
        """The tables whose rows belong to a subtask and not to a key."""
        return tuple(table for table in self.tables if table.on_rescale is not OnRescale.BY_KEY)


FormerUids = Mapping[str, tuple[str, ...]]
"""By operator: the uids that it had before, under which some of its files may have been written."""


class RunOnAMachine(Protocol):
    """The facts about a run that every task gets."""

    @property
    def storage(self) -> Storage: ...
    @property
    def local_dir(self) -> Path: ...
    @property
    def run(self) -> int: ...
    @property
    def parallelism(self) -> int: ...
    @property
    def max_parallelism(self) -> int: ...
    @property
    def former_uids(self) -> FormerUids: ...


@dataclass(frozen=True)
class Workplace:
    """The files and times that one attempt of a subtask in one batch may use.

    `local_dir` holds working files of this machine; any of them may be missing at any time and is then fetched from storage.
    A file named 'state/views/3-17-0-42.arrow' lies locally at local_dir/'state/views/3-17-0-42.arrow'.
    `stem` is unique among all attempts of all runs, so a file is never written twice.
    `merging` names files that a background merge is about to replace; nothing else may merge them meanwhile.
    `arriving` names files that another machine may still be uploading, where the previous version was frozen.
    `origins` counts the files that had to be fetched.
    `time` decides which values have expired.
    """

    storage: Storage
    local_dir: Path
    subtask: SubtaskId
    parallelism: int
    max_parallelism: int
    version: int
    stem: str
    merging: frozenset[str] = frozenset()
    arriving: frozenset[str] = frozenset()
    clock: Clock = SYSTEM_CLOCK
    origins: Origins = field(default_factory=Origins)
    time: StateTime = TIMELESS
    former_uids: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        place: RunOnAMachine,
        subtask: SubtaskId,
        *,
        version: int,
        attempt: int,
        merging: frozenset[str] = frozenset(),
        arriving: frozenset[str] = frozenset(),
        clock: Clock = SYSTEM_CLOCK,
        time: StateTime = TIMELESS,
    ) -> Self:
        """The workplace of one attempt of a run."""
        return cls(
            storage=place.storage,
            local_dir=place.local_dir,
            subtask=subtask,
            parallelism=place.parallelism,
            max_parallelism=place.max_parallelism,
            version=version,
            stem=state_stem(place.run, version, subtask.index, attempt),
            merging=merging,
            arriving=arriving,
            clock=clock,
            time=time,
            former_uids=tuple(place.former_uids.get(subtask.uid, ())),
        )

    def new_name(self, suffix: str) -> str:
        """A storage name for a file of this attempt; `suffix` distinguishes its files."""
        return f"state/{self.subtask.uid}/{self.stem}{suffix}"

    def local_path(self, name: str) -> Path:
        """Where a storage name lies on this machine."""
        return self.local_dir / name

    def merged_path(self, name: str) -> Path:
        """Where a merged file waits on this machine until a handle names it."""
        return self.local_dir / MERGED / name


Part = tuple[pa.RecordBatch, npt.NDArray[np.bool_]]


@dataclass(frozen=True)
class RowsOfKeys:
    """The rows of several keys in a table: key i has the rows `starts[i]` to `starts[i + 1]` (identity columns, then values).

    A key that has too many is left out, and looks as if it had none. Of the keys that were asked for, these may be the first only.
    """

    starts: npt.NDArray[np.int64]
    rows: pa.RecordBatch
    left_out: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        """The number of keys that were read."""
        return len(self.left_out)


class OneKey(ABC):
    """The rows of one key in a table, read one by one or in order. Writes of this batch are not visible."""

    @abstractmethod
    def get(self, sub: pa.Array, order: int) -> pa.RecordBatch | None:
        """The values of one row, or None. `sub` identifies the row within its key, `order` is its second sort number."""

    @abstractmethod
    def scan(self) -> Iterator[pa.RecordBatch]:
        """All rows in their order, in parts that fit into memory: identity columns, then values."""


class OpenTable(ABC):
    """One table of the state of one subtask. Reads see the previous version; each row is written at most once in a batch.

    No read returns expired values. Stamps are read and written as columns after the values.
    """

    @abstractmethod
    def read_parts(self, rows: KeyBatch, max_bytes: int) -> Iterator[Part]:
        """The values of these rows, with nulls for missing rows, and flags of the rows that were found.

        In parts in the order of the rows, each of about `max_bytes` at most unless it is a single row; at least one part. A part is read
        only when it is requested, so that the rows of the previous part may be written in between.
        Rows must be in ascending order of both sort numbers: the sort key first, in a table by time, the time first.
        """

    @abstractmethod
    def read(self, rows: KeyBatch) -> Part:
        """The same in one part, for values that are known to fit into memory."""

    @abstractmethod
    def rows_of(self, keys: KeyBatch, at_most: int, max_bytes: int = PART_BYTES) -> RowsOfKeys:
        """All rows of these keys, except keys with more than about this many rows or bytes.

        It reads as many keys as take about `max_bytes` together, at least one. The caller continues with the next key.
        """

    @abstractmethod
    def one_key(self, key: KeyBatch) -> OneKey:
        """The rows of a key, however many; `key` has one."""

    @abstractmethod
    def until(self, time: int, after: int | None = None) -> Iterator[pa.RecordBatch]:
        """Of a table by time the rows up to and with this number, in their order: `__sort_key`, identity columns, values.

        Without those up to and with `after`: they are not even looked at. To be read before this batch writes to the table: whether
        what it writes is seen depends on the backend.
        """

    @abstractmethod
    def at(self, time: int, sort_key: int) -> Iterator[pa.RecordBatch]:
        """The same of the rows at just this number that have this sort key: others at the same time are not looked at."""

    @abstractmethod
    def write(
        self, rows: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Set these rows, in any order; where `deleted` is true the row is forgotten instead."""

    @abstractmethod
    def scan(self) -> Iterator[pa.RecordBatch]:
        """All live rows of the subtask's own key groups, in order: `__sort_key`, identity columns, values. For inspection."""

    @abstractmethod
    def numbered(self) -> Iterator[pa.RecordBatch]:
        """The same rows, with `__order` after `__sort_key` if a key may have many rows: all that is needed to write them elsewhere."""


class OpenState(ABC):
    """The state of one subtask, open at one version, for the length of one batch.

    Within one batch every key is read at most once and written at most once, and both come in ascending order of sort key:
    `read(a); write(a'); read(b); write(b')` with all of a before all of b.
    """

    backend: str
    """The name of its backend."""

    def __init__(
        self, workplace: Workplace, tables: Mapping[str, OpenTable], before: StateHandle | None
    ) -> None:
        self.generation = 1 if before is None else before.generation + 1
        """That of the version which this batch makes: higher than that of anything it can read."""
        self._workplace = workplace
        self._by_name = tables
        self._values = tables[VALUES]

    @property
    def now_us(self) -> int:
        """The time of the batch: what is touched in it has this stamp."""
        return self._workplace.time.now_us

    def read_parts(self, keys: KeyBatch, max_bytes: int) -> Iterator[Part]:
        """The values of these keys, as `OpenTable.read_parts` gives them."""
        return self._values.read_parts(keys, max_bytes)

    def read(self, keys: KeyBatch) -> Part:
        """`read_parts` in one part, for values that are known to fit into memory."""
        (part,) = self.read_parts(keys, sys.maxsize)
        return part

    def write(
        self, keys: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """Replace the values of these keys; where `deleted` is true the key is forgotten instead."""
        self._values.write(keys, values, deleted)

    def table(self, name: str) -> OpenTable:
        """One of the tables that the layout names besides the values."""
        return self._by_name[name]

    def scan(self) -> Iterator[pa.RecordBatch]:
        """All live rows of the subtask's own key groups, with writes of this batch: `__sort_key`, key columns, value columns.

        For inspection, not for batches.
        """
        return self._values.scan()

    def _handle(self, refs: tuple[FileRef, ...]) -> StateHandle:
        return StateHandle(
            subtask=self._workplace.subtask,
            backend=self.backend,
            version=self._workplace.version,
            refs=refs,
            generation=self.generation,
        )

    @abstractmethod
    def purge(self) -> None:
        """Make sure that nothing that has expired is left in the version that `freeze` ends, at any cost. Called right before it."""

    @abstractmethod
    def freeze(self) -> StateHandle:
        """End the batch: the synchronous part of the snapshot. Local files are complete when it returns.

        Called once, after the last write. When nothing was written the handle names the same files as before. No upload here.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of maps and files; also after a failure."""


class StateBackend(ABC):
    """A kind of backend, with its settings. Pickled into tasks."""

    name: str

    @abstractmethod
    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> OpenState:
        """Open the version that `handle` names (`None`: empty state). Raises `CorruptStateError` when a file is not what it should be.

        After a change of parallelism the handle names files of several former subtasks, with keys that this one does not own:
        they are never asked for, are dropped when files are merged, and are left out by `scan`.
        """

    def choose_merge(self, refs: Sequence[FileRef], now: Moment) -> range | None:  # noqa: ARG002
        """Chooses adjacent files, newest first, for a background merge, or None. Pure; on the driver.

        A single file is rewritten without its expired values.
        A backend that manages its own files need not override it.
        """
        return None

    def merge(
        self, workplace: Workplace, layout: StateLayout, refs: Sequence[FileRef], *, oldest: bool
    ) -> FileRef | None:
        """Make one file of several and leave it at `workplace.merged_path`; None when no row is left.

        Called in the background of a worker, while batches go on. The files are verified first: a damaged file must not get
        a new checksum. `oldest`: there is no older file, so tombstones can go.
        """
        raise NotImplementedError


__all__ = [
    "VALUES",
    "FileRef",
    "KeyBatch",
    "OnRescale",
    "OneKey",
    "OpenState",
    "OpenTable",
    "Parts",
    "RowsOfKeys",
    "StateBackend",
    "StateHandle",
    "StateLayout",
    "TableLayout",
    "Workplace",
]
