"""One open RocksDB database of bytes, for the length of one batch. Runs in tasks on executors.

The only module that imports `rocksdict`, so only `penstock[rocksdb]` needs it.

A batch writes a memtable and flushes it as one more table, a "sorted run" to RocksDB; there is no write-ahead log, since what was not
frozen does not exist. They are merged by size tiers, as in the backend `filesystem` (RocksDB calls it universal):
sort keys are hashes, so every batch touches all of their range, and merging into levels would write the whole state
again every few batches. RocksDB merges in the background, and a merge that is not done when the database is closed
is lost; so `settle` waits for one that must come. That bounds the number of runs by `MAX_SORTED_RUNS`; a writer
that is too fast for it within one batch is held up by RocksDB itself at `STOP_SORTED_RUNS`.

What a database of state says about itself: who wrote it, and which columns its rows have. Runs in tasks on executors.

It is one record under a key that no row can have, written when the database is made. Another such record is the cursor of
`rocksdb_expiry`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa
import rocksdict as rd

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import CorruptStateError, IncompatibleStateError, UnavailableError
from penstock.state.backends.base import StateLayout, TableLayout, Workplace
from penstock.state.backends.sorted_file import other_columns

HEADER_KEY = b"\xffpenstock"
"""Behind all rows: they begin with the number of their table, which is at most `MOST_TABLES`."""

CURSOR_KEY = b"\xffcursor"
"""The key of the cursor of the search for expired rows: after all rows, before the header."""

MOST_TABLES = 127
FORMAT_VERSION = 2


class DatabaseTable(msgspec.Struct, frozen=True):
    """A table, with its columns as Arrow's own schema messages."""

    name: str
    identity: bytes
    value: bytes
    ordered: bool
    by_time: bool
    stamps: tuple[str, ...] = ()
    """The last columns of the values, which are stamps of values with a time to live."""


class DatabaseHeader(msgspec.Struct, frozen=True):
    """The writer, and the tables in the order of their numbers."""

    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    tables: tuple[DatabaseTable, ...] = ()
    format: int = FORMAT_VERSION


_HEADERS = msgspec.msgpack.Decoder(DatabaseHeader)


def new_header(workplace: Workplace, layout: StateLayout) -> bytes:
    """The record of a database that this attempt makes."""
    return msgspec.msgpack.encode(
        DatabaseHeader(
            uid=workplace.subtask.uid,
            subtask=workplace.subtask.index,
            parallelism=workplace.parallelism,
            max_parallelism=workplace.max_parallelism,
            tables=tuple(_stored(table) for table in layout.by_name.values()),
        )
    )


def _stored(table: TableLayout) -> DatabaseTable:
    identity, value = (
        schema.remove_metadata().serialize().to_pybytes() for schema in (table.identity, table.value)
    )
    return DatabaseTable(table.name, identity, value, table.ordered, table.by_time, _stamps(table))


def _stamps(table: TableLayout) -> tuple[str, ...]:
    return tuple(lifetime.stamp for lifetime in table.lifetimes)


def read_header(record: bytes | None, label: str, layout: StateLayout) -> DatabaseHeader:
    """The header, if this is state of these columns; `label` names the database in errors."""
    if record is None:
        raise CorruptStateError(
            f"the database of {label} has no header, so it is no state of Penstock; restore an older checkpoint",
            file=label,
        )
    try:
        header = _HEADERS.decode(record)
        stored = {table.name: _layout(table) for table in header.tables}
    except (msgspec.MsgspecError, pa.ArrowException, OSError) as cause:
        raise CorruptStateError(
            f"the header of the database of {label} cannot be read: {cause!r}; restore an older checkpoint",
            file=label,
        ) from cause
    if header.format != FORMAT_VERSION:
        raise IncompatibleStateError(
            f"the database of {label} has format {header.format}, this version of Penstock reads format "
            f"{FORMAT_VERSION}; use the version that wrote it, or start from another checkpoint",
            file=label,
            expected=FORMAT_VERSION,
            found=header.format,
        )
    wanted = layout.by_name
    for name, table in stored.items():
        if not _same(table, wanted.get(name)):
            columns = [*table.identity, *table.visible]
            raise other_columns(label, columns, len(table.identity), wanted.get(name), name)
    if list(stored) != list(wanted):
        raise IncompatibleStateError(
            f"the database of {label} has the tables {', '.join(stored)}, the job has {', '.join(wanted)}; "
            "change the job back, or start from another checkpoint",
            file=label,
        )
    return header


