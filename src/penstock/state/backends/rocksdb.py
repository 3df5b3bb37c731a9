"""The backend `rocksdb`: state in RocksDB on the machine's disk. Runs in tasks on executors.

A batch opens the database of the version before in a folder of its own, works in it, and closes it. The snapshot is
a set of hard links; a checkpoint uploads the sorted files that are new and names the others (`rocksdb_folder`).

Remove expired rows from a database, a part with every batch. Runs in tasks on executors.

RocksDB's own merges cannot be told what has expired: its Python package has no compaction filter. So a batch that writes also looks
through rows, from where the batch before ended: twice as many as it wrote. More than once as many is needed, since each row it wrote may be
a new one. When a round is done it rests until half of the time has passed until the last row that it has seen will have expired.

The cursor is a record in the database, so that it is part of the version.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import msgspec
from typing_extensions import override

from penstock.errors import CorruptStateError, IncompatibleStateError
from penstock.lazy_imports import optional_package
from penstock.state.backends.base import (
    OpenState,
    StateBackend,
    StateHandle,
    StateLayout,
    Workplace,
)
from penstock.state.lifetimes import FAR_AWAY_US, Measure, StateTime

if TYPE_CHECKING:
    from penstock.state.backends.rocksdb_table import RocksdbTable
    from penstock.state.backends.rocksdb_version import WorkingVersion


class RocksdbBackend(StateBackend):
    """Keep state in RocksDB: bounded by disk, not by memory. Needs the extra `rocksdb`."""

    name = "rocksdb"

    def __init__(self) -> None:
        _check_installed()

    @override
    def open(self, workplace: Workplace, layout: StateLayout, handle: StateHandle | None) -> RocksdbState:
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

    backend = RocksdbBackend.name

    def __init__(
        self,
        workplace: Workplace,
        version: WorkingVersion,
        tables: Mapping[str, RocksdbTable],
        before: StateHandle | None,
    ) -> None:
        super().__init__(workplace, tables, before)
        self._version = version
        self._tables = tables

    @override
    def purge(self) -> None:
        expire_all(self._tables.values())

    @override
    def freeze(self) -> StateHandle:
        for table in self._tables.values():
            table.check_written()
        expire_some(self._version, self._tables.values(), self._workplace.time)
        return self._handle(self._version.freeze())

    @override
    def close(self) -> None:
        """The working folder is removed."""
        self._version.close()


def _check_installed() -> None:
    optional_package("rocksdict", needed_by="backend 'rocksdb'", extra="rocksdb")


LEAST_SEEN = 1024
SEEN_PER_WRITE = 2


class Cursor(msgspec.Struct, frozen=True):
    """For each clock: where the search continues, when the first row seen in this round will expire, and until when to pause.

    It is valid for the shortest time to live of each clock: if that changes, a new round begins.
    """

    ttls_us: dict[str, int]
    position: bytes = b""
    first_us: dict[str, int] = {}
    rest_until_us: dict[str, int] = {}


_CURSORS = msgspec.msgpack.Decoder(Cursor)


def expire_some(version: WorkingVersion, tables: Iterable[RocksdbTable], time: StateTime) -> None:
    """Check the next rows of the round. Called before the batch is frozen; does nothing if the batch has written nothing.

    In a table by time all expired rows are removed at once, because they come first.
    """
    mortal = [table for table in tables if table.shortest_ttls_us]
    if not mortal or not version.changed:
        return
    written = version.written
    for table in mortal:
        if table.expires_from_the_front:
            table.expire_front()
    mortal = [table for table in mortal if not table.expires_from_the_front]
    if not mortal:
        return
    cursor = _stored_cursor(version, _shortest(mortal))
    if _rests(cursor, time):
        return
    from penstock.state.backends.rocksdb_database import CURSOR_KEY

    cursor = _walked(mortal, cursor, max(LEAST_SEEN, SEEN_PER_WRITE * written), time)
    version.put([CURSOR_KEY], [msgspec.msgpack.encode(cursor)])


def _shortest(mortal: list[RocksdbTable]) -> dict[str, int]:
    shortest: dict[str, int] = {}
    for table in mortal:
        for clock, ttl_us in table.shortest_ttls_us.items():
            shortest[clock] = min(shortest.get(clock, ttl_us), ttl_us)
    return shortest


def _rests(cursor: Cursor, time: StateTime) -> bool:
    """Whether the search pauses. A time further away than a time to live was set at the end of time, and does not count."""
    rest_until_us = cursor.rest_until_us
    return bool(rest_until_us) and all(
        0 < moment_us - time.now_by(Measure(clock)) <= cursor.ttls_us[clock]
        for clock, moment_us in rest_until_us.items()
    )


def _walked(mortal: list[RocksdbTable], cursor: Cursor, left: int, time: StateTime) -> Cursor:
    position, first_us = cursor.position, dict(cursor.first_us)
    for table in mortal:
        start, stop = table.bounds
        if position >= stop:
            continue
        behind, seen, first = table.expire(max(start, position), left)
        left -= seen
        for clock, moment_us in first.items():
            first_us[clock] = min(first_us.get(clock, moment_us), moment_us)
        if behind is not None:
            return Cursor(cursor.ttls_us, behind, first_us)
    return Cursor(cursor.ttls_us, rest_until_us=_rest(cursor.ttls_us, first_us, time))


def _rest(ttls_us: Mapping[str, int], first_us: Mapping[str, int], time: StateTime) -> dict[str, int]:
    """Rows written after the cursor passed live at least this long from now; in event time it may be less."""
    rest = {}
    for clock, ttl_us in ttls_us.items():
        last_us, first = time.now_by(Measure(clock)) + ttl_us, first_us.get(clock, FAR_AWAY_US)
        rest[clock] = min(first, last_us) + max(0, last_us - first) // 2
    return rest


def expire_all(tables: Iterable[RocksdbTable]) -> None:
    """Look at all rows at once."""
    for table in tables:
        if table.shortest_ttls_us:
            table.expire(table.bounds[0], sys.maxsize)


def _stored_cursor(version: WorkingVersion, ttls_us: dict[str, int]) -> Cursor:
    from penstock.state.backends.rocksdb_database import CURSOR_KEY

    (record,) = version.get([CURSOR_KEY])
    if record is None:
        return Cursor(ttls_us)
    try:
        cursor = _CURSORS.decode(record)
    except msgspec.MsgspecError as cause:
        raise CorruptStateError(
            f"the database of {version.label} has a cursor that cannot be read: {cause}; restore an older checkpoint",
            file=version.label,
        ) from cause
    return cursor if cursor.ttls_us == ttls_us else Cursor(ttls_us)
