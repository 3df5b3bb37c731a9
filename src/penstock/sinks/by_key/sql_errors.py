"""What the error of a DB-API driver says about a row. Pure.

PEP 249 tells a refused row from a database that is away, but not a value that is refused always from one that is refused because of other
rows. The databases do, each with codes of its own.
"""

from __future__ import annotations

import sqlite3
from typing import Any

from penstock.sinks.by_key.sql_upsert_statement import is_of_mysql
from penstock.sinks.sql.mysql.errors import REFUSED_ROWS

_BAD_ROWS = {"IntegrityError", "DataError", "ProgrammingError", "NotSupportedError", "InterfaceError",
    "TypeError", "ValueError", "OverflowError"}  # fmt: skip
"""What PEP 249 calls errors that the same rows would meet again, and what drivers raise for a value that they cannot send."""
_MYSQL_OTHER_ROWS = {1062, 1216, 1452, 1644}
"""A unique key, foreign keys, a trigger that refuses: who knows where it has looked."""
_SQLITE_ALONE = {
    sqlite3.SQLITE_CONSTRAINT_CHECK,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL,
    sqlite3.SQLITE_MISMATCH,
    3091,  # SQLITE_CONSTRAINT_DATATYPE: STRICT
}
_NOT_NULL, _CHECK = "23502", "23514"


def is_bad_row(error: Exception) -> bool:
    """Whether the same row would be refused again, unless the rows in the table change."""
    if _kinds(error) & _BAD_ROWS:
        return True
    return is_of_mysql(error) and _number(error) in REFUSED_ROWS  # PyMySQL takes a CHECK for an outage


def is_refused_alone(error: Exception) -> bool:
    """Whether the row would be refused whatever other rows there are; False where the driver does not say."""
    if is_of_mysql(error) and _number(error) in REFUSED_ROWS:
        return _number(error) not in _MYSQL_OTHER_ROWS
    if "IntegrityError" not in _kinds(error):
        return is_bad_row(error)
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in _SQLITE_ALONE
    return _state(error) in {_NOT_NULL, _CHECK}


def _kinds(error: Exception) -> set[str]:
    """What a driver's error is, in the words of the DB-API."""
    return {kind.__name__ for kind in type(error).__mro__}


def _state(error: Exception) -> Any:
    """The SQLSTATE, where psycopg and its relatives keep it."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _number(error: Exception) -> Any:
    """The number that MySQL and MariaDB give to an error."""
    return getattr(error, "errno", None) or next(iter(error.args), None)
