"""How a `Postgres` sink commits and aborts. Driver."""

from __future__ import annotations

from typing import Any

from penstock.sinks.postgres.records import RecordSession
from penstock.sinks.postgres.server import psycopg_module
from penstock.sinks.postgres.table import TargetTable, quoted
from penstock.sinks.postgres.writing import global_id, id_prefix, session_name
from penstock.sinks.sql.settling import Settling
from penstock.sinks.sql.transaction import SqlTransaction

_PREPARED_IDS = (
    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
)
_STAGED_COLUMNS = """SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 2 AND NOT attisdropped
    ORDER BY attnum"""
_END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s
    AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"""


class PostgresSettling(Settling):
    """One session of the driver."""

    def __init__(self, connection: Any, table: TargetTable, where: str) -> None:
        self._connection = connection
        self._table = table
        self._schema = table.found_schema(connection)
        super().__init__(RecordSession(connection, self._schema), where)

    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """See `Settling.settle`."""
        try:
            self._connection.execute(f"{verb} PREPARED '{global_id(transaction)}'")
        except psycopg_module().errors.UndefinedObject:
            return False
        return True

    def end_writer(self, transaction: SqlTransaction) -> None:
        """See `Settling.end_writer`."""
        self._connection.execute(_END_SESSIONS, [session_name(transaction)])

    def prepared(self, job: str, sink: str) -> list[str]:
        """See `Settling.prepared`."""
        prefix = id_prefix(job, sink)
        return [gid.removeprefix(prefix) for (gid,) in self._connection.execute(_PREPARED_IDS, [prefix])]

    def move(self, number: int, staged_in: str) -> None:
        """See `Settling.move`."""
        staged = quoted(self._schema, staged_in)
        columns = [name for (name,) in self._connection.execute(_STAGED_COLUMNS, [staged])]
        self._connection.execute(self._table.insert_sql(staged, columns, number))
