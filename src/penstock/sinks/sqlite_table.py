"""The table that a `SQLite` sink writes to: its SQL, its checks and its values. Driver; values in tasks.

Tasks convert values, so that nothing is left to convert, or to fail, at commit. They also try rows on a table in memory with the same
definition, so that its CHECK and STRICT apply. That table has neither the other rows nor the indexes and triggers of the real one, so it
only finds rows that are refused on their own.

whole numbers, booleans     INTEGER
floating point              REAL; SQLite has no NaN, it becomes NULL
strings                     TEXT
dates, times, timestamps    TEXT, ISO 8601; a timestamp with a time zone is in UTC and ends in 'Z'
decimals                    TEXT, exact
durations, lists, structs   TEXT, JSON
bytes                       BLOB
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError, ConfigError
from penstock.sinks.json_text import check_years, json_texts, timestamp_texts
from penstock.sinks.sql.values import is_bytes, is_text
from penstock.sinks.table_checks import check_columns, check_declared, quoted_name
from penstock.state.ddl import spark_type


def storage_class(data_type: pa.DataType) -> str:
    """Return the SQLite storage class for a column of this type."""
    if pa.types.is_dictionary(data_type):
        return storage_class(data_type.value_type)
    if pa.types.is_integer(data_type) or pa.types.is_boolean(data_type):
        return "INTEGER"
    if pa.types.is_floating(data_type):
        return "REAL"
    return "BLOB" if is_bytes(data_type) else "TEXT"


def storage_batch(batch: pa.RecordBatch, *, knows_nan: bool = False) -> pa.RecordBatch:
    """Convert every column; a value that SQLite cannot hold raises `BadRecordError` with the name of the column."""
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        try:
            columns.append(_storage_column(column, knows_nan=knows_nan))
        except (pa.ArrowException, BadRecordError) as error:
            raise BadRecordError(
                f"column {field.name!r} of type {spark_type(field.type)} holds a value that SQLite cannot store: {error}; "
                "filter or change such rows before write_to",
                column=field.name,
            ) from error
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _storage_column(column: pa.Array, *, knows_nan: bool) -> pa.Array:
    data_type = column.type
    if pa.types.is_dictionary(data_type):
        return _storage_column(column.cast(data_type.value_type), knows_nan=knows_nan)
    match storage_class(data_type):
        case "INTEGER":
            return column.cast(pa.int64())
        case "REAL":
            doubles = column.cast(pa.float64())
            if knows_nan:
                return doubles
            return pc.if_else(pc.is_nan(doubles), pa.scalar(None, pa.float64()), doubles)
        case "BLOB":
            return column.cast(pa.large_binary())
    return _text_column(column).cast(pa.large_string())


def _text_column(column: pa.Array) -> pa.Array:
    data_type = column.type
    if pa.types.is_timestamp(data_type):
        return timestamp_texts(column)
    if pa.types.is_decimal(data_type):
        return _decimal_texts(column)
    if pa.types.is_date(data_type):
        check_years(column.cast(pa.date32()).view(pa.int32()), units_per_day=1)
        return column.cast(pa.large_string())
    if is_text(data_type) or pa.types.is_time(data_type):
        return column.cast(pa.large_string())
    if pa.types.is_null(data_type):
        return pa.nulls(len(column), pa.string())
    return json_texts(column)


def _decimal_texts(column: pa.Array) -> pa.Array:
    """Write decimals with all digits; Arrow writes very small ones as 1E-10."""
    texts = column.cast(pa.string())
    if not pc.any(pc.match_substring(texts, "E")).as_py():
        return texts
    return pa.array([None if value is None else f"{value:f}" for value in column.to_pylist()], pa.string())


# Which declared affinities keep a value as it is (https://sqlite.org/datatype3.html, section 3).
_KEPT_BY = {
    "INTEGER": {"INTEGER", "NUMERIC", "BLOB"},
    "REAL": {"REAL", "NUMERIC", "BLOB"},
    "TEXT": {"TEXT", "BLOB"},
    "BLOB": {"BLOB"},
}
_RULES = re.compile(r"\b(CHECK|STRICT)\b", re.IGNORECASE)
"""A definition with one of these words may refuse a value. If it is only a name, the rehearsal costs time and does no harm."""


class SqliteTable:
    """One table, and the columns of its key when rows are upserted."""

    def __init__(self, name: str, key: Sequence[str]) -> None:
        self.name = name
        self.key = tuple(key)

    def create_sql(self, columns: pa.Schema) -> str:
        """Return the statement that creates the table if it is missing. Without NOT NULL, SQLite accepts any number of NULL keys."""
        key = {name.lower() for name in self.key}
        parts = [
            f"{quoted_name(field.name)} "
            f"{storage_class(field.type)}{' NOT NULL' if field.name.lower() in key else ''}"
            for field in columns
        ]
        if self.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quoted_name, self.key))})")
        return f"CREATE TABLE IF NOT EXISTS {quoted_name(self.name)} ({', '.join(parts)})"

    def rules_sql(self, database: sqlite3.Connection) -> str | None:
        """Return the definition of the table if it has rules besides NOT NULL; None otherwise, or if there is no table."""
        found = database.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'table' AND lower(name) = lower(?)", [self.name]
        ).fetchone()
        return found[0] if found is not None and _RULES.search(found[0]) else None

    def insert_sql(self, columns: Sequence[str]) -> str:
        """Return the statement that inserts one row, or replaces the other columns of the row with the same key."""
        insert = self._insert("INSERT", columns)
        if not self.key:
            return insert
        key = {name.lower() for name in self.key}
        changes = [
            f"{quoted_name(name)} = excluded.{quoted_name(name)}"
            for name in columns
            if name.lower() not in key
        ]
        action = f"UPDATE SET {', '.join(changes)}" if changes else "NOTHING"
        return f"{insert} ON CONFLICT ({', '.join(map(quoted_name, self.key))}) DO {action}"

    def rehearsal_sql(self, columns: Sequence[str]) -> str:
        """Return the statement that inserts one row into the rehearsal table, where no other row may collide with it."""
        return self._insert("INSERT OR REPLACE", columns)

    def _insert(self, verb: str, columns: Sequence[str]) -> str:
        names = ", ".join(map(quoted_name, columns))
        return f"{verb} INTO {quoted_name(self.name)} ({names}) VALUES ({', '.join('?' * len(columns))})"

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse columns that no table can hold, and keys that are not columns."""
        check_columns(schema, self.key, target="SQLite", ignores_case=True)

    def check_existing(self, database: sqlite3.Connection, schema: pa.Schema) -> list[str]:
        """Check the table if it exists; returns its columns that refuse NULL."""
        kind = database.execute(
            "SELECT type FROM sqlite_master WHERE lower(name) = lower(?)", [self.name]
        ).fetchone()
        if kind is None:
            return []
        if kind[0] != "table":
            raise ConfigError(f"{self.name!r} is a {kind[0]}, not a table; name a table", table=self.name)
        declared = database.execute(
            'SELECT name, type, "notnull", dflt_value IS NOT NULL, pk FROM pragma_table_info(?)', [self.name]
        ).fetchall()
        self._check_declared(schema, declared)
        if self.key and not self._has_unique_key(database, declared):
            raise ConfigError(
                f"mode='upsert' needs a primary key or unique index on exactly {list(self.key)} of table {self.name!r}; run "
                f"CREATE UNIQUE INDEX ... ON {quoted_name(self.name)} ({', '.join(map(quoted_name, self.key))})",
                table=self.name,
                key=list(self.key),
            )
        return [name for name, _, not_null, _, _ in declared if not_null]

    def _check_declared(self, schema: pa.Schema, declared: Sequence[tuple[str, str, int, int, int]]) -> None:
        needs_value = {name: bool(not_null and not default) for name, _, not_null, default, _ in declared}
        check_declared(schema, needs_value, table=self.name, shown=repr(self.name), ignores_case=True)
        types = {name.lower(): declared_type for name, declared_type, *_ in declared}
        for field in schema:
            _check_affinity(self.name, field, types[field.name.lower()])

    def _has_unique_key(
        self, database: sqlite3.Connection, declared: Sequence[tuple[str, str, int, int, int]]
    ) -> bool:
        key = {name.lower() for name in self.key}
        if {name.lower() for name, *_, pk in declared if pk} == key:
            return True
        indexes = database.execute(
            'SELECT name FROM pragma_index_list(?) WHERE "unique" AND NOT partial', [self.name]
        ).fetchall()
        for (index,) in indexes:
            columns = database.execute("SELECT name FROM pragma_index_info(?)", [index]).fetchall()
            if {str(name).lower() for (name,) in columns} == key:
                return True
        return False


