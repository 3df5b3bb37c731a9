"""One partition of a log: reading, appending and repairing its file of frames. Driver and executors.

Invariants:
1. Offsets count rows from 0 without gaps; a complete frame never changes and is never removed.
2. Only the holder of the lock on the file writes. It first truncates an incomplete frame of a crashed writer.
3. Readers stop before an incomplete frame. If complete frames follow it, the file is damaged, which is an error.
4. Readers get an end offset only when the rows before it are on disk, so that every position survives a crash.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa

from penstock.errors import CorruptStateError, UnavailableError
from penstock.sources.log_file import Frame, IndexEntry, LogIndex, encode_frame, find_frame_after, read_frame
from penstock.storage.file_system import sync_folder

BATCH_ROWS = 65_536
BATCH_BYTES = 32 << 20
_INDEX_TRIES = 8
_ANY_OFFSET = (1 << 63) - 1


class LogSegment:
    """Rows of one partition, by offset. Safe for threads; any number of processes may append and read."""

    def __init__(self, folder: Path, partition: int, schema: pa.Schema) -> None:
        self._path = folder / f"partition-{partition:05d}.log"
        self._partition = partition
        self._schema = schema
        self._index = LogIndex(self._path.with_suffix(".index"))
        self._index_is_whole = False
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._position: int | None = None  # the end of the complete frames; None until first determined
        self._offset = 0
        self._synced_position = 0

    def end_offset(self) -> int:
        """Return the offset after the last complete frame; reads only what was added since the last call."""
        with self._lock, self._failures("look at"):
            descriptor = self._open(os.O_RDONLY)
            if descriptor is None:
                return 0
            position = self._advance(descriptor)
            if position > self._synced_position:
                os.fsync(descriptor)
                self._synced_position = position
            return self._offset

    def append(self, batches: Iterable[pa.RecordBatch], *, sync: bool) -> int:
        """Write each batch as one frame; returns the offset of the first row."""
        with self._lock, self._failures("append to"), self._exclusively() as descriptor:
            position = self._advance(descriptor)
            self._repair_index(descriptor)
            os.ftruncate(descriptor, position)
            first = self._offset
            for batch in batches:
                self._write(descriptor, batch, sync=sync)
            return first

    def read(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows from offset `start` up to, not including, `end`; small frames are joined."""
        pending: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in self._slices(start, end):
            pending.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield _joined(pending)
                pending, rows, size = [], 0, 0
        if pending:
            yield _joined(pending)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _slices(self, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if start >= end:
            return
        with self._failures("read"), contextlib.ExitStack() as stack:
            try:
                # its own descriptor, which `close` does not close
                descriptor = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                raise self._damage(start, 0, "the file is missing") from None
            stack.callback(os.close, descriptor)
            hint = self._nearest(descriptor, start)
            offset, position = (hint.base, hint.position) if hint else (0, 0)
            while offset < end:
                frame = read_frame(descriptor, position)
                if frame is None or frame.base != offset:
                    raise self._damage(offset, position, "there is no complete frame with that offset")
                offset, position = frame.end_offset, frame.end_position
                if offset > start:
                    first = max(start - frame.base, 0)
                    yield frame.batch(self._schema).slice(first, min(end, offset) - frame.base - first)

    def _advance(self, descriptor: int) -> int:
        """Move to the end of the last complete frame and return its position."""
        if self._position is None:
            hint = self._nearest(descriptor, _ANY_OFFSET)
            self._offset, self._position = (hint.base, hint.position) if hint else (0, 0)
        if os.fstat(descriptor).st_size < self._position:
            raise self._damage(
                self._offset, self._position, "the file was cut short; its rows had been delivered"
            )
        for frame in self._frames(descriptor, self._position, self._offset):
            self._offset, self._position = frame.end_offset, frame.end_position
        return self._position

    def _frames(self, descriptor: int, position: int, offset: int) -> Iterator[Frame]:
        """Yield the complete frames from here on; stops before an incomplete one, raises if the file is damaged."""
        while os.fstat(descriptor).st_size > position:
            frame = read_frame(descriptor, position)
            if frame is None:
                later = find_frame_after(descriptor, position, offset)
                if later is None:
                    return
                # A writer may have replaced the incomplete frame and continued since the first read.
                frame = read_frame(descriptor, position)
            if frame is None or frame.base != offset:
                raise self._damage(offset, position, "it is broken there, and other frames follow")
            yield frame
            offset, position = frame.end_offset, frame.end_position

    def _nearest(self, descriptor: int, offset: int) -> IndexEntry | None:
        """Return the nearest index entry that points to a complete frame at or before `offset`."""
        for entry in itertools.islice(self._index.candidates(offset), _INDEX_TRIES):
            frame = read_frame(descriptor, entry.position)
            if frame is not None and frame.base == entry.base <= offset:
                return entry
        return None

    def _repair_index(self, descriptor: int) -> None:
        """Add missing index entries and remove wrong ones at its end; once, before the first write."""
        if self._index_is_whole:
            return
        hint = self._nearest(descriptor, _ANY_OFFSET)
        number, base, position = hint or (0, 0, 0)
        if base == 0:
            number = 0  # entries before that of the first frame are invalid
        pairs = [(frame.base, frame.position) for frame in self._frames(descriptor, position, base)]
        self._index.replace_from(number, pairs)
        self._index_is_whole = True

    def _write(self, descriptor: int, batch: pa.RecordBatch, *, sync: bool) -> None:
        position, base = self._position or 0, self._offset
        data = encode_frame(base, batch)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, memoryview(data)[written:], position + written)
            if sync:
                os.fsync(descriptor)  # before the next frame, so that only the last one can be incomplete
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, position)
            raise
        self._offset, self._position = base + batch.num_rows, position + len(data)
        if sync:
            self._synced_position = self._position
        self._index.add([(base, position)])

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[int]:
        descriptor = self._open(os.O_RDWR | os.O_CREAT)
        assert descriptor is not None
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield descriptor
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)

    def _open(self, flags: int) -> int | None:
        """Return the descriptor, writable once that was asked for; None when there is no file to read."""
        writable = self._descriptor is not None and fcntl.fcntl(self._descriptor, fcntl.F_GETFL) & os.O_RDWR
        if self._descriptor is not None and (writable or not flags & os.O_RDWR):
            return self._descriptor
        existed = self._path.exists()
        try:
            opened = os.open(self._path, flags, 0o644)
        except FileNotFoundError:
            if flags & os.O_CREAT:
                raise
            return None
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = opened
        if not existed:
            sync_folder(self._path.parent)
        return opened

    def _damage(self, offset: int, position: int, what: str) -> CorruptStateError:
        return CorruptStateError(
            f"log partition {self._partition} cannot be read at offset {offset}, byte {position} of "
            f"{self._path}: {what}; nothing from there on is delivered; put the file back from a copy",
            partition=self._partition,
            offset=offset,
            position=position,
            path=str(self._path),
        )

    @contextlib.contextmanager
    def _failures(self, operation: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            cause = "disk full; free space there" if error.errno == errno.ENOSPC else str(error)
            raise UnavailableError(
                f"cannot {operation} log partition {self._partition} at {self._path}: {cause}; "
                "nothing that was there is lost; try again",
                partition=self._partition,
                path=str(self._path),
                errno=error.errno,
            ) from error


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
