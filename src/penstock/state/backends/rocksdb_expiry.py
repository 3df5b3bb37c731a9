"""Remove expired rows from a database, a part with every batch. Runs in tasks on executors.

RocksDB's own merges cannot be told what has expired: its Python package has no compaction filter. So a batch that writes also looks
through rows, from where the batch before ended: twice as many as it wrote. More than once as many is needed, since each row it wrote may be
a new one. When a round is done it rests until half of the time has passed until the last row that it has seen will have expired.

The cursor is a record in the database, so that it is part of the version.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from penstock.errors import CorruptStateError
from penstock.state.backends.rocksdb_header import CURSOR_KEY
from penstock.state.backends.rocksdb_table import RocksdbTable
from penstock.state.backends.rocksdb_version import WorkingVersion

LEAST_SEEN = 1024
SEEN_PER_WRITE = 2


class Cursor(msgspec.Struct, frozen=True):
    """Where to go on, when the first row that was seen in this round will expire, and until when to rest.

    It holds for one time to live, the shortest: with another one a round begins anew.
    """

    ttl_us: int
    position: bytes = b""
    first_us: int = sys.maxsize
    rest_until_us: int = 0


_CURSORS = msgspec.msgpack.Decoder(Cursor)


def expire_some(version: WorkingVersion, tables: Iterable[RocksdbTable], now_us: int) -> None:
    """Look at the rows whose turn it is. Called before the batch is frozen; does nothing in one that has written nothing."""
    mortal = [table for table in tables if table.shortest_ttl_us is not None]
    if not mortal or not version.changed:
        return
    ttl_us = min(table.shortest_ttl_us or 0 for table in mortal)
    cursor = _stored_cursor(version, ttl_us)
    if now_us < cursor.rest_until_us:
        return
    left = max(LEAST_SEEN, SEEN_PER_WRITE * version.written)
    cursor = _walked(mortal, cursor, left, now_us)
    version.put([CURSOR_KEY], [msgspec.msgpack.encode(cursor)])


def _walked(mortal: list[RocksdbTable], cursor: Cursor, left: int, now_us: int) -> Cursor:
    position, first_us = cursor.position, cursor.first_us
    for table in mortal:
        start, stop = table.bounds
        if position >= stop:
            continue
        behind, seen, first = table.expire(max(start, position), left)
        left -= seen
        first_us = min(first_us, first)
        if behind is not None:
            return Cursor(cursor.ttl_us, behind, first_us)
    # what was written behind the cursor in the meantime lives at least so long
    last_us = now_us + cursor.ttl_us
    return Cursor(cursor.ttl_us, rest_until_us=min(first_us, last_us) + max(0, last_us - first_us) // 2)


def expire_all(tables: Iterable[RocksdbTable]) -> None:
    """Look at all rows at once."""
    for table in tables:
        if table.shortest_ttl_us is not None:
            table.expire(table.bounds[0], sys.maxsize)


def _stored_cursor(version: WorkingVersion, ttl_us: int) -> Cursor:
    (record,) = version.get([CURSOR_KEY])
    if record is None:
        return Cursor(ttl_us)
    try:
        cursor = _CURSORS.decode(record)
    except msgspec.MsgspecError as cause:
        raise CorruptStateError(
            f"the database of {version.label} has a cursor that cannot be read: {cause}; restore an older checkpoint",
            file=version.label,
        ) from cause
    return cursor if cursor.ttl_us == ttl_us else Cursor(ttl_us)
