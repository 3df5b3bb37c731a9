"""The format of a run: an Arrow IPC file, its rows in order of sort key. Runs in tasks on executors.

    __sort_key int64 · __deleted bool (only where there are tombstones) · key columns · value columns

Invariants:
1. A run is immutable. It is written under another name and appears whole.
2. It is not compressed, so that a mapped file is used in place, without a copy.
3. It holds keys of its writer's key groups only: `RunHeader` names the writer.
4. A key occurs once in a run. Different keys may share a sort key, also across two record batches.

Mostly a run is one record batch; it has more when one would grow too large for the 32-bit offsets of strings
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
from penstock.state.backends.base import RunRef, StateLayout
from penstock.state.backends.checksums import HASHED_FILES
from penstock.state.keys import SortKeys

FORMAT_VERSION = 1
SORT_KEY = "__sort_key"
DELETED = "__deleted"
_HEADER_KEY = b"penstock.run"


class RunHeader(msgspec.Struct, frozen=True):
    """What a run says about itself: its format, and which subtask of which operator wrote it, of how many."""

    key_columns: int
    uid: str
    subtask: int
    parallelism: int
    max_parallelism: int
    tombstones: bool = False
    format: int = FORMAT_VERSION


_HEADERS = msgspec.json.Decoder(RunHeader)
_UNREADABLE = (pa.ArrowException, OSError, KeyError, msgspec.MsgspecError)
"""Arrow says `OSError` without a number about content that makes no sense; with a number it is the system that speaks."""


@dataclass(frozen=True, slots=True)
class RunBatch:
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

    def slice(self, start: int, stop: int) -> RunBatch:
        """Rows `start` to `stop`, without a copy."""
        length = stop - start
        return RunBatch(
            self.sort_keys[start:stop],
            None if self.deleted is None else self.deleted.slice(start, length),
            tuple(column.slice(start, length) for column in self.keys),
            tuple(column.slice(start, length) for column in self.values),
        )


@dataclass(frozen=True)
class Run:
    """A run that can be read; `ref` is None while it exists in this task's memory only."""

    header: RunHeader
    batches: tuple[RunBatch, ...]
    ref: RunRef | None = None

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
        """The name of the file, '' for a run that is none."""
        return self.ref.name if self.ref else ""


