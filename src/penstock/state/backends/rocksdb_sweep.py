"""Remove expired rows from a database, a part with every batch. Runs in tasks on executors.

RocksDB's own merges cannot be told what has expired: its Python package has no compaction filter. So every batch that writes also walks
over rows, from where the batch before ended: twice as many as it wrote. More than once as many is needed, since each row it wrote may be a
new one; with twice as many at most half of the rows have expired. The cursor is a record in the database, so that it is part of
the version.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from penstock.state.backends.rocksdb_header import CURSOR_KEY
from penstock.state.backends.rocksdb_table import RocksdbTable
from penstock.state.backends.rocksdb_version import WorkingVersion

LEAST_SWEPT = 1024
SWEPT_PER_WRITE = 2


def sweep(version: WorkingVersion, tables: Iterable[RocksdbTable]) -> None:
    """Look at the rows whose turn it is. Called before the batch is frozen; does nothing in one that has written nothing."""
    mortal = [(bounds, table) for table in tables if (bounds := table.bounds) is not None]
    if not mortal or not version.changed:
        return
    left = max(LEAST_SWEPT, SWEPT_PER_WRITE * version.written)
    (cursor,) = version.get([CURSOR_KEY])
    position = cursor or b""
    for (start, stop), table in mortal:
        if position >= stop:
            continue
        behind, seen = table.sweep(max(start, position), left)
        left -= seen
        if behind is not None:
            position = behind
            break
    else:
        position = b""  # a round is done
    version.put([CURSOR_KEY], [position])


def sweep_all(tables: Iterable[RocksdbTable]) -> None:
    """Look at all rows at once."""
    for table in tables:
        if table.bounds is not None:
            table.sweep(table.bounds[0], sys.maxsize)
