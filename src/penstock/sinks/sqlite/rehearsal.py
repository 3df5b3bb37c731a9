"""Rows tried on a table in memory that was made in the same words: it has the same CHECK and STRICT. Tasks.

It has neither the other rows nor the indexes and triggers of the table, so only what a row is refused for by itself counts.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any


class Remembering:
    """Rows for `executemany` that can tell which one came last: the one that was refused."""

    def __init__(self, rows: Iterable[tuple[Any, ...]]) -> None:
        self.last: tuple[Any, ...] = ()
        self._rows = rows

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for row in self._rows:
            self.last = row
            yield row


def first_refused(
    create_sql: str, insert_sql: str, holes: int, rows: Iterable[tuple[Any, ...]]
) -> tuple[Sequence[Any], sqlite3.Error] | None:
    """The first row that the table refuses whatever else is in it, and why; None also where such a table cannot be made in memory."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        memory.execute("PRAGMA foreign_keys = OFF")
        try:
            memory.execute(create_sql)
            memory.execute(f"EXPLAIN {insert_sql}", [None] * holes)
        except sqlite3.OperationalError:
            return None  # a function of the user's, or words of a newer SQLite: the commit tells
        tried = Remembering(rows)
        try:
            memory.executemany(insert_sql, tried)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            return tried.last, error
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
                raise
            return tried.last, error  # a CHECK that cannot be computed, such as one of JSON
    return None
