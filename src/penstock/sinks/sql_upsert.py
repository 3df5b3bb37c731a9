"""The sink `SQLUpsert`: upserts by key through any DB-API connection. Tasks, or the driver; see `upsert`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError, ConfigError, PenstockError, UnavailableError, refuses_login
from penstock.sinks.bad_rows import refuse_null_keys
from penstock.sinks.json_text import json_texts
from penstock.sinks.table_checks import check_columns
from penstock.sinks.upsert import AT_ONCE, KeyedWriter, RowOrigin, UpsertSink
from penstock.sinks.upsert_statement import (
    ON_CONFLICT,
    PARAMSTYLES,
    STYLES,
    UpsertStatement,
    commits_by_itself,
    is_bad_row,
    is_of_mysql,
    is_refused_alone,
    paramstyle_of,
)
from penstock.sinks.user_functions import checked_function, shown_function

_LONGEST_ROW = 500


class SQLUpsert(UpsertSink):
    """Writes to a table of any database that has a DB-API driver. Writing the same rows twice does no harm.

    `connect()` returns a new connection; it is pickled into tasks. The table exists, with a unique key on the columns `key`. `style` is
    "on conflict" (PostgreSQL, SQLite), "on duplicate key" (MySQL, MariaDB) or "delete and insert" (any other). The default of `paramstyle`
    is that of the driver. Each task's rows are written in one transaction of the database. `visible` is "at once" or "with the
    checkpoint"; the second needs `staging`, a folder that the driver and all executors share.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        key: Sequence[str],
        *,
        style: str = ON_CONFLICT,
        paramstyle: str | None = None,
        visible: str = AT_ONCE,
        staging: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(table, str) or not all(table.split(".")) or "\0" in table:
            raise ConfigError(
                f"table {table!r} is not a name such as 'results' or 'schema.results'", table=table
            )
        if style not in STYLES:
            raise ConfigError(f"style {style!r} is not known; use one of {STYLES}", style=style)
        if paramstyle is not None and paramstyle not in PARAMSTYLES:
            raise ConfigError(
                f"paramstyle {paramstyle!r} is not known; use one of {PARAMSTYLES}", paramstyle=paramstyle
            )
        writer = SQLWriter(
            checked_function("SQLUpsert", connect, ()), table, _key(key), style=style, paramstyle=paramstyle
        )
        super().__init__(writer, visible=visible, staging=staging)


