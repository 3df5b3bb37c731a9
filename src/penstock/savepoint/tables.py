"""The tables of a savepoint as Parquet files: written row group by row group, read back checked. Driver and executors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from penstock.errors import CorruptStateError, UnavailableError
from penstock.savepoint.manifest import SavedFile
from penstock.state.backends.base import VALUES, TableLayout
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.keys import SORT_KEY, SortKeys
from penstock.state.local_files import fingerprint
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
    """The rows of a file, once it is known to be what the manifest says; their columns are those of the layout.

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
    """The row groups that may hold one of these sort keys, by what the file says about each."""
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
