"""The format of a sorted file of state: an Arrow IPC file with one column a table. Runs in tasks on executors.

A table is a list of structs: its rows, in order.

    __sort_key int64 · __order int64 (where a key has many rows) · __deleted bool (only where there are tombstones) ·
    columns that tell rows apart, the operator's key first · value columns · stamps of values with a time to live

Invariants:
1. A file is immutable. It is written under another name and appears whole.
2. It is not compressed, so that a mapped file is used in place, without a copy.
3. It holds keys of its writer's key groups only: `FileHeader` names the writer.
4. A row occurs once in a file. Different rows may share their sort numbers, also across two record batches.
5. What changed in a batch is one file, however many tables there are. A table without rows is left out.

A record batch is one row: of every table a piece. Mostly there is one; there are more when a piece would grow too large for the
32-bit offsets of strings and lists.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from penstock.errors import CorruptStateError, IncompatibleStateError, PenstockError, UnavailableError
from penstock.state.backends.base import VALUES, FileRef, StateLayout, TableLayout
from penstock.state.backends.sorted_rows import SortedBatch, SortedTable, marks
from penstock.state.ddl import spark_type
from penstock.state.keys import ORDER, SORT_KEY
from penstock.state.lifetimes import STAMP_TYPE, TIMELESS, Ending, Expiry, StateTime, fading
from penstock.state.local_files import HASHED_FILES
from penstock.wording import counted

FORMAT_VERSION = 3
DELETED = "__deleted"
_HEADER_KEY = b"penstock.sorted_file"


class TableHeader(msgspec.Struct, frozen=True):
    """How to read the columns of a table: how many are identity columns, and how many of the last are stamps."""

    identity: int
    ordered: bool = False
    by_time: bool = False
    tombstones: bool = False
    stamps: int = 0


class FileHeader(msgspec.Struct, frozen=True):
    """The header of a file: its format, the operator and subtask that wrote it, the parallelism, and its tables."""

    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    tables: dict[str, TableHeader] = {}
    format: int = FORMAT_VERSION


_HEADERS = msgspec.json.Decoder(FileHeader)
_UNREADABLE = (pa.ArrowException, OSError, LookupError, ValueError, msgspec.MsgspecError)
"""An empty file cannot be mapped: `ValueError`.

Arrow raises `OSError` without an errno for invalid content. With an errno, the operating system failed."""


@dataclass(frozen=True)
class SortedFile:
    """A sorted file that can be read; `ref` is None while it exists in this task's memory only."""

    header: FileHeader
    tables: Mapping[str, SortedTable]
    ref: FileRef | None = None

    def table(self, name: str) -> SortedTable:
        """The rows of a table; none if the file does not have the table."""
        return self.tables.get(name, ())

    @property
    def rows(self) -> int:
        """Rows of all tables, tombstones included."""
        return sum(len(batch) for table in self.tables.values() for batch in table)

    @property
    def has_tombstones(self) -> bool:
        """Whether a row is a tombstone for an older one."""
        return any(batch.deleted is not None for table in self.tables.values() for batch in table)

    @property
    def size(self) -> int:
        """Bytes of the file, or about as many as it will have."""
        if self.ref:
            return self.ref.size
        return sum(batch.nbytes + 8 * len(batch) for table in self.tables.values() for batch in table)

    @property
    def name(self) -> str:
        """The name of the file, '' where it is inline or in memory only."""
        return self.ref.name if self.ref else ""


Rows = Mapping[str, Iterable[SortedBatch]]
"""The content of a file to write: the sorted rows of every table."""


