"""The backend `rocksdb`: state in RocksDB on the machine's disk. Runs in tasks on executors.

A batch opens the database of the version before in a folder of its own, works in it, and closes it. The snapshot is
a set of hard links; a checkpoint uploads the sorted files that are new and names the others (`rocksdb_folder`).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ConfigError, IncompatibleStateError
from penstock.state.backends.base import (
    KeyBatch,
    OpenState,
    StateBackend,
    StateHandle,
    StateLayout,
    Workplace,
)
from penstock.state.backends.rocksdb_rows import RowCodec
from penstock.state.backends.run_file import scan_schema
from penstock.state.backends.write_check import WriteCheck

if TYPE_CHECKING:
    from penstock.state.backends.rocksdb_version import WorkingVersion

ROWS_AT_ONCE = 8192
"""How many rows are Python objects at a time; it bounds memory, not what a batch may hold."""


class RocksdbBackend(StateBackend):
    """Keep state in RocksDB: bounded by disk, not by memory. Needs `pip install 'penstock[rocksdb]'`."""

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
        version = open_version(workplace, layout, handle.runs if handle else ())
        return RocksdbState(workplace, layout, version)


class RocksdbState(OpenState):
    """Rows in the database of one version, open for writing."""

    def __init__(self, workplace: Workplace, layout: StateLayout, version: WorkingVersion) -> None:
        self._workplace = workplace
        self._layout = layout
        self._version = version
        self._codec = RowCodec(layout)
        self._check = WriteCheck(workplace, layout)

    def read(self, keys: KeyBatch) -> tuple[pa.RecordBatch, npt.NDArray[np.bool_]]:
        """See `OpenState.read`."""
        parts: list[pa.RecordBatch] = []
        found = np.zeros(len(keys), dtype=np.bool_)
        for start, part in _parts(keys):
            values = self._version.database.get(self._codec.encode_keys(part))
            found[start : start + len(part)] = [value is not None for value in values]
            parts.append(self._codec.decode_values(values, self._version.label))
        if len(parts) == 1:
            return parts[0], found
        return pa.concat_batches(parts), found

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
            runs=self._version.freeze(),
        )

    def scan(self) -> Iterator[pa.RecordBatch]:
        """See `OpenState.scan`; writes of this batch are included."""
        schema = scan_schema(self._layout)
        label = self._version.label
        remaining = self._version.rows()
        while rows := list(islice(remaining, ROWS_AT_ONCE)):
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


def _check_installed() -> None:
    if find_spec("rocksdict") is None:
        raise ConfigError(
            "backend 'rocksdb' needs the package rocksdict, which is not installed; "
            "run pip install 'penstock[rocksdb]' on the driver and on every executor",
            package="rocksdict",
        )