def same_stamps(header: DatabaseHeader, layout: StateLayout) -> bool:
    """Whether rows are written as they are stored. Otherwise a time to live was switched on or off."""
    return all(table.stamps == _stamps(layout.by_name[table.name]) for table in header.tables)


def _layout(table: DatabaseTable) -> StoredColumns:
    identity, value = (pa.ipc.read_schema(pa.py_buffer(schema)) for schema in (table.identity, table.value))
    visible = pa.schema(list(value)[: len(value) - len(table.stamps)])
    return StoredColumns(identity, visible, (table.ordered, table.by_time))


@dataclass(frozen=True)
class StoredColumns:
    """The identity columns of a stored table, its values without stamps, and the order of its rows."""

    identity: pa.Schema
    visible: pa.Schema
    order: tuple[bool, bool]


def _same(stored: StoredColumns, wanted: TableLayout | None) -> bool:
    if wanted is None or stored.order != (wanted.ordered, wanted.by_time):
        return False
    pairs = ((stored.identity, wanted.identity), (stored.visible, wanted.visible))
    return all(one.names == other.names and one.types == other.types for one, other in pairs)


MAX_SORTED_RUNS = 4
STOP_SORTED_RUNS = 24
WRITE_BUFFER_BYTES = 64 * 1024 * 1024
CACHE_BYTES = 32 * 1024 * 1024
_POLL_S = 0.001
_PATIENCE_S = 10.0  # for a merge that must come and does not begin; the next batch tries again

_CORRUPT = ("Corruption", "Invalid argument", "Not found")
_NO_FILE = "No such file"


