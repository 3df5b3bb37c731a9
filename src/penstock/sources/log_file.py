"""The format of a log partition's file, a sequence of frames, and of its index. Driver and executors.

    magic 4 bytes | rows u32 | base offset u64 | payload bytes u64 | checksum u64 | payload

Little-endian. The payload is one Arrow record batch message (the schema is the log's). The checksum is
xxh3-64 over the header before it and the payload, so a damaged frame is recognised.

The index beside each log file maps offsets to the positions of frames: entries of fixed size (base offset, position), in
order; some may be missing. It only saves time: a reader checks the frame at the position of an entry, and ignores the
index if it is another frame.
"""

from __future__ import annotations

import bisect
import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import xxhash

MAGIC = b"PSL1"
_FIELDS = struct.Struct("<4sIQQ")
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _FIELDS.size + _CHECKSUM.size
_SEARCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame whose checksum was verified when it was read."""

    base: int
    rows: int
    position: int
    payload: bytes

    @property
    def end_offset(self) -> int:
        """The offset after its last row."""
        return self.base + self.rows

    @property
    def end_position(self) -> int:
        """Where the next frame begins."""
        return self.position + HEADER_BYTES + len(self.payload)

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Decode the rows, without copying them."""
        return pa.ipc.read_record_batch(pa.py_buffer(self.payload), schema)


def encode_frame(base: int, batch: pa.RecordBatch) -> bytes:
    """Return the bytes of a frame that holds `batch` from offset `base` on."""
    payload = batch.serialize()
    fields = _FIELDS.pack(MAGIC, batch.num_rows, base, payload.size)
    return b"".join((fields, _CHECKSUM.pack(_checksum(fields, payload)), payload))


def read_frame(descriptor: int, position: int) -> Frame | None:
    """Return the frame at `position`; None if there is none, it is incomplete, or its checksum is wrong."""
    header = os.pread(descriptor, HEADER_BYTES, position)
    if len(header) < HEADER_BYTES:
        return None
    magic, rows, base, length = _FIELDS.unpack_from(header)
    # The size is compared before reading, so that a damaged length cannot ask for a huge buffer.
    if magic != MAGIC or position + HEADER_BYTES + length > os.fstat(descriptor).st_size:
        return None
    payload = _pread_all(descriptor, length, position + HEADER_BYTES)
    (checksum,) = _CHECKSUM.unpack_from(header, _FIELDS.size)
    if len(payload) != length or _checksum(header[: _FIELDS.size], payload) != checksum:
        return None
    return Frame(base, rows, position, payload)


def find_frame_after(descriptor: int, position: int, base: int) -> Frame | None:
    """Search for a complete frame after `position` with an offset later than `base`."""
    start = position + 1
    while chunk := os.pread(descriptor, _SEARCH_BYTES, start):
        at = chunk.find(MAGIC)
        while at >= 0:
            frame = read_frame(descriptor, start + at)
            if frame is not None and frame.base > base:
                return frame
            at = chunk.find(MAGIC, at + 1)
        start += max(1, len(chunk) - len(MAGIC) + 1)
    return None


def _pread_all(descriptor: int, length: int, position: int) -> bytes:
    """Read `length` bytes in one piece: Linux returns at most 2 GiB a call."""
    data = os.pread(descriptor, length, position)
    if len(data) == length or not data:
        return data
    return data + _pread_all(descriptor, length - len(data), position + len(data))


def _checksum(fields: bytes, payload: bytes | pa.Buffer) -> int:
    digest = xxhash.xxh3_64(fields)
    digest.update(payload)
    return digest.intdigest()


_PAIR = struct.Struct("<QQ")


class IndexEntry(NamedTuple):
    """The frame whose first offset is `base` begins at byte `position`; `number` is the position of the entry in the index."""

    number: int
    base: int
    position: int


class LogIndex:
    """The index file of one partition. Callers of `add` and `replace_from` must hold the partition's lock."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def candidates(self, offset: int) -> Iterator[IndexEntry]:
        """Yield entries of frames that begin at or before `offset`, the nearest first."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except FileNotFoundError:
            return
        try:
            numbers = range(os.fstat(descriptor).st_size // _PAIR.size)
            later = bisect.bisect_right(numbers, offset, key=lambda number: _entry(descriptor, number).base)
            for number in reversed(numbers[:later]):
                yield _entry(descriptor, number)
        finally:
            os.close(descriptor)

    def add(self, pairs: list[tuple[int, int]]) -> None:
        """Add (base, position) pairs after the last complete entry; an incomplete one at the end is overwritten."""
        with self._writable() as descriptor:
            whole = os.fstat(descriptor).st_size // _PAIR.size
            _write(descriptor, whole, pairs)

    def replace_from(self, number: int, pairs: list[tuple[int, int]]) -> None:
        """Keep the entries before `number` and replace the others with these pairs."""
        with self._writable() as descriptor:
            os.ftruncate(descriptor, number * _PAIR.size)
            _write(descriptor, number, pairs)

    @contextlib.contextmanager
    def _writable(self) -> Iterator[int]:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _entry(descriptor: int, number: int) -> IndexEntry:
    base, position = _PAIR.unpack(os.pread(descriptor, _PAIR.size, number * _PAIR.size))
    return IndexEntry(number, base, position)


def _write(descriptor: int, number: int, pairs: list[tuple[int, int]]) -> None:
    os.pwrite(descriptor, b"".join(_PAIR.pack(*pair) for pair in pairs), number * _PAIR.size)