def write_run(
    path: Path, name: str, batches: Iterable[RunBatch], *, layout: StateLayout, header: RunHeader
) -> RunRef | None:
    """Write a run to `path`, which appears whole; None, and no file, when there are no rows.

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
    return RunRef(rows=rows, size=size, checksum=checksum, name=name, tombstones=tombstones)


def encode_run(batches: Iterable[RunBatch], *, layout: StateLayout, header: RunHeader) -> RunRef | None:
    """A run kept inline; None when there are no rows."""
    filled = _first(batches)
    if filled is None:
        return None
    sink = pa.BufferOutputStream()
    rows, tombstones = _encode(sink, filled, layout, header)
    data = sink.getvalue().to_pybytes()
    checksum = xxhash.xxh3_64_hexdigest(data)
    return RunRef(rows=rows, size=len(data), checksum=checksum, inline=data, tombstones=tombstones)


def load_run(ref: RunRef, source: Path | bytes, layout: StateLayout) -> Run:
    """Open a run whose bytes have been verified; a file is mapped, not read."""
    label = run_label(ref)
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
    run = Run(header, tuple(_columns(batch, header) for batch in batches if batch.num_rows), ref)
    if run.rows != ref.rows:
        raise CorruptStateError(
            f"{label} holds {run.rows} rows, the checkpoint says {ref.rows}; restore an older checkpoint",
            run=label,
            expected=ref.rows,
            found=run.rows,
        )
    return run


def inline_header(ref: RunRef) -> RunHeader:
    """What an inline run says about itself; its rows are not looked at."""
    try:
        return _decoded_header(pa.ipc.open_file(pa.BufferReader(ref.inline)).schema)
    except _UNREADABLE as cause:
        raise _unreadable(run_label(ref), cause) from cause


def _decoded_header(schema: pa.Schema) -> RunHeader:
    return _HEADERS.decode((schema.metadata or {})[_HEADER_KEY])


def _unreadable(label: str, cause: Exception) -> PenstockError:
    """What a machine has too little of, or has lost, is no damage: it may be there again in a moment."""
    if isinstance(cause, MemoryError) or (isinstance(cause, OSError) and cause.errno):
        return UnavailableError(
            f"{label} cannot be opened on this machine: {cause}; it is tried again", run=label
        )
    return CorruptStateError(
        f"{label} is no readable run of state: {cause!r}; restore an older checkpoint", run=label
    )


def scan_schema(layout: StateLayout) -> pa.Schema:
    """The columns that `OpenState.scan` gives, whatever the backend."""
    return pa.schema([pa.field(SORT_KEY, pa.int64(), nullable=False), *layout.key, *layout.value])


def run_label(ref: RunRef) -> str:
    """How messages call a run."""
    return ref.name or f"inline run {ref.checksum}"


def concat_batches(batches: Sequence[RunBatch]) -> RunBatch:
    """One batch of the rows of several, in the order given."""
    if len(batches) == 1:
        return batches[0]
    deleted = None
    if any(batch.deleted is not None for batch in batches):
        deleted = pa.concat_arrays([_deleted(batch) for batch in batches])
    return RunBatch(
        np.concatenate([batch.sort_keys for batch in batches]),
        deleted,
        tuple(pa.concat_arrays(column) for column in zip(*(batch.keys for batch in batches), strict=True)),
        tuple(pa.concat_arrays(column) for column in zip(*(batch.values for batch in batches), strict=True)),
    )


def _first(batches: Iterable[RunBatch]) -> Iterator[RunBatch] | None:
    """The batches that have rows, or None if there is none."""
    filled = (batch for batch in batches if len(batch))
    first = next(filled, None)
    return None if first is None else chain((first,), filled)


def _encode(
    sink: Any, batches: Iterator[RunBatch], layout: StateLayout, header: RunHeader
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


def _schema(layout: StateLayout, header: RunHeader) -> pa.Schema:
    marks = [pa.field(DELETED, pa.bool_())] if header.tombstones else []
    # A tombstone has no values, so no value column can forbid nulls.
    values = [pa.field(field.name, field.type) for field in layout.value]
    fields = [pa.field(SORT_KEY, pa.int64(), nullable=False), *marks, *layout.key, *values]
    return pa.schema(fields, metadata={_HEADER_KEY: msgspec.json.encode(header)})


def _deleted(batch: RunBatch) -> pa.BooleanArray:
    return batch.deleted if batch.deleted is not None else pa.array(np.zeros(len(batch), dtype=np.bool_))


def _columns(batch: pa.RecordBatch, header: RunHeader) -> RunBatch:
    first_key = 1 + header.tombstones
    first_value = first_key + header.key_columns
    columns = batch.columns
    return RunBatch(
        columns[0].to_numpy(),
        columns[1] if header.tombstones else None,
        tuple(columns[first_key:first_value]),
        tuple(columns[first_value:]),
    )


def _check_header(label: str, header: RunHeader) -> None:
    if header.format != FORMAT_VERSION:
        raise IncompatibleStateError(
            f"{label} has format {header.format}, this version of Penstock reads format {FORMAT_VERSION}; "
            "use the version that wrote it, or start from another checkpoint",
            run=label,
            expected=FORMAT_VERSION,
            found=header.format,
        )


def _check_columns(label: str, schema: pa.Schema, header: RunHeader, layout: StateLayout) -> None:
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
        run=label,
        expected=wanted,
        found=stored,
    )


def _described(fields: Sequence[pa.Field], key_columns: int) -> str:
    texts = [f"{field.name} {field.type}" for field in fields]
    return f"key ({', '.join(texts[:key_columns])}) and values ({', '.join(texts[key_columns:])})"