def _check_affinity(table: str, field: pa.Field, declared_type: str) -> None:
    affinity = _affinity(declared_type)
    stored = storage_class(field.type)
    if affinity in _KEPT_BY[stored] or declared_type.upper() == "ANY":
        return
    if stored == "TEXT" and affinity == "NUMERIC" and not is_text(field.type):
        return  # a column declared DATE, TIMESTAMP or DECIMAL, which is meant for such texts
    raise ConfigError(
        f"column {field.name!r} of type {spark_type(field.type)} is stored as {stored}, but table {table!r} declares it as "
        f"{declared_type!r}, which would change or refuse the values; cast it before write_to, or change the table",
        table=table,
        column=field.name,
        declared=declared_type,
    )


def _affinity(declared_type: str) -> str:
    """The rules of https://sqlite.org/datatype3.html#determination_of_column_affinity, in their order."""
    name = declared_type.upper()
    if "INT" in name:
        return "INTEGER"
    if any(word in name for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if not name or "BLOB" in name:
        return "BLOB"
    return "REAL" if any(word in name for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


class TrackedRows:
    """Rows for `executemany` that remember the last one, which is the one that was refused."""

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
    """Return the first row that the table refuses on its own, and the error; None also if the table cannot be created in memory."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as memory:
        memory.execute("PRAGMA foreign_keys = OFF")
        try:
            memory.execute(create_sql)
            memory.execute(f"EXPLAIN {insert_sql}", [None] * holes)
        except sqlite3.OperationalError:
            return None  # a function of the user, or syntax of a newer SQLite: the commit will show it
        tried = TrackedRows(rows)
        try:
            memory.executemany(insert_sql, tried)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            return tried.last, error
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_ERROR:
                raise
            return tried.last, error  # a CHECK that cannot be evaluated, such as one on JSON
    return None