class Database:
    """Keys and values as bytes; `label` names it in errors.

    `changed_files` is asked when RocksDB finds damage: which files are not what came from storage. They are fetched again at the next try.
    """

    def __init__(
        self,
        folder: Path,
        label: str,
        *,
        create: bool = False,
        read_only: bool = False,
        changed_files: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._folder = folder
        self._label = label
        self._changed_files = changed_files
        self._brought: frozenset[str] = frozenset()
        self._opened = False
        access = rd.AccessType.read_only() if read_only else rd.AccessType.read_write()
        self._unlogged = rd.WriteOptions()
        self._unlogged.disable_wal = True  # type: ignore[assignment,method-assign]  # the stubs call it a method
        with self._explained():
            self._brought = frozenset() if create else frozenset(path.name for path in folder.iterdir())
            self._db = rd.Rdict(str(folder), _options(create=create), access_type=access)
            self._opened = True

    @property
    def label(self) -> str:
        """The name of the database in errors."""
        return self._label

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""
        get = self._db.get
        with self._explained():
            # One by one: from Python the call for many keys takes longer.
            return [get(key) for key in keys]

    def put(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> None:
        """Set each key to its value, or delete it where the value is None."""
        batch = rd.WriteBatch(raw_mode=True)
        for key, value in zip(keys, values, strict=True):
            if value is None:
                del batch[key]
            else:
                batch[key] = value
        with self._explained():
            self._db.write(batch, self._unlogged)

    def rows(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        """All keys from `start` to before `stop`, in order."""
        bounds = rd.ReadOptions()
        bounds.set_iterate_upper_bound(stop)
        # Not `items`: it ends without a word at a block that cannot be read.
        with self._explained():
            cursor = self._db.iter(bounds)
            cursor.seek(start)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        with self._explained():
            cursor.status()

    def settle(self) -> None:
        """Flush what was written, and wait until RocksDB has merged what it must."""
        with self._explained():
            self._db.flush()
            idle_s = 0.0
            while idle_s < _PATIENCE_S:
                if self._property("background-errors"):
                    raise self._unavailable("a merge of its files failed")
                if self._property("num-running-compactions"):
                    idle_s = 0.0
                elif self._sorted_runs() <= MAX_SORTED_RUNS:
                    return
                SYSTEM_CLOCK.sleep(_POLL_S)
                idle_s += _POLL_S

    def snapshot(self, folder: Path) -> dict[str, tuple[int, int]]:
        """Make `folder` a copy of the database, by hard links; returns rows and tombstones of tables that are new."""
        with self._explained():
            before = self._table_rows()
            rd.Checkpoint(self._db).create_checkpoint(str(folder))
            # A merge may have ended in between.
            return before | self._table_rows()

    def close(self) -> None:
        """Let go of the folder."""
        self._db.close()

    def _sorted_runs(self) -> int:
        """Each file of level 0 is a run of its own, each other level is one."""
        levels = [table["level"] for table in self._db.live_files()]
        return levels.count(0) + len({level for level in levels if level})

    def _table_rows(self) -> dict[str, tuple[int, int]]:
        """The header and the cursor are not rows and sort after all rows. If a table has both, one is counted."""
        return {
            table["name"].lstrip("/"): (
                table["num_entries"] - (table["end_key"] in (HEADER_KEY, CURSOR_KEY)),
                table["num_deletions"],
            )
            for table in self._db.live_files()
        }

    def _property(self, name: str) -> int:
        return self._db.property_int_value(f"rocksdb.{name}") or 0

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """RocksDB's errors are plain exceptions with a text that begins with the kind."""
        try:
            yield
        except (CorruptStateError, UnavailableError):
            raise
        except Exception as cause:
            text = str(cause)
            if self._lost_files(text) or not (text.startswith(_CORRUPT) or _NO_FILE in text):
                raise self._unavailable(text) from cause
            changed = self._changed_files()
            if changed:
                raise self._unavailable(
                    f"{', '.join(changed)} changed on this machine ({text}), the copies in storage are used at the next try"
                ) from cause
            raise CorruptStateError(
                f"the database of {self._label} cannot be read: {text}; restore an older checkpoint",
                file=self._label,
            ) from cause

    def _lost_files(self, text: str) -> bool:
        """Whether existing files are gone because the folder is being deleted. A table that was never here is missing in the handle."""
        if not (self._folder / "CURRENT").is_file():
            return True
        return _NO_FILE in text and (
            self._opened or not all((self._folder / name).exists() for name in self._brought)
        )

    def _unavailable(self, problem: str) -> UnavailableError:
        return UnavailableError(
            f"RocksDB cannot work in {self._folder}: {problem}; check the space and the permissions there",
            path=str(self._folder),
        )


def _options(*, create: bool) -> rd.Options:
    """For a database that is opened, written, flushed and closed within a second or so."""
    options = rd.Options(raw_mode=True)
    options.create_if_missing(create)
    options.set_error_if_exists(create)
    options.set_paranoid_checks(True)
    options.set_compaction_style(rd.DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(MAX_SORTED_RUNS)
    options.set_level_zero_slowdown_writes_trigger(STOP_SORTED_RUNS)
    options.set_level_zero_stop_writes_trigger(STOP_SORTED_RUNS)
    options.set_max_background_jobs(2)
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(2)
    options.set_compression_type(rd.DBCompressionType.lz4())
    options.set_skip_stats_update_on_db_open(True)
    options.set_max_file_opening_threads(1)
    options.set_manifest_preallocation_size(4096)
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(1024 * 1024)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_block_based_table_factory(_table_options())
    return options


def _table_options() -> rd.BlockBasedOptions:
    tables = rd.BlockBasedOptions()
    tables.set_bloom_filter(10, False)  # noqa: FBT003 - rocksdict takes no keywords
    tables.set_checksum_type(rd.ChecksumType.xxh3())
    tables.set_block_cache(rd.Cache(CACHE_BYTES))
    return tables
