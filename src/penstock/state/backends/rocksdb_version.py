"""The database of one version: found from a handle, taken over from former subtasks, named for the next. In tasks on executors.

The handle that `freeze` returns names one database that this subtask made at its present parallelism, so it holds keys of its own
key groups only. After a rescale a handle names the databases of several former subtasks; the keys that this subtask owns are then
copied into a new one when it is opened. So are all rows when a time to live was switched on or off: they have other columns then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial

from penstock.errors import ConfigError, InternalError
from penstock.state.backends.base import FileRef, StateLayout, Workplace
from penstock.state.backends.fetch import check_writers
from penstock.state.backends.rocksdb_database import (
    HEADER_KEY,
    MOST_TABLES,
    Database,
    DatabaseHeader,
    new_header,
    read_header,
    same_stamps,
)
from penstock.state.backends.rocksdb_folder import DatabaseFiles, WorkingFolder, split
from penstock.state.backends.rocksdb_rows import RowCodec, restamping
from penstock.state.keys import GROUP_SHIFT, groups_owned, owner

_BEFORE_ALL = b""
_BEHIND_ALL = bytes([MOST_TABLES + 1])
_COPIED_AT_ONCE_BYTES = 4 * 1024 * 1024


@dataclass
class WorkingVersion:
    """An open database, the files it came from, and whether it has changed since."""

    folder: WorkingFolder
    database: Database
    label: str
    before: DatabaseFiles | None
    changed: bool = False
    may_be_empty: bool = False
    written: int = 0
    """How many rows were set or deleted."""

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set keys to values, or delete them where the value is None."""
        self.changed = True
        self.written += len(keys)
        self.may_be_empty = self.may_be_empty or None in values
        self.database.put(keys, values)

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        return self.database.get(keys)

    def rows(self, start: bytes = _BEFORE_ALL, stop: bytes = _BEHIND_ALL) -> Iterator[tuple[bytes, bytes]]:
        """All rows from `start` to before `stop`, in order of their keys."""
        return self.database.rows(start, stop)

    def freeze(self) -> tuple[FileRef, ...]:
        """The files of what there is now; those from before when nothing has changed, none when no row is left."""
        if not self.changed:
            return (self.before.manifest, *self.before.tables) if self.before else ()
        if self.may_be_empty and next(self.rows(), None) is None:
            return ()
        self.database.settle()
        snapshot = self.folder.path / "snapshot"
        rows = self.database.snapshot(snapshot)
        return self.folder.name_files(snapshot, self.before, rows)

    def close(self) -> None:
        """Close the database and remove its folder."""
        try:
            self.database.close()
        finally:
            self.folder.remove()


def open_version(workplace: Workplace, layout: StateLayout, refs: Sequence[FileRef]) -> WorkingVersion:
    """Open the database that these references name, or a new one with what this subtask owns of several."""
    _check_number_of_tables(workplace, layout)
    sources = split(refs)
    folder = WorkingFolder.make(workplace)
    with ExitStack() as undo:
        undo.callback(folder.remove)
        version = _open(workplace, layout, folder, sources)
        undo.pop_all()
    return version


def _check_number_of_tables(workplace: Workplace, layout: StateLayout) -> None:
    """Rows of a table with a higher number would lie behind all that is looked at, and be lost."""
    tables = len(layout.by_name) - 1
    if tables > MOST_TABLES:
        raise ConfigError(
            f"operator {workplace.subtask.uid!r} has {tables} states with many rows a key, the backend 'rocksdb' has room for "
            f'{MOST_TABLES}; put several into one map, or choose backend="filesystem"',
            operator=workplace.subtask.uid,
        )


def _open(
    workplace: Workplace, layout: StateLayout, folder: WorkingFolder, sources: list[DatabaseFiles]
) -> WorkingVersion:
    if not sources:
        return _new(workplace, layout, folder)
    if len(sources) > 1:
        return _take_over(workplace, layout, folder, sources)
    (files,) = sources
    database = Database(
        folder.bring("database", files), files.label, changed_files=partial(folder.changed, files)
    )
    with ExitStack() as undo:
        undo.callback(database.close)
        header = _header(database, files, layout)
        check_writers(workplace, [(files.label, header)])
        own = (header.subtask, header.parallelism) == (workplace.subtask.index, workplace.parallelism)
        if own and same_stamps(header, layout):
            undo.pop_all()
            return WorkingVersion(folder, database, files.label, files)
    return _take_over(workplace, layout, folder, sources)


