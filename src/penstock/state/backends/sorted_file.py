"""The format of a sorted file of state: an Arrow IPC file, its rows in order of sort key. Runs in tasks on executors.

    __sort_key int64 · __deleted bool (only where there are tombstones) · key columns · value columns

Invariants:
1. A file is immutable. It is written under another name and appears whole.
2. It is not compressed, so that a mapped file is used in place, without a copy.
3. It holds keys of its writer's key groups only: `FileHeader` names the writer.
4. A key occurs once in a file. Different keys may share a sort key, also across two record batches.

Mostly it is one record batch; it has more when one would grow too large for the 32-bit offsets of strings
and lists.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from penstock.errors import CorruptStateError, IncompatibleStateError, PenstockError, UnavailableError
from penstock.state.backends.base import FileRef, StateLayout
from penstock.state.backends.checksums import HASHED_FILES
from penstock.state.keys import SORT_KEY, SortKeys
from penstock.state.types import spark_type
from penstock.wording import counted

FORMAT_VERSION = 2
DELETED = "__deleted"
_HEADER_KEY = b"penstock.sorted_file"


class FileHeader(msgspec.Struct, frozen=True):
    """What a file says about itself: its format, and which subtask of which operator wrote it, of how many."""

    key_columns: int
    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    tombstones: bool = False
    format: int = FORMAT_VERSION


_HEADERS = msgspec.json.Decoder(FileHeader)
_UNREADABLE = (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError)
"""Arrow says `OSError` without a number about content that makes no sense; with a number it is the system that speaks."""


@dataclass(frozen=True, slots=True)
class SortedBatch:
    """Rows in ascending order of sort key; `deleted` is None where there is no tombstone."""

    sort_keys: SortKeys
    deleted: pa.BooleanArray | None
    keys: tuple[pa.Array, ...]
    values: tuple[pa.Array, ...]

    def __len__(self) -> int:
        return len(self.sort_keys)

    @property
    def nbytes(self) -> int:
        """Bytes of key and value columns."""
        return sum(column.nbytes for column in (*self.keys, *self.values))

    def slice(self, start: int, stop: int) -> SortedBatch:
        """Rows `start` to `stop`, without a copy."""
        length = stop - start
        return SortedBatch(
            self.sort_keys[start:stop],
            None if self.deleted is None else self.deleted.slice(start, length),
            tuple(column.slice(start, length) for column in self.keys),
            tuple(column.slice(start, length) for column in self.values),
        )


@dataclass(frozen=True)
class SortedFile:
    """A sorted file that can be read; `ref` is None while it exists in this task's memory only."""

    header: FileHeader
    batches: tuple[SortedBatch, ...]
    ref: FileRef | None = None

    @property
    def rows(self) -> int:
        """Rows, tombstones included."""
        return sum(len(batch) for batch in self.batches)

    @property
    def size(self) -> int:
        """Bytes of the file, or about as many as it will have."""
        return self.ref.size if self.ref else sum(batch.nbytes + 8 * len(batch) for batch in self.batches)

    @property
    def name(self) -> str:
        """The name of the file, '' where it is inline or in memory only."""
        return self.ref.name if self.ref else ""


def write_sorted_file(
    path: Path, name: str, batches: Iterable[SortedBatch], *, layout: StateLayout, header: FileHeader
) -> FileRef | None:
    """Write a sorted file to `path`, which appears whole; None, and no file, when there are no rows.

    Not flushed to disk: a local file may be lost at any time, the upload makes it durable.
    """
    filled = _first(batches)
    if filled is None:
        return None
    unfinished = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(unfinished), "wb") as sink:
            rows, tombstones = _encode(sink, filled, layout, header)
        size, checksum = HASHED_FILES.hash(unfinished)
        unfinished.replace(path)
    except OSError as cause:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise UnavailableError(
            f"cannot write the working file {path}: {cause}; free space or allow writing there, or give the job another local_dir",
            path=str(path),
        ) from cause
    return FileRef(rows=rows, size=size, checksum=checksum, name=name, tombstones=tombstones)


def encode_sorted_file(
    batches: Iterable[SortedBatch], *, layout: StateLayout, header: FileHeader
) -> FileRef | None:
    """A sorted file kept inline; None when there are no rows."""
    filled = _first(batches)
    if filled is None:
        return None
    sink = pa.BufferOutputStream()
    rows, tombstones = _encode(sink, filled, layout, header)
    data = sink.getvalue().to_pybytes()
    checksum = xxhash.xxh3_64_hexdigest(data)
    return FileRef(rows=rows, size=len(data), checksum=checksum, inline=data, tombstones=tombstones)


def load_sorted_file(ref: FileRef, source: Path | bytes, layout: StateLayout) -> SortedFile:
    """Open a sorted file whose bytes have been verified; one on disk is mapped, not read."""
    label = file_label(ref)
    try:
        # The batches keep the map alive, so the file itself need not stay open.
        with pa.memory_map(str(source)) if isinstance(source, Path) else pa.BufferReader(source) as opened:
            reader = pa.ipc.open_file(opened)
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            schema = reader.schema
        header = _decoded_header(schema)
    except _UNREADABLE as cause:
        raise _unreadable(label, cause) from cause
    _check_header(label, header)
    _check_columns(label, schema, header, layout)
    file = SortedFile(header, tuple(_columns(batch, header) for batch in batches if batch.num_rows), ref)
    if file.rows != ref.rows:
        raise CorruptStateError(
            f"{label} holds {counted(file.rows, 'row')}, the checkpoint says {ref.rows}; restore an older checkpoint",
            file=label,
            expected=ref.rows,
            found=file.rows,
        )
    return file