def write_sorted_file(
    path: Path,
    name: str,
    rows: Rows,
    *,
    layout: StateLayout,
    header: FileHeader,
    time: StateTime = TIMELESS,
) -> FileRef | None:
    """Write a sorted file to `path`, which appears whole; None, and no file, when there are no rows.

    Not flushed to disk: a local file may be lost at any time, the upload makes it durable. Of the tables in `header` those are
    written that have rows.
    """
    filled = _filled(rows)
    if not filled:
        return None
    unfinished = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(unfinished), "wb") as sink:
            content = _encode(sink, filled, layout, header, time)
        size, checksum = HASHED_FILES.hash(unfinished)
        unfinished.replace(path)
    except OSError as cause:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise UnavailableError(
            f"cannot write the working file {path}: {cause}; free space or allow writing there, or give the job another local_dir",
            path=str(path),
        ) from cause
    faded = fading(content.endings, content.rows)
    return FileRef(
        rows=content.rows,
        size=size,
        checksum=checksum,
        name=name,
        tombstones=content.tombstones,
        fades=faded.clock_us,
        fades_event=faded.event_us,
    )


def encode_sorted_file(
    rows: Rows,
    *,
    layout: StateLayout,
    header: FileHeader,
    time: StateTime = TIMELESS,
) -> FileRef | None:
    """A sorted file kept inline; None when there are no rows."""
    filled = _filled(rows)
    if not filled:
        return None
    sink = pa.BufferOutputStream()
    content = _encode(sink, filled, layout, header, time)
    data = sink.getvalue().to_pybytes()
    checksum = xxhash.xxh3_64_hexdigest(data)
    return FileRef(
        rows=content.rows, size=len(data), checksum=checksum, inline=data, tombstones=content.tombstones
    )


def load_sorted_file(ref: FileRef, source: Path | bytes, layout: StateLayout) -> SortedFile:
    """Open a sorted file whose bytes have been verified; one on disk is mapped, not read."""
    label = file_label(ref)
    try:
        with pa.BufferReader(_mapped(source) if isinstance(source, Path) else source) as opened:
            reader = pa.ipc.open_file(opened)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            schema = reader.schema
        header = _decoded_header(schema)
        _check_header(label, header)
        _check_columns(label, schema, header, layout)
        tables = _tables(schema, batches, header, layout.by_name)
    except _UNREADABLE as cause:
        raise _unreadable(label, cause) from cause
    file = SortedFile(header, tables, ref)
    if file.rows != ref.rows:
        raise CorruptStateError(
            f"{label} holds {counted(file.rows, 'row')}, the checkpoint says {ref.rows}; restore an older checkpoint",
            file=label,
            expected=ref.rows,
            found=file.rows,
        )
    return file


def _mapped(path: Path) -> pa.Buffer:
    """The memory-mapped bytes of a file. Every slice keeps the map alive, so the file itself need not stay open.

    This is not Arrow's own map, which prefetches every byte of a batch and so becomes slower with the size of the state.
    """
    with path.open("rb") as file:
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def inline_header(ref: FileRef) -> FileHeader:
    """The header of an inline file, without reading its rows."""
    try:
        return _decoded_header(pa.ipc.open_file(pa.BufferReader(ref.inline)).schema)
    except _UNREADABLE as cause:
        raise _unreadable(file_label(ref), cause) from cause


def _decoded_header(schema: pa.Schema) -> FileHeader:
    return _HEADERS.decode((schema.metadata or {})[_HEADER_KEY])


def _unreadable(label: str, cause: Exception) -> PenstockError:
    """Running out of a resource, or losing a file, is not corruption: a retry may succeed."""
    if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno):
        return UnavailableError(
            f"{label} cannot be opened on this machine: {cause}; check its disk, its memory and its limit of open files",
            file=label,
        )
    return CorruptStateError(
        f"{label} is no readable sorted file of state: {cause!r}; restore an older checkpoint", file=label
    )


def scan_schema(table: TableLayout) -> pa.Schema:
    """The columns of a scan, the same for every backend."""
    return pa.schema([pa.field(SORT_KEY, pa.int64(), nullable=False), *table.identity, *table.value])


