"""The tables of a savepoint as Parquet files: written by row groups, checked when read, loaded into state. Driver and executors.

A job may load them with any number of subtasks and any backend. Each new subtask reads the files that may hold rows of its key groups, and
writes only its own rows. The manifest says which files these are, and the rows in the files are compared with it.
"""

from __future__ import annotations

import itertools
import re
import shutil
import socket
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from penstock.checkpoint.model import SubtaskReport
from penstock.checkpoint.state_columns import stored_layout
from penstock.errors import CorruptStateError, UnavailableError
from penstock.ids import RunId
from penstock.recovery.state_migration import RestoredSubtask
from penstock.savepoint.manifest import Manifest, SavedFile, SavedOperator
from penstock.state.backends.base import VALUES, OnRescale, StateBackend, StateLayout, TableLayout, Workplace
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.backends.sorted_rows import Ownership
from penstock.state.handle import StateHandle
from penstock.state.keys import SORT_KEY, SortKeys, key_groups, owners, share_groups
from penstock.state.lifetimes import LONG_AGO_US, StateTime
from penstock.state.local_files import begin_run, fingerprint
from penstock.state.rewriting import upload_new, write_rows
from penstock.state.subtask_rows import SUBTASK, RowsByTable, take_over
from penstock.storage import Storage
from penstock.wording import counted

BATCH_ROWS = 128 * 1024
"""Of a row group at most: what is read at once, also for the sake of one key."""


_LONGEST_PART = 120
_NUMBERS = itertools.count()
"""Of local files: the names of tables may be too long for one."""


def table_folder(operator: str, table: str) -> str:
    """Where the files of a table lie. Names of tables may have any character, and any length: the manifest has them whole."""
    return f"state/{operator}/{'values' if table == VALUES else 'table-' + _shortened(table)}"


def _shortened(table: str) -> str:
    """A name as a part of a path: file systems allow 255 bytes, and a letter that is not ASCII takes six or more when it is quoted.

    One that is cut has a hash at its end, and is still longer than all that are not cut: so no two tables share a folder.
    """
    quoted = quote(table, safe=" ")
    if len(quoted) <= _LONGEST_PART:
        return quoted
    cut = re.sub("%.?$", "", quoted[:_LONGEST_PART])
    return f"{cut}-{xxhash.xxh3_64_hexdigest(table.encode())}"


def table_file(operator: str, table: str, part: int, mark: str, number: int | None = None) -> str:
    """The file of one part of a table, with the mark of the attempt that writes it; `number`, where an attempt may write several."""
    behind = "" if number is None else f"-{number}"
    return f"{table_folder(operator, table)}/{part}-{mark}{behind}.parquet"


def note_file(number: int, mark: str) -> str:
    """The copy of a file that a source has noted for itself."""
    return f"sources/{number}-{mark}"


def write_table(
    folder: Storage,
    path: str,
    rows: Iterable[pa.RecordBatch],
    layout: TableLayout,
    *,
    part: int,
    scratch: Path,
) -> SavedFile | None:
    """Store the rows of one subtask in a file; None, and no file, when there are none."""
    local = _local(scratch)
    count = 0
    with pq.ParquetWriter(local, numbered_schema(layout), compression="zstd", compression_level=1) as writer:
        for batch in rows:
            if batch.num_rows:
                writer.write_batch(batch, row_group_size=BATCH_ROWS)
                count += batch.num_rows
    if not count:
        local.unlink()
        return None
    size, checksum = fingerprint(local)
    folder.upload(local, path)
    local.unlink()
    return SavedFile(path, size, checksum, count, part)


