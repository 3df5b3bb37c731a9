"""Remove expired rows from a database, a part with every batch. Runs in tasks on executors.

RocksDB's own merges cannot be told what has expired: its Python package has no compaction filter. So a batch that writes also looks
through rows, from where the batch before ended: twice as many as it wrote. More than once as many is needed, since each row it wrote may be
a new one. When a round is done it rests until half of the time has passed until the last row that it has seen will have expired.

The cursor is a record in the database, so that it is part of the version.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

import msgspec

from penstock.errors import CorruptStateError
from penstock.state.backends.rocksdb_header import CURSOR_KEY
from penstock.state.backends.rocksdb_table import RocksdbTable
from penstock.state.backends.rocksdb_version import WorkingVersion
from penstock.state.lifetimes import FAR_AWAY_US, Measure, StateTime

LEAST_SEEN = 1024
SEEN_PER_WRITE = 2


class Cursor(msgspec.Struct, frozen=True):
    """Where to go on, when the first row that was seen in this round will expire, and until when to rest: for each clock.

    It holds for one time to live by each, the shortest: with another one a round begins anew.
    """

    ttls_us: dict[str, int]
    position: bytes = b""
    first_us: dict[str, int] = {}
    rest_until_us: dict[str, int] = {}


_CURSORS = msgspec.msgpack.Decoder(Cursor)


def expire_some(version: WorkingVersion, tables: Iterable[RocksdbTable], time: StateTime) -> None:
    """Look at the rows whose turn it is. Called before the batch is frozen; does nothing in one that has written nothing.

    Of a table by time all that has expired is removed at once: it lies in front.
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
    cursor = _walked(mortal, cursor, max(LEAST_SEEN, SEEN_PER_WRITE * written), time)
    version.put([CURSOR_KEY], [msgspec.msgpack.encode(cursor)])


def _shortest(mortal: list[RocksdbTable]) -> dict[str, int]:
    shortest: dict[str, int] = {}
    for table in mortal:
        for clock, ttl_us in table.shortest_ttls_us.items():
            shortest[clock] = min(shortest.get(clock, ttl_us), ttl_us)
    return shortest


def _rests(cursor: Cursor, time: StateTime) -> bool:
    """Until the first of the moments has come. One further away than any time to live is of the end of time, before which it is again."""
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
    """What was written behind the cursor in the meantime lives so long from now on; by event time it may be less."""
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
