"""The backend `rocksdb`: state in RocksDB on the machine's disk. Runs in tasks on executors.

A batch opens the database of the version before in a folder of its own, works in it, and closes it. The snapshot is
a set of hard links; a checkpoint uploads the sorted files that are new and names the others (`rocksdb_folder`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import IncompatibleStateError
from penstock.optional_package import optional_package
from penstock.state.backends.base import (
    VALUES,
    KeyBatch,
    OpenState,
    Part,
    StateBackend,
    StateHandle,
    StateLayout,
    Workplace,
)

if TYPE_CHECKING:
    from penstock.state.backends.rocksdb_table import RocksdbTable
    from penstock.state.backends.rocksdb_version import WorkingVersion


class RocksdbBackend(StateBackend):
    """Keep state in RocksDB: bounded by disk, not by memory. Needs the extra `rocksdb`."""

    name = "rocksdb"

    def __init__(self) -> None:
        _check_installed()

    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> RocksdbState:
        """See `StateBackend.open`."""
        _check_installed()  # the driver may have it and this machine not
        from penstock.state.backends.rocksdb_table import open_tables
        from penstock.state.backends.rocksdb_version import open_version

        if handle is not None and handle.backend != self.name:
            raise IncompatibleStateError(
                f"the state of {workplace.subtask} was written by backend {handle.backend!r}, "
                "which keeps no database; use that backend, or start from a savepoint",
                subtask=str(workplace.subtask),
                backend=handle.backend,
            )
        version = open_version(workplace, layout, handle.refs if handle else ())
        return RocksdbState(workplace, version, open_tables(workplace, layout, version), handle)


class RocksdbState(OpenState):
    """Rows in the database of one version, open for writing."""

    def __init__(
        self,
        workplace: Workplace,
        version: WorkingVersion,
        tables: Mapping[str, RocksdbTable],
        before: StateHandle | None,
    ) -> None:
        super().__init__(before)
        self._workplace = workplace
        self._version = version
        self._tables = tables
        self._values = tables[VALUES]

    @property
    def now_us(self) -> int:
        """See `OpenState.now_us`."""
        return self._workplace.time.now_us

    def read_parts(self, keys: KeyBatch, max_bytes: int) -> Iterator[Part]:
        """See `OpenState.read_parts`."""
        return self._values.read_parts(keys, max_bytes)

    def write(
        self, keys: KeyBatch, values: pa.RecordBatch, deleted: npt.NDArray[np.bool_] | None = None
    ) -> None:
        """See `OpenState.write`."""
        self._values.write(keys, values, deleted)

    def table(self, name: str) -> RocksdbTable:
        """See `OpenState.table`."""
        return self._tables[name]

    def purge(self) -> None:
        """See `OpenState.purge`."""
        from penstock.state.backends.rocksdb_expiry import expire_all

        expire_all(self._tables.values())

    def freeze(self) -> StateHandle:
        """See `OpenState.freeze`."""
        from penstock.state.backends.rocksdb_expiry import expire_some

        for table in self._tables.values():
            table.check_written()
        expire_some(self._version, self._tables.values(), self._workplace.time)
        return StateHandle(
            subtask=self._workplace.subtask,
            backend=RocksdbBackend.name,
            version=self._workplace.version,
            refs=self._version.freeze(),
            generation=self.generation,
        )

    def scan(self) -> Iterator[pa.RecordBatch]:
        """See `OpenState.scan`; writes of this batch are included."""
        return self._values.scan()

    def close(self) -> None:
        """See `OpenState.close`; the working folder is removed."""
        self._version.close()


def _check_installed() -> None:
    optional_package("rocksdict", needed_by="backend 'rocksdb'", extra="rocksdb")