def read_table(
    folder: Storage, file: SavedFile, layout: TableLayout, scratch: Path, sort_keys: SortKeys | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a file, after it was compared with the manifest; their columns are those of the layout.

    With `sort_keys`, which are in ascending order, only the row groups that may hold one of them.
    """
    local = fetched(folder, file, scratch)
    wanted = numbered_schema(layout)
    try:
        with pq.ParquetFile(local) as opened:
            _check_schema(folder, file, opened.schema_arrow, wanted)
            if opened.metadata.num_rows != file.rows:
                raise _corrupt(
                    folder, file, f"it has {counted(opened.metadata.num_rows, 'row')}, expected {file.rows}"
                )
            groups = row_groups(opened.metadata, sort_keys)
            for batch in opened.iter_batches(BATCH_ROWS, row_groups=groups) if groups else ():
                yield batch.cast(wanted)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno:
            raise UnavailableError(f"{file.path} cannot be read: {error}", path=file.path) from error
        raise _corrupt(folder, file, f"it is no readable Parquet file: {error}") from error
    finally:
        local.unlink(missing_ok=True)


def row_groups(metadata: pq.FileMetaData, sort_keys: SortKeys | None) -> list[int]:
    """The row groups that may hold one of these sort keys, by the statistics in the file."""
    every = range(metadata.num_row_groups)
    return [at for at in every if sort_keys is None or _may_hold(metadata.row_group(at).column(0), sort_keys)]


def _may_hold(column: pq.ColumnChunkMetaData, sort_keys: SortKeys) -> bool:
    known = column.statistics
    if column.path_in_schema != SORT_KEY or known is None or not known.has_min_max:
        return True
    first, behind = np.searchsorted(sort_keys, known.min), np.searchsorted(sort_keys, known.max, side="right")
    return bool(first < behind)


def fetched(folder: Storage, file: SavedFile, scratch: Path) -> Path:
    """A file of a savepoint on this machine, with the right size and checksum. Its size is looked at before a byte is copied."""
    size = folder.size(file.path)
    if size is None:
        raise _corrupt(folder, file, "it is missing")
    if size != file.size:
        raise _corrupt(folder, file, f"it has {size} bytes, expected {file.size}")
    local = _local(scratch)
    folder.download(file.path, local)
    found = fingerprint(local)
    if found != (file.size, file.checksum):
        raise _corrupt(folder, file, f"its checksum is {found[1]}, expected {file.checksum}")
    return local


def _local(scratch: Path) -> Path:
    """A new file in a folder of this process."""
    return scratch / f"{next(_NUMBERS)}.parquet"


def checked_bytes(folder: Storage, file: SavedFile) -> bytes:
    """A small file of a savepoint, with the right size and checksum."""
    size = folder.size(file.path)
    if size != file.size:
        raise _corrupt(
            folder, file, "it is missing" if size is None else f"it has {size} bytes, expected {file.size}"
        )
    data = folder.get(file.path)
    found = xxhash.xxh3_64_hexdigest(data)
    if found != file.checksum:
        raise _corrupt(folder, file, f"its checksum is {found}, expected {file.checksum}")
    return data


def _check_schema(folder: Storage, file: SavedFile, found: pa.Schema, wanted: pa.Schema) -> None:
    if [(one.name, one.type) for one in found] != [(one.name, one.type) for one in wanted]:
        raise _corrupt(folder, file, f"its columns are {found.names}, the manifest says {wanted.names}")


def _corrupt(folder: Storage, file: SavedFile, problem: str) -> CorruptStateError:
    return CorruptStateError(
        f"{file.path} of the savepoint {folder.uri} is corrupt: {problem}; nothing was changed; take another copy of the savepoint",
        file=file.path,
        folder=folder.uri,
    )


@dataclass(frozen=True)
class Load:
    """Loads the state of a subtask. It is called in tasks, on any machine."""

    folder: Storage
    manifest: Manifest
    storage: Storage
    backend: StateBackend
    local_dir: Path
    run: RunId
    parallelism: int
    max_parallelism: int
    former_uids: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: frozenset[str] = field(default_factory=frozenset)
    """Operators whose state is dropped: their subtasks start empty."""

    def at(self, local_dir: Path) -> Load:
        """The same task for a machine with this folder for working files."""
        return replace(self, local_dir=local_dir)

    def __call__(self, handle: StateHandle, attempt: int) -> RestoredSubtask:
        """Write what is the subtask's own and store it; called again, with another attempt, when a task fails."""
        begin_run(self.local_dir, frozenset())
        uid = handle.subtask.uid
        operator = self.manifest.operators[uid]
        scratch = Path(tempfile.mkdtemp(prefix="penstock-load-", dir=self.local_dir))
        workplace = Workplace.of(
            self, handle.subtask, version=handle.version, attempt=attempt, time=self._time(uid)
        )
        try:
            loading = _Loading(self, operator, workplace, scratch)
            loaded = handle if uid in self.left_out else loading.loaded(handle)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        report = SubtaskReport(handle.subtask, host=socket.gethostname(), **asdict(workplace.origins))
        return RestoredSubtask(loaded, report)

    def _time(self, uid: str) -> StateTime:
        time, lifetimes = self.manifest.barrier.time, self.manifest.operators[uid].columns.lifetimes
        return StateTime(
            self.manifest.now_us,
            {stamp: one.switched_on_us for stamp, one in lifetimes.items()},
            time.watermarks_us.get(uid, LONG_AGO_US),
            time.clock_us or LONG_AGO_US,
        )


@dataclass(frozen=True)
class _Loading:
    load: Load
    operator: SavedOperator
    workplace: Workplace
    scratch: Path

    def loaded(self, handle: StateHandle) -> StateHandle:
        layout = stored_layout(self.operator.columns)
        stored = write_rows(self._rows(layout), layout, self.load.backend, self.workplace)
        if layout.of_subtasks and self._is_rescaled:
            stored = self._of_subtasks(self.workplace, layout, stored)
        if stored is None:
            return handle
        generation = max(self.operator.generation, stored.generation)
        return msgspec.structs.replace(
            stored, generation=generation, due=self.operator.due, over_us=self.operator.over_us
        )

    @property
    def _is_rescaled(self) -> bool:
        return self.workplace.parallelism != self.load.manifest.parallelism

    # ── rows of keys ───────────────────────────────────────────────────────────────────────────

    def _rows(self, layout: StateLayout) -> Iterator[tuple[str, pa.RecordBatch]]:
        for name, table in layout.by_name.items():
            if table.on_rescale is OnRescale.BY_KEY or not self._is_rescaled:  # others are distributed again
                for batch in self._own_rows(name, table):
                    yield name, batch

    def _own_rows(self, name: str, table: TableLayout) -> Iterator[pa.RecordBatch]:
        mine = Ownership(self.workplace.subtask.index, self.workplace.parallelism)
        for file in self._files(name):
            for batch in self._read(file, table):
                owned = mine.owned(batch.column(SORT_KEY).to_numpy())
                if owned.any():
                    yield batch if owned.all() else batch.filter(pa.array(owned))

    def _files(self, name: str) -> Sequence[SavedFile]:
        """Those that may hold rows of this subtask's key groups."""
        index, former = self.workplace.subtask.index, self.load.manifest.parallelism
        files = self.operator.files.get(name, ())
        return [file for file in files if share_groups(index, self.workplace.parallelism, file.part, former)]

    def _read(self, file: SavedFile, table: TableLayout) -> Iterator[pa.RecordBatch]:
        """The rows of a file. All must belong to the part in the manifest: no other subtask would read other rows."""
        folder, parallelism = self.load.folder, self.load.manifest.parallelism
        for batch in read_table(folder, file, table, self.scratch):
            strange = strange_part(batch, table, file.part, parallelism)
            if strange is not None:
                raise CorruptStateError(
                    f"{file.path} of the savepoint {folder.uri} is corrupt: the manifest says that it is part {file.part} of "
                    f"{parallelism}, and it has rows of part {strange}; nothing was changed; take another copy of the savepoint",
                    file=file.path,
                    folder=folder.uri,
                )
            yield batch

    # ── rows of subtasks ───────────────────────────────────────────────────────────────────────

    def _of_subtasks(
        self, place: Workplace, layout: StateLayout, before: StateHandle | None
    ) -> StateHandle | None:
        former = [self._rows_of(part, layout) for part in range(self.load.manifest.parallelism)]
        if not any(rows.num_rows for tables in former for rows in tables.values()):
            return before
        with closing(self.load.backend.open(place, layout, before)) as state:
            take_over(state, layout, former, subtask=place.subtask.index, parallelism=place.parallelism)
            return upload_new(place, state.freeze(), before)

    def _rows_of(self, part: int, layout: StateLayout) -> RowsByTable:
        """The rows of one former subtask."""
        found: dict[str, pa.Table] = {}
        for table in layout.of_subtasks:
            schema = pa.schema([*table.identity, *table.value])
            files = [file for file in self.operator.files.get(table.name, ()) if file.part == part]
            batches = [batch.select(schema.names) for file in files for batch in self._read(file, table)]
            found[table.name] = pa.Table.from_batches(batches, schema)
        return found


def strange_part(rows: pa.RecordBatch, table: TableLayout, part: int, parallelism: int) -> int | None:
    """Another part to which one of these rows belongs; None if all belong to this one."""
    found = [owners(key_groups(rows.column(SORT_KEY).to_numpy()), parallelism)]
    if table.on_rescale is not OnRescale.BY_KEY:
        found.append(rows.column(SUBTASK.name).to_numpy())
    return next((int(one[one != part][0]) for one in found if (one != part).any()), None)