class SQLWriter(KeyedWriter):
    """Writes rows into one table; see `SQLUpsert`."""

    def __init__(
        self,
        connect: Callable[[], Any],
        table: str,
        key: Sequence[str],
        *,
        style: str,
        paramstyle: str | None,
    ) -> None:
        self._connect = connect
        self._table = table
        self._key = tuple(key)
        self._style = style
        self._paramstyle = paramstyle

    def __repr__(self) -> str:
        return f"SQLUpsert({shown_function(self._connect)}, table={self._table!r}, key={list(self._key)})"

    def check(self, schema: pa.Schema) -> None:
        """Refuse columns that do not fit. The database checks the statements, without a change."""
        check_columns(schema, self._key, target=f"table {self._table!r}")
        self._check_table(schema)

    def prepare(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert rows to values that a driver accepts: lists and structs become JSON. A null in the key is refused."""
        refuse_null_keys(batch, self._key, f"of table {self._table!r}")
        columns = [_plain(field, column) for field, column in zip(batch.schema, batch.columns, strict=True)]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def check_rehearsal(self) -> None:
        """Refuse a connection in autocommit mode, which cannot undo a rehearsal."""
        with contextlib.closing(self._connect()) as connection:
            if commits_by_itself(connection):
                raise ConfigError(
                    f"{shown_function(self._connect)} returns a connection in autocommit mode, on which rows cannot be tried before the "
                    "checkpoint promises them; return one that waits for commit()",
                    table=self._table,
                )

    def rehearse(self, rows: pa.RecordBatch) -> None:
        """Write the rows in a transaction that is rolled back: only the database knows what it refuses.

        Rows that were staged earlier are not in the table yet. So rows that the database refuses because of other rows (a foreign key, a
        second unique value) are found only at commit.
        """
        self._write(pa.Table.from_batches([rows]), keep=False)

    def upsert(self, rows: pa.Table, origin: RowOrigin) -> None:  # noqa: ARG002 - a user's table has no place for it
        """Write the last row of each key, in one transaction of the database."""
        self._write(rows, keep=True)

    def _write(self, rows: pa.Table, *, keep: bool) -> None:
        """Write the last row of each key.

        The database decides which keys are equal: 'a' and 'A' may be. So the rows are written in the order in which they came, and
        one by one if they cannot be written together (with 'delete and insert' the second 'a' would collide with the first).
        """
        columns, last = rows.column_names, self._last_of_each_key(rows)
        try:
            with self._transaction(keep=keep) as (connection, cursor):
                for sql, parameters in self._calls(connection, columns, last):
                    cursor.executemany(sql, parameters)
        except PenstockError:
            raise
        except Exception as error:
            if not is_bad_row(error):
                raise self._away(error) from error
            self._one_by_one(columns, last, keep=keep)

    def _last_of_each_key(self, rows: pa.Table) -> list[tuple[Any, ...]]:
        """Of several rows with one key the last, where it stood."""
        places = [rows.column_names.index(name) for name in self._key]
        last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for row in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            key = tuple(row[place] for place in places)
            last.pop(key, None)
            last[key] = row
        return list(last.values())

    def _calls(
        self, connection: Any, columns: Sequence[str], rows: Sequence[Sequence[Any]]
    ) -> Iterator[tuple[str, list[Any]]]:
        statement = self._statement(connection, columns)
        for sql, names in statement.statements():
            wanted = [columns.index(name) for name in names]
            yield sql, [statement.parameters([row[place] for place in wanted]) for row in rows]

    def _one_by_one(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, keep: bool) -> None:
        """Write the rows one by one, in one transaction; the error for a refused row names it."""
        try:
            with self._transaction(keep=keep) as (connection, cursor):
                for row in rows:
                    try:
                        for sql, (parameters,) in self._calls(connection, columns, [row]):
                            cursor.execute(sql, parameters)
                    except Exception as error:
                        if not is_bad_row(error) or not self._answers(connection, columns):
                            raise
                        if keep or is_refused_alone(error):
                            raise self._refused(error, dict(zip(columns, row, strict=True))) from error
                if keep:
                    self._commit(connection, columns)
        except PenstockError:
            raise
        except Exception as error:
            raise self._away(error) from error

    def _commit(self, connection: Any, columns: Sequence[str]) -> None:
        """Commit. The message of a deferred constraint is the only one that may name the rows."""
        try:
            connection.commit()
        except Exception as error:
            if not is_bad_row(error) or not self._answers(connection, columns):
                raise
            raise BadRecordError(
                f"table {self._table!r} took no rows: {type(error).__name__} at the commit after all were written: {error}; it would "
                "refuse them again: filter or repair such rows before write_to",
                table=self._table,
            ) from error

    def _answers(self, connection: Any, columns: Sequence[str]) -> bool:
        """Return whether the database still answers, so that the row caused the error and not the connection."""
        try:
            connection.rollback()
            with contextlib.closing(connection.cursor()) as cursor:
                cursor.execute(self._statement(connection, columns).probes()[0])
                cursor.fetchall()
        except Exception:  # noqa: BLE001 - any failure means that no row is to blame
            return False
        return True

    def _refused(self, error: Exception, row: dict[str, Any]) -> BadRecordError:
        return BadRecordError(
            f"table {self._table!r} took no rows: {type(error).__name__}: {error}; it refuses the row {str(row)[:_LONGEST_ROW]}, and would "
            "again: filter or repair such rows before write_to",
            table=self._table,
            row=row,
        )

    def _away(self, error: Exception) -> UnavailableError:
        return UnavailableError(
            f"table {self._table!r} took no rows: {type(error).__name__}: {error}; check the database and the connection",
            table=self._table,
            cause=str(error),
        )

    def _statement(self, connection: Any, columns: Sequence[str]) -> UpsertStatement:
        paramstyle = self._paramstyle or paramstyle_of(connection)
        backticks = is_of_mysql(connection)
        return UpsertStatement(self._table, columns, self._key, self._style, paramstyle, backticks=backticks)

    def _check_connect(self) -> None:
        try:
            self._connect().close()
        except Exception as error:
            denied = refuses_login(error)
            kind = ConfigError if denied else UnavailableError
            advice = "; check user, password, database and rights" if denied else ""
            raise kind(
                f"the database of table {self._table!r} cannot be reached: {shown_function(self._connect)} raised {type(error).__name__}: "
                f"{error}; nothing was started{advice}",
                table=self._table,
            ) from error

    def _check_table(self, schema: pa.Schema) -> None:
        self._check_connect()
        try:
            with self._transaction() as (connection, cursor):
                for probe in self._statement(connection, schema.names).probes():
                    cursor.execute(probe)
                    if cursor.description is not None:
                        cursor.fetchall()
        except PenstockError:
            raise
        except Exception as error:
            raise ConfigError(
                f"table {self._table!r} cannot be written through {shown_function(self._connect)}: {type(error).__name__}: {error}; it "
                f"must exist with the columns {schema.names} and a unique key on {list(self._key)}",
                table=self._table,
                key=list(self._key),
            ) from error

    @contextmanager
    def _transaction(self, *, keep: bool = True) -> Iterator[tuple[Any, Any]]:
        """Open a connection and a cursor. Commits at the end if `keep`; otherwise, and after an error, rolls back."""
        connection = self._connect()
        try:
            with contextlib.closing(connection.cursor()) as cursor:
                yield connection, cursor
            if keep:
                connection.commit()
            else:
                connection.rollback()
        except BaseException:
            with contextlib.suppress(Exception):
                connection.rollback()
            raise
        finally:
            connection.close()


def _plain(field: pa.Field, column: pa.Array) -> pa.Array:
    """Return a column whose values are plain Python values."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_nested(column.type):
        return json_texts(column)
    if pa.types.is_temporal(column.type) and not pa.types.is_duration(column.type):
        try:
            pc.min_max(column).as_py()
        except (ValueError, OverflowError) as error:
            raise BadRecordError(
                f"column {field.name!r} holds a time that Python cannot represent: {error}; filter such rows before write_to",
                column=field.name,
            ) from error
    return column


def _key(key: Sequence[str]) -> list[str]:
    names = [key] if isinstance(key, str) else list(key or ())
    if not names or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"key must name the columns that identify a row, not {key!r}", key=key)
    return names
