"""The tables of records of a `Postgres` sink, in the schema of its target: how they are made and reached. Driver; also used in tasks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from penstock.errors import ConfigError
from penstock.sinks.postgres.server import psycopg_module, said
from penstock.sinks.postgres.table import Layout, quoted
from penstock.sinks.sql.records import COMMITS, IDENTITY, TRANSACTIONS, staging_columns, staging_table

_IDENTITY_COLUMNS = """job text, sink text, run bigint, checkpoint bigint, subtask bigint, attempt bigint, token text,
    rows bigint"""


class RecordSession:
    """A connection, for the tables of records in one schema."""

    mark = "%s"

    def __init__(self, connection: Any, schema: str) -> None:
        self._connection = connection
        self._schema = schema

    def execute(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement; returns the rows of its answer."""
        return list(self._connection.execute(statement, values).fetchall())

    def change(self, statement: str, values: Sequence[Any]) -> int:
        """Run a statement; returns how many rows it has changed."""
        return int(self._connection.execute(statement, values).rowcount)

    def named(self, table: str) -> str:
        """Name one of the tables; a `%` in the schema's name would stand for a value."""
        return quoted(self._schema, table).replace("%", "%%")

    def has(self, table: str) -> bool:
        """Tell whether one of the tables is there."""
        return bool(self.execute("SELECT 1 WHERE to_regclass(%s) IS NOT NULL", [quoted(self._schema, table)]))

    def transaction(self) -> AbstractContextManager[object]:
        """Make everything that is done inside visible at once, or nothing of it."""
        made: AbstractContextManager[object] = self._connection.transaction()
        return made


def create_records(connection: Any, schema: str, staged: Layout | None) -> None:
    """Make what is missing."""
    wanted = {COMMITS: f"({_IDENTITY_COLUMNS}, PRIMARY KEY ({IDENTITY}))"}
    if staged is not None:
        wanted[TRANSACTIONS] = (
            "(id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, staged_in text NOT NULL, "
            f"{_IDENTITY_COLUMNS}, UNIQUE ({IDENTITY}))"
        )
        wanted[staged_in(staged)] = _staging_columns(staged)
    session = RecordSession(connection, schema)
    for table, columns in wanted.items():
        if not session.has(table):
            _create(connection, quoted(schema, table), columns)


def _create(connection: Any, name: str, columns: str) -> None:
    statement = f"CREATE TABLE IF NOT EXISTS {name} {columns}"
    try:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext('penstock'))")
            connection.execute(statement)
    except psycopg_module().errors.InsufficientPrivilege as error:
        raise ConfigError(
            f"the table {name}, in which the sink keeps its records, cannot be made: {said(error)}; let somebody who may "
            f"run {' '.join(statement.split())}; GRANT SELECT, INSERT, UPDATE, DELETE ON {name} TO ...",
            table=name,
        ) from error


def staged_in(layout: Layout) -> str:
    """Name the table that holds staged rows of this layout."""
    return staging_table(layout.name, _staging_columns(layout))


def _staging_columns(layout: Layout) -> str:
    columns = [
        f"{quoted(column.name)} {column.declared}{f' COLLATE {column.collation}' if column.collation else ''}"
        f"{' NOT NULL' if column.not_null else ''}"
        for column in layout.columns
    ]
    return staging_columns(columns, layout.checks)