def inline_header(ref: FileRef) -> FileHeader:
    """What an inline file says about itself; its rows are not looked at."""
    try:
        return _decoded_header(pa.ipc.open_file(pa.BufferReader(ref.inline)).schema)
    except _UNREADABLE as cause:
        raise _unreadable(file_label(ref), cause) from cause


def _decoded_header(schema: pa.Schema) -> FileHeader:
    return _HEADERS.decode((schema.metadata or {})[_HEADER_KEY])


def _unreadable(label: str, cause: Exception) -> PenstockError:
    """What a machine has too little of, or has lost, is no damage: it may be there again in a moment."""
    if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno):
        return UnavailableError(
            f"{label} cannot be opened on this machine: {cause}; check its disk, its memory and its limit of open files",
            file=label,
        )
    return CorruptStateError(
        f"{label} is no readable sorted file of state: {cause!r}; restore an older checkpoint", file=label
    )


def scan_schema(layout: StateLayout) -> pa.Schema:
    """The columns that `OpenState.scan` gives, whatever the backend."""
    return pa.schema([pa.field(SORT_KEY, pa.int64(), nullable=False), *layout.key, *layout.value])


def file_label(ref: FileRef) -> str:
    """How messages call a file."""
    return ref.name or f"inline file {ref.checksum}"


def concat_batches(batches: Sequence[SortedBatch]) -> SortedBatch:
    """One batch of the rows of several, in the order given."""
    if len(batches) == 1:
        return batches[0]
    deleted = None
    if any(batch.deleted is not None for batch in batches):
        deleted = pa.concat_arrays([_deleted(batch) for batch in batches])
    return SortedBatch(
        np.concatenate([batch.sort_keys for batch in batches]),
        deleted,
        tuple(pa.concat_arrays(column) for column in zip(*(batch.keys for batch in batches), strict=True)),
        tuple(pa.concat_arrays(column) for column in zip(*(batch.values for batch in batches), strict=True)),
    )


def _first(batches: Iterable[SortedBatch]) -> Iterator[SortedBatch] | None:
    """The batches that have rows, or None if there is none."""
    filled = (batch for batch in batches if len(batch))
    first = next(filled, None)
    return None if first is None else chain((first,), filled)


def _encode(
    sink: Any, batches: Iterator[SortedBatch], layout: StateLayout, header: FileHeader
) -> tuple[int, int]:
    """Write all batches; returns the number of rows and of tombstones among them."""
    schema = _schema(layout, header)
    rows = tombstones = 0
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            marks = [_deleted(batch)] if header.tombstones else []
            columns = [pa.array(batch.sort_keys), *marks, *batch.keys, *batch.values]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
            rows += len(batch)
            tombstones += batch.deleted.true_count if header.tombstones and batch.deleted is not None else 0
    return rows, tombstones


def _schema(layout: StateLayout, header: FileHeader) -> pa.Schema:
    marks = [pa.field(DELETED, pa.bool_())] if header.tombstones else []
    # A tombstone has no values, so no value column can forbid nulls.
    values = [pa.field(field.name, field.type) for field in layout.value]
    fields = [pa.field(SORT_KEY, pa.int64(), nullable=False), *marks, *layout.key, *values]
    return pa.schema(fields, metadata={_HEADER_KEY: msgspec.json.encode(header)})


def _deleted(batch: SortedBatch) -> pa.BooleanArray:
    return batch.deleted if batch.deleted is not None else pa.array(np.zeros(len(batch), dtype=np.bool_))


def _columns(batch: pa.RecordBatch, header: FileHeader) -> SortedBatch:
    first_key = 1 + header.tombstones
    first_value = first_key + header.key_columns
    columns = batch.columns
    return SortedBatch(
        columns[0].to_numpy(),
        columns[1] if header.tombstones else None,
        tuple(columns[first_key:first_value]),
        tuple(columns[first_value:]),
    )


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
    marks = [pa.field(DELETED, pa.bool_())] if header.tombstones else []
    expected = [pa.field(SORT_KEY, pa.int64()), *marks, *layout.key, *layout.value]
    same = [(field.name, field.type) for field in schema] == [(field.name, field.type) for field in expected]
    if same and header.key_columns == len(layout.key):
        return
    raise other_columns(label, list(schema)[1 + header.tombstones :], header.key_columns, layout)


def other_columns(
    label: str, found: Sequence[pa.Field], key_columns: int, layout: StateLayout
) -> IncompatibleStateError:
    """The error for state whose columns are not the job's."""
    stored = _described(found, key_columns)
    wanted = _described([*layout.key, *layout.value], len(layout.key))
    return IncompatibleStateError(
        f"{label} holds {stored}, the job now wants {wanted}; "
        "change the job back, or start from another checkpoint",
        file=label,
        expected=wanted,
        found=stored,
    )


def _described(fields: Sequence[pa.Field], key_columns: int) -> str:
    texts = [f"{field.name} {spark_type(field.type)}" for field in fields]
    return f"key ({', '.join(texts[:key_columns])}) and values ({', '.join(texts[key_columns:])})"