def _new(workplace: Workplace, layout: StateLayout, folder: WorkingFolder) -> WorkingVersion:
    label = workplace.new_name("")
    database = Database(folder.path / "new", label, create=True)
    database.put([HEADER_KEY], [new_header(workplace, layout)])
    return WorkingVersion(folder, database, label, None, may_be_empty=True)


def _take_over(
    workplace: Workplace, layout: StateLayout, folder: WorkingFolder, sources: list[DatabaseFiles]
) -> WorkingVersion:
    """A new database of the keys this subtask owns; it names no former file, so it counts as changed."""
    with ExitStack() as opened:
        former: dict[int, Former] = {}
        headers: list[DatabaseHeader] = []
        for number, files in enumerate(sources):
            source = Database(
                folder.bring(f"former-{number}", files),
                files.label,
                read_only=True,
                changed_files=partial(folder.changed, files),
            )
            opened.enter_context(closing(source))
            headers.append(_header(source, files, layout))
            former[headers[-1].subtask] = Former(source, headers[-1], layout)
        labels = [files.label for files in sources]
        check_writers(workplace, list(zip(labels, headers, strict=True)))
        if len(former) < len(sources):
            raise InternalError(
                f"the handle of {workplace.subtask} names two databases of the same former subtask: {headers}",
                subtask=str(workplace.subtask),
            )
        version = _new(workplace, layout, folder)
        with ExitStack() as undo:
            undo.callback(version.database.close)
            _copy_owned(workplace, layout, former, headers[0].parallelism, version)
            undo.pop_all()
    return version


class Former:
    """A database from which rows are taken over, as rows of this job: where it has other stamps, they are put in or left out."""

    def __init__(self, database: Database, header: DatabaseHeader, layout: StateLayout) -> None:
        self._database = database
        self._fitting = {
            number: restamping(table.stamps, layout.by_name[table.name], database.label)
            for number, table in enumerate(header.tables)
        }

    def rows(self, table: int, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The rows of a table from `start` to before `stop`."""
        rows, fitting = self._database.rows(start, stop), self._fitting[table]
        return rows if fitting is None else ((key, fitting(value)) for key, value in rows)


def _copy_owned(
    workplace: Workplace,
    layout: StateLayout,
    former: dict[int, Former],
    parallelism: int,
    version: WorkingVersion,
) -> None:
    """Table by table, and group by group, so that keys arrive in order."""
    version.changed = True
    keys: list[bytes] = []
    values: list[bytes] = []
    waiting = 0
    for number, table in enumerate(layout.by_name.values()):
        codec = RowCodec(table, number)
        owned = _owned_by_time if table.by_time else _owned
        for key, value in owned(workplace, codec, former, parallelism):
            keys.append(key)
            values.append(value)
            waiting += len(key) + len(value)
            if waiting >= _COPIED_AT_ONCE_BYTES:
                version.database.put(keys, values)
                keys, values, waiting = [], [], 0
    version.database.put(keys, values)


def _owned(
    workplace: Workplace, codec: RowCodec, former: dict[int, Former], parallelism: int
) -> Iterator[tuple[bytes, bytes]]:
    """The rows of the subtask's key groups; each group was owned by one former subtask."""
    for group in groups_owned(workplace.subtask.index, workplace.parallelism, workplace.max_parallelism):
        source = former.get(owner(group, parallelism))
        if source is not None:
            start, stop = (codec.start_of(one << GROUP_SHIFT) for one in (group, group + 1))
            yield from source.rows(codec.number, start, stop)


def _owned_by_time(
    workplace: Workplace,
    codec: RowCodec,
    former: dict[int, Former],
    parallelism: int,  # noqa: ARG001
) -> Iterator[tuple[bytes, bytes]]:
    """The same for rows that lie in the order of time: all have to be looked at."""
    for source in former.values():
        for key, value in source.rows(codec.number, *codec.bounds):
            if owner(codec.group_of(key), workplace.parallelism) == workplace.subtask.index:
                yield key, value


def _header(database: Database, files: DatabaseFiles, layout: StateLayout) -> DatabaseHeader:
    (record,) = database.get([HEADER_KEY])
    return read_header(record, files.label, layout)