def numbered_schema(table: TableLayout) -> pa.Schema:
    """The columns of `OpenTable.numbered`, the same for every backend."""
    orders = [pa.field(ORDER, pa.int64(), nullable=False)] if table.ordered else []
    sort_key, *others = scan_schema(table)
    return pa.schema([sort_key, *orders, *others])


def file_label(ref: FileRef) -> str:
    """How messages call a file."""
    return ref.name or f"inline file {ref.checksum}"


def _filled(rows: Rows) -> dict[str, Iterator[SortedBatch]]:
    """Of every table that has rows its batches with rows."""
    filled: dict[str, Iterator[SortedBatch]] = {}
    for name, batches in rows.items():
        with_rows = (batch for batch in batches if len(batch))
        first = next(with_rows, None)
        if first is not None:
            filled[name] = chain((first,), with_rows)
    return filled


@dataclass
class _Content:
    """Statistics of a file: its rows and tombstones, and when its values will expire."""

    rows: int = 0
    tombstones: int = 0
    endings: list[Ending] = field(default_factory=list)

    def add(self, piece: SortedBatch, expiry: Expiry | None) -> None:
        self.rows += len(piece)
        self.tombstones += 0 if piece.deleted is None else piece.deleted.true_count
        if expiry is not None:
            deleted = None if piece.deleted is None else piece.deleted.to_numpy(zero_copy_only=False)
            self.endings += expiry.endings(piece.values, deleted)


def _encode(
    sink: Any,
    rows: Mapping[str, Iterator[SortedBatch]],
    layout: StateLayout,
    header: FileHeader,
    time: StateTime,
) -> _Content:
    """Write all batches, of every table one in a record batch."""
    headers = {name: header.tables[name] for name in rows}
    kinds = {name: _row_type(layout.by_name[name], headers[name]) for name in rows}
    expiries = {name: layout.by_name[name].expiry(time) for name in rows}
    described = msgspec.json.encode(msgspec.structs.replace(header, tables=headers))
    fields = [pa.field(name, pa.list_(kind)) for name, kind in kinds.items()]
    schema = pa.schema(fields, metadata={_HEADER_KEY: described})
    content = _Content()
    with pa.ipc.new_file(sink, schema) as writer:
        while pieces := {name: piece for name, batches in rows.items() if (piece := next(batches, None))}:
            lists = [_as_list(pieces.get(name), kind, headers[name]) for name, kind in kinds.items()]
            writer.write_batch(pa.RecordBatch.from_arrays(lists, schema=schema))
            for name, piece in pieces.items():
                content.add(piece, expiries[name])
    return content


def _row_type(table: TableLayout, header: TableHeader) -> pa.DataType:
    numbers = [pa.field(SORT_KEY, pa.int64(), nullable=False)]
    numbers += [pa.field(ORDER, pa.int64(), nullable=False)] if header.ordered else []
    tombstones = [pa.field(DELETED, pa.bool_())] if header.tombstones else []
    # A tombstone has no values, so no value column can forbid nulls.
    values = [pa.field(column.name, column.type) for column in table.value]
    return pa.struct([*numbers, *tombstones, *table.identity, *values])


def _as_list(piece: SortedBatch | None, kind: pa.DataType, header: TableHeader) -> pa.Array:
    """The rows of one table as the only item of a column of lists."""
    if piece is None:
        return pa.array([[]], pa.list_(kind))
    numbers = [pa.array(piece.sort_keys)] + ([pa.array(piece.orders)] if header.ordered else [])
    tombstones = [marks(piece)] if header.tombstones else []
    columns = [*numbers, *tombstones, *piece.keys, *piece.values]
    rows = pa.StructArray.from_arrays(columns, fields=list(kind))
    return pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)


def _tables(
    schema: pa.Schema,
    batches: Sequence[pa.RecordBatch],
    header: FileHeader,
    wanted: Mapping[str, TableLayout],
) -> dict[str, tuple[SortedBatch, ...]]:
    return {
        name: tuple(
            _rows(rows, header.tables[name], wanted[name])
            for batch in batches
            if len(rows := batch.column(at).values)  # of its only list
        )
        for at, name in enumerate(schema.names)
    }


