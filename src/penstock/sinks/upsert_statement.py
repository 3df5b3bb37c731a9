"""The SQL of an upsert in the dialects of the databases, and the meaning of their drivers' errors. Pure.

PEP 249 distinguishes a refused row from an unavailable database, but not a value that is always refused from one that is refused because of
other rows. The databases do, each with its own codes.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from typing import Any

from penstock.errors import ConfigError
from penstock.sinks.sql.mysql_server import REFUSED_ROWS
from penstock.sinks.table_checks import quoted_name

ON_CONFLICT = "on conflict"
ON_DUPLICATE_KEY = "on duplicate key"
DELETE_AND_INSERT = "delete and insert"
STYLES = (ON_CONFLICT, ON_DUPLICATE_KEY, DELETE_AND_INSERT)
PARAMSTYLES = ("qmark", "format", "pyformat", "numeric", "named")
_OF_MYSQL = {"pymysql", "mysqldb", "mysql", "mariadb", "cymysql"}


class UpsertStatement:
    """The statements for one table. `columns` are all written columns, including those of `key`."""

    def __init__(
        self,
        table: str,
        columns: Sequence[str],
        key: Sequence[str],
        style: str,
        paramstyle: str,
        *,
        backticks: bool = False,
    ) -> None:
        self.key = tuple(key)
        self.columns = tuple(columns)
        self._style = style
        self._paramstyle = paramstyle
        self._quote = "`" if backticks or style == ON_DUPLICATE_KEY else '"'
        self._table = ".".join(map(self._quoted, table.split(".")))

    def statements(self) -> list[tuple[str, Sequence[str]]]:
        """Return the statements to run for all rows, each with the columns of its parameters, in order."""
        insert = (
            f"INSERT INTO {self._table} ({self._names(self.columns)}) VALUES ({self._marks(self.columns)})"  # noqa: S608 - all quoted
        )
        if self._style == DELETE_AND_INSERT:
            equal = " AND ".join(
                f"{self._quoted(name)} = {mark}"
                for name, mark in zip(self.key, self._each_mark(self.key), strict=True)
            )
            return [(f"DELETE FROM {self._table} WHERE {equal}", self.key), (insert, self.columns)]  # noqa: S608 - all quoted
        return [(insert + self._action(), self.columns)]

    def probes(self) -> list[str]:
        """Return statements that change nothing, and fail if the table, a column or (if the database checks it) the unique key is missing.

        They run without parameters, so drivers do not interpret a percent sign.
        """
        names = self._names(self.columns)
        select = f"SELECT {names} FROM {self._table} WHERE 1 = 0"  # noqa: S608 - all quoted
        probes = [select, f"INSERT INTO {self._table} ({names}) {select}{self._action()}"]
        wanted = probes[:1] if self._style == DELETE_AND_INSERT else probes
        return [probe.replace("%%", "%") if self._doubles else probe for probe in wanted]

    def parameters(self, row: Sequence[Any]) -> Sequence[Any] | dict[str, Any]:
        """Return the values of one row in the form of the driver's parameter style."""
        if self._paramstyle == "named":
            return {f"c{number}": value for number, value in enumerate(row)}
        return tuple(row)

    def _action(self) -> str:
        others = [self._quoted(name) for name in self.columns if name not in self.key]
        if self._style == ON_DUPLICATE_KEY:
            changed = others or [self._quoted(self.key[0])]
            return " ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in changed)
        target = f" ON CONFLICT ({self._names(self.key)}) DO "
        if not others:
            return target + "NOTHING"
        return target + "UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in others)

    @property
    def _doubles(self) -> bool:
        """Whether a percent sign in a name would be read as a placeholder."""
        return self._paramstyle in {"format", "pyformat"}

    def _quoted(self, name: str) -> str:
        quoted = quoted_name(name, mark=self._quote)
        return quoted.replace("%", "%%") if self._doubles else quoted

    def _names(self, columns: Sequence[str]) -> str:
        return ", ".join(map(self._quoted, columns))

    def _marks(self, columns: Sequence[str]) -> str:
        return ", ".join(self._each_mark(columns))

    def _each_mark(self, columns: Sequence[str]) -> list[str]:
        count = range(len(columns))
        match self._paramstyle:
            case "qmark":
                return ["?" for _ in count]
            case "numeric":
                return [f":{number + 1}" for number in count]
            case "named":
                return [f":c{number}" for number in count]
        return ["%s" for _ in count]


def is_of_mysql(thing: Any) -> bool:
    """Return whether a connection or an error belongs to a driver of MySQL or MariaDB, where double quotes enclose strings."""
    return type(thing).__module__.partition(".")[0].lower() in _OF_MYSQL


def paramstyle_of(connection: Any) -> str:
    """Return the parameter style of the driver of this connection (PEP 249)."""
    package = type(connection).__module__.partition(".")[0]
    found = getattr(sys.modules.get(package), "paramstyle", None)
    if found not in PARAMSTYLES:
        raise ConfigError(
            f"the package {package} of the connection does not name its parameter style; set paramstyle= to one of {PARAMSTYLES}",
            package=package,
        )
    return str(found)


def commits_by_itself(connection: Any) -> bool:
    """Return whether the connection is in autocommit mode. PEP 249 has no such mode, but most drivers do."""
    if isinstance(connection, sqlite3.Connection) and connection.isolation_level is None:
        return True
    ask = getattr(connection, "get_autocommit", None)
    mode = ask() if callable(ask) else getattr(connection, "autocommit", False)
    return mode is True


_BAD_ROWS = {"IntegrityError", "DataError", "ProgrammingError", "NotSupportedError", "InterfaceError",
    "TypeError", "ValueError", "OverflowError"}  # fmt: skip
"""The errors of PEP 249 that the same rows would raise again, and those that drivers raise for a value that they cannot send."""
_MYSQL_OTHER_ROWS = {1062, 1216, 1452, 1644}
"""A unique key, foreign keys, and triggers, which may have read other rows."""
_SQLITE_ALONE = {
    sqlite3.SQLITE_CONSTRAINT_CHECK,
    sqlite3.SQLITE_CONSTRAINT_NOTNULL,
    sqlite3.SQLITE_MISMATCH,
    3091,  # SQLITE_CONSTRAINT_DATATYPE: STRICT
}
_NOT_NULL, _CHECK = "23502", "23514"


def is_bad_row(error: Exception) -> bool:
    """Return whether the same row would be refused again, unless the rows in the table change."""
    if _kinds(error) & _BAD_ROWS:
        return True
    # PyMySQL reports a failed CHECK as an outage
    return is_of_mysql(error) and _number(error) in REFUSED_ROWS


def is_refused_alone(error: Exception) -> bool:
    """Return whether the row would be refused whatever other rows there are; False if the driver does not say."""
    if is_of_mysql(error) and _number(error) in REFUSED_ROWS:
        return _number(error) not in _MYSQL_OTHER_ROWS
    if "IntegrityError" not in _kinds(error):
        return is_bad_row(error)
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", None) in _SQLITE_ALONE
    return _state(error) in {_NOT_NULL, _CHECK}


def _kinds(error: Exception) -> set[str]:
    """Return the names of an error's classes, among them those of the DB-API."""
    return {kind.__name__ for kind in type(error).__mro__}


def _state(error: Exception) -> Any:
    """Return the SQLSTATE from where psycopg and similar drivers keep it."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def _number(error: Exception) -> Any:
    """Return the number of an error of MySQL or MariaDB."""
    return getattr(error, "errno", None) or next(iter(error.args), None)
