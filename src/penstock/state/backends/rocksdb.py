"""The backend `rocksdb`: state in RocksDB on the machine's disk. Runs in tasks on executors.

A batch opens the database of the version before in a folder of its own, works in it, and closes it. The snapshot is
a set of hard links; a checkpoint uploads the sorted files that are new and names the others (`rocksdb_folder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import IncompatibleStateError
from penstock.optional_package import optional_package
from penstock.state.backends.base import (
    KeyBatch,
    OpenState,
    Part,
    StateBackend,
    StateHandle,
    StateLayout,
    Workplace,
)
from penstock.state.backends.rocksdb_rows import RowCodec
from penstock.state.backends.sorted_file import scan_schema
from penstock.state.backends.write_check import WriteCheck
from penstock.state.sizes import PART_BYTES

if TYPE_CHECKING:
    from penstock.state.backends.rocksdb_version import WorkingVersion

ROWS_AT_ONCE = 8192
"""How many rows are Python objects at a time; it bounds memory, not what a batch may hold."""


class RocksdbBackend(StateBackend):
    """Keep state in RocksDB: bounded by disk, not by memory. Needs the extra `rocksdb`."""

    name = "rocksdb"

    def __init__(self) -> None:
        _check_installed()

    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> RocksdbState:
        """See `StateBackend.open`."""
        _check_installed()  # the driver may have it and this machine not
        from penstock.state.backends.rocksdb_version import open_version

        if handle is not None and handle.backend != self.name:
            raise IncompatibleStateError(
                f"the state of {workplace.subtask} was written by backend {handle.backend!r}, "
                "which keeps no database; use that backend, or start from a savepoint",
                subtask=str(workplace.subtask),
                backend=handle.backend,
            )
        version = open_version(workplace, layout, handle.refs if handle else ())
        return RocksdbState(workplace, layout, version)


class RocksdbState(OpenState):
    """Rows in the database of one version, open for writing."""

    def __init__(self, workplace: Workplace, layout: StateLayout, version: WorkingVersion) -> None:
        self._workplace = workplace
        self._layout = layout
        self._version = version
        self._codec = RowCodec(layout)
        self._check = WriteCheck(workplace, layout)

    def read_parts(self, keys: KeyBatch, max_bytes: int) -> Iterator[Part]:
        """See `OpenState.read_parts`."""
        waiting: list[bytes | None] = []
        size = 0
        for _, part in _parts(keys):
            for value in self._version.database.get(self._codec.encode_keys(part)):
                size += len(value or b"")
                if waiting and size > max_bytes:
                    yield self._decoded(waiting)
                    waiting, size = [], len(value or b"")
                waiting.append(value)
        yield self._decoded(waiting)

    def _decoded(self, values: list[bytes | None]) -> Part:
        found = np.fromiter((value is not None for value in values), dtype=np.bool_, count=len(values))
        parts = [
            self._codec.decode_values(values[start : start + ROWS_AT_ONCE], self._version.label)
            for start in range(0, max(1, len(values)), ROWS_AT_ONCE)
        ]
        return parts[0] if len(parts) == 1 else pa.concat_batches(parts), found

    def write(
        self, keys: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """See `OpenState.write`."""
        if not len(keys):
            return
        self._check.check(keys, values)
        for start, part in _parts(keys):
            rows: list[bytes | None] = list(self._codec.encode_values(values.slice(start, len(part))))
            if deleted is not None:
                for gone in np.flatnonzero(deleted[start : start + len(part)]).tolist():
                    rows[gone] = None
            self._version.put(self._codec.encode_keys(part), rows)

    def freeze(self) -> StateHandle:
        """See `OpenState.freeze`."""
        self._check.check_order()
        return StateHandle(
            subtask=self._workplace.subtask,
            backend=RocksdbBackend.name,
            version=self._workplace.version,
            refs=self._version.freeze(),
        )

    def scan(self) -> Iterator[pa.RecordBatch]:
        """See `OpenState.scan`; writes of this batch are included."""
        schema = scan_schema(self._layout)
        label = self._version.label
        for rows in _groups(self._version.rows()):
            sort_keys, keys = self._codec.decode_keys([key for key, _ in rows], label)
            values = self._codec.decode_values([value for _, value in rows], label)
            columns = [pa.array(sort_keys), *keys.columns, *values.columns]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def close(self) -> None:
        """See `OpenState.close`; the working folder is removed."""
        self._version.close()


def _parts(keys: KeyBatch) -> Iterator[tuple[int, KeyBatch]]:
    """Slices of at most `ROWS_AT_ONCE`, with where they start; at least one, so that no keys have columns too."""
    for start in range(0, max(1, len(keys)), ROWS_AT_ONCE):
        length = min(ROWS_AT_ONCE, len(keys) - start)
        yield start, KeyBatch(keys.sort_keys[start : start + length], keys.columns.slice(start, length))


def _groups(rows: Iterator[tuple[bytes, bytes]]) -> Iterator[list[tuple[bytes, bytes]]]:
    """At most `ROWS_AT_ONCE` rows, and no more than fit into an array."""
    group: list[tuple[bytes, bytes]] = []
    size = 0
    for row in rows:
        size += len(row[0]) + len(row[1])
        if group and (size > PART_BYTES or len(group) == ROWS_AT_ONCE):
            yield group
            group, size = [], len(row[0]) + len(row[1])
        group.append(row)
    if group:
        yield group


def _check_installed() -> None:
    optional_package("rocksdict", needed_by="backend 'rocksdb'", extra="rocksdb")