def _rows(rows: pa.StructArray, header: TableHeader, wanted: TableLayout) -> SortedBatch:
    """The rows of one table in one record batch, without a copy; null stamps where the file has none, none where the job wants none."""
    columns = [rows.field(at) for at in range(rows.type.num_fields)]
    orders = columns[1].to_numpy() if header.ordered else None
    deleted_at = 1 + header.ordered
    identity_at = deleted_at + header.tombstones
    values_at = identity_at + header.identity
    stamps_at = len(columns) - header.stamps
    stamps = {rows.type.field(at).name: columns[at] for at in range(stamps_at, len(columns))}
    return SortedBatch(
        columns[0].to_numpy(),
        columns[deleted_at] if header.tombstones else None,
        tuple(columns[identity_at:values_at]),
        (*columns[values_at:stamps_at], *_stamps(stamps, wanted, len(rows))),
        orders,
        header.by_time,
    )


def _stamps(stored: Mapping[str, pa.Array], wanted: TableLayout, rows: int) -> list[pa.Array]:
    names = (lifetime.stamp for lifetime in wanted.lifetimes)
    return [stored[name] if name in stored else pa.nulls(rows, STAMP_TYPE) for name in names]


def _check_header(label: str, header: FileHeader) -> None:
    if header.format != FORMAT_VERSION:
        raise IncompatibleStateError(
            f"{label} has format {header.format}, this version of Penstock reads format {FORMAT_VERSION}; "
            "use the version that wrote it, or start from another checkpoint",
            file=label,
            expected=FORMAT_VERSION,
            found=header.format,
        )


def _check_columns(label: str, schema: pa.Schema, header: FileHeader, layout: StateLayout) -> None:
    """Refuse a file whose tables are not the job's; that it lacks some is no harm, they have no rows in it. Stamps may come and go."""
    known = layout.by_name
    if set(schema.names) != set(header.tables):
        raise CorruptStateError(
            f"{label} has the tables {', '.join(schema.names)}, its header says {', '.join(header.tables)}; restore an older checkpoint",
            file=label,
        )
    for table in schema:
        wanted, stored = known.get(table.name), header.tables[table.name]
        columns = list(table.type.value_type)[1 + stored.ordered + stored.tombstones :]
        columns = columns[: len(columns) - stored.stamps]
        if wanted is None:
            raise other_columns(label, columns, stored.identity, None, table.name)
        same = [(column.name, column.type) for column in columns] == [
            (column.name, column.type) for column in (*wanted.identity, *wanted.visible)
        ]
        numbers = (stored.identity, stored.ordered, stored.by_time)
        if not same or numbers != (len(wanted.identity), wanted.ordered, wanted.by_time):
            raise other_columns(label, columns, stored.identity, wanted, table.name)


def other_columns(
    label: str, found: Sequence[pa.Field], identity: int, wanted: TableLayout | None, table: str
) -> IncompatibleStateError:
    """The error for state whose columns are not the job's; `wanted` is None for a table that the job does not have."""
    stored = _described(found, identity)
    now = "no such table"
    if wanted is not None:
        now = _described([*wanted.identity, *wanted.visible], len(wanted.identity))
    of_table = "" if table == VALUES else f" in the table {table!r}"
    return IncompatibleStateError(
        f"{label} holds {stored}{of_table}, the job now wants {now}; "
        "change the job back, or start from another checkpoint",
        file=label,
        expected=now,
        found=stored,
    )


def _described(fields: Sequence[pa.Field], key_columns: int) -> str:
    texts = [f"{column.name} {spark_type(column.type)}" for column in fields]
    return f"key ({', '.join(texts[:key_columns])}) and values ({', '.join(texts[key_columns:])})"
