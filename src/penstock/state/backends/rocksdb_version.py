"""The RocksDB database of one version: opened from a handle, copied from former subtasks, and named for the next handle.

Runs in tasks on executors. The handle that `freeze` returns names one database that this subtask made at its present parallelism, so it
holds only keys of its own key groups. After a rescale a handle names the databases of several former subtasks. Opening it copies the keys
that this subtask owns into a new database. All rows are copied as well when a time to live was switched on or off, because their
columns change.

A version of a database is a manifest and the tables that it lists. Invariants:
1. A table is never changed after it was written, and its number is never used again in databases that descend from it. So a working
   folder holds hard links to the local copies, and a file that came with the previous handle keeps its name: checkpoints are incremental.
2. RocksDB may append to a manifest, so a manifest is copied, never linked.
3. In a handle every database begins with its manifest, which separates the files of several databases. CURRENT, which only names the
   valid manifest, is created anew; no other file is needed to open the database.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from penstock.errors import ConfigError, CorruptStateError, InternalError
from penstock.ids import SYSTEM_RANDOMNESS
from penstock.state.backends.base import FileRef, StateLayout, Workplace
from penstock.state.backends.fetch import check_writers, local_file
from penstock.state.backends.rocksdb_database import (
    HEADER_KEY,
    MOST_TABLES,
    Database,
    DatabaseHeader,
    new_header,
    read_header,
    same_stamps,
)
from penstock.state.backends.rocksdb_rows import RowCodec, restamping
from penstock.state.keys import GROUP_SHIFT, groups_owned, owner
from penstock.state.local_files import HASHED_FILES, working_files
from penstock.storage.file_system import link_or_copy

_MANIFEST = re.compile(r"MANIFEST-\d{1,20}")
_TABLE = re.compile(r"\d{1,20}\.sst")


@dataclass(frozen=True)
class DatabaseFiles:
    """One version of one database, as a handle names it."""

    manifest: FileRef
    tables: tuple[FileRef, ...]

    @property
    def label(self) -> str:
        """How messages call the database."""
        return self.manifest.name


def split(refs: Sequence[FileRef]) -> list[DatabaseFiles]:
    """The databases in a handle, each once; after a rescale there are those of several former subtasks."""
    found: list[list[FileRef]] = []
    for ref in refs:
        if _MANIFEST.fullmatch(ref.file):
            found.append([ref])
        elif found and _TABLE.fullmatch(ref.file):
            found[-1].append(ref)
        else:
            raise CorruptStateError(
                f"{ref.name or ref.checksum} stands in the checkpoint as {ref.file!r}, which is no file of a database "
                "in this place; restore an older checkpoint",
                file=ref.name,
                database_file=ref.file,
            )
    return list(dict.fromkeys(DatabaseFiles(manifest, tuple(tables)) for manifest, *tables in found))


@dataclass(frozen=True)
class WorkingFolder:
    """The folder in which one attempt keeps its databases while it works. No other attempt uses it."""

    workplace: Workplace
    path: Path

    @classmethod
    def make(cls, workplace: Workplace) -> WorkingFolder:
        """Create the folder, and remove folders that killed attempts of earlier batches left."""
        versions = workplace.local_dir / "rocksdb" / str(workplace.subtask)
        path = versions / str(workplace.version) / f"{workplace.stem}-{SYSTEM_RANDOMNESS.token(8)}"
        with working_files(path):
            path.mkdir(parents=True)
            for former in os.scandir(versions):
                if former.name.isdigit() and int(former.name) < workplace.version:
                    shutil.rmtree(former.path, ignore_errors=True)
        return cls(workplace, path)

    def bring(self, name: str, files: DatabaseFiles) -> Path:
        """A folder in which RocksDB can open the database; files that are not on this machine are fetched and verified."""
        folder = self.path / name
        with working_files(folder):
            folder.mkdir()
            for table in files.tables:
                link_or_copy(local_file(self.workplace, table), folder / table.file)
            shutil.copyfile(local_file(self.workplace, files.manifest), folder / files.manifest.file)
            (folder / "CURRENT").write_text(f"{files.manifest.file}\n")
        return folder

    def changed(self, files: DatabaseFiles) -> list[str]:
        """The working files of a database that differ from the stored ones. All files are hashed again."""
        found = []
        for ref in (files.manifest, *files.tables):
            local = self.workplace.local_path(ref.name)
            if local.is_file() and HASHED_FILES.hash(local) != (ref.size, ref.checksum):
                found.append(ref.name)
        return found

    def name_files(
        self, snapshot: Path, before: DatabaseFiles | None, rows: Mapping[str, tuple[int, int]]
    ) -> tuple[FileRef, ...]:
        """The references that name the files of a snapshot; new ones lie under their names on this machine when this returns.

        `rows` has the rows and tombstones of the tables that are new.
        """
        known = {(ref.file, ref.size): ref for ref in before.tables} if before else {}
        with working_files(snapshot):
            manifest = (snapshot / "CURRENT").read_text().strip()
            tables = sorted(
                (entry for entry in os.scandir(snapshot) if _TABLE.fullmatch(entry.name)), key=_newest
            )
            return (
                self._name_file(snapshot / manifest, (0, 0)),
                *(
                    known.get((table.name, table.stat().st_size))
                    or self._name_file(Path(table.path), rows.get(table.name, (0, 0)))
                    for table in tables
                ),
            )

    def remove(self) -> None:
        """Forget the folder, and the one of its batch when it was the last in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        with suppress(OSError):
            self.path.parent.rmdir()

    def _name_file(self, path: Path, rows: tuple[int, int]) -> FileRef:
        name = self.workplace.new_name(f"-{path.name}")
        local = self.workplace.local_path(name)
        local.parent.mkdir(parents=True, exist_ok=True)
        local.unlink(missing_ok=True)
        link_or_copy(path, local)
        size, checksum = HASHED_FILES.hash(local)
        return FileRef(
            rows=rows[0], size=size, checksum=checksum, name=name, tombstones=rows[1], file=path.name
        )


def _newest(table: os.DirEntry[str]) -> int:
    return -int(table.name.partition(".")[0])


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
        """The files of the current rows: the previous ones if nothing has changed, none if no row is left."""
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
    """Refuse a table with a higher number: its rows would be after all known tables, and be lost."""
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
