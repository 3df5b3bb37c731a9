"""A PostgreSQL server: address, sessions, errors and prepared transactions. Driver and executors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.lazy_imports import optional_package
from penstock.sinks.bad_rows import row_at
from penstock.sinks.sql.server import (
    DriverErrors,
    Meaning,
    RecordTypes,
    SqlServer,
    SqlSession,
    SqlTransaction,
    TwoPhase,
    owner_digest,
)
from penstock.sinks.sql.values import is_text

_MAY_PASS = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE: connection, transaction state, conflict, resources, not ready, operator, system, internal."""
_REFUSES_ROWS = ("22", "23", "P0")
_TOO_LONG = "54000"
"""A row that is too long for an index, or for a page."""
_COPY_LINE = re.compile(r"^COPY .*?, line (\d+)", re.MULTILINE)
"""The line of COPY in the context of an error; functions of triggers, which come before it, have lines, too."""
_BUSY_SERVER = ("starting up", "shutting down", "too many", "connection slots", "recovery")


def psycopg_module() -> Any:
    """Import psycopg 3, which only this sink needs."""
    return optional_package("psycopg", needed_by="sinks.Postgres", extra="postgres")


class PostgresErrors(DriverErrors):
    """Interprets the errors of psycopg by their SQLSTATE."""

    module = psycopg_module

    @override
    def meaning(self, error: Any) -> Meaning:
        """Return the meaning of an error; one without a SQLSTATE is about the connection."""
        state = error.sqlstate
        if state is None:
            refused = "FATAL" in str(error) and not any(words in str(error) for words in _BUSY_SERVER)
            return Meaning.NO_LOGIN if refused else Meaning.MAY_PASS
        if state[:2] in _REFUSES_ROWS or state == _TOO_LONG:
            return Meaning.BAD_ROW
        return Meaning.MAY_PASS if state[:2] in _MAY_PASS else Meaning.REFUSED

    @override
    def code(self, error: Any) -> dict[str, Any]:
        return {"sqlstate": error.sqlstate}

    @override
    def said(self, error: Any) -> str:
        parts = [error.diag.message_primary, error.diag.message_detail, error.diag.message_hint]
        found = [part.rstrip(".") for part in parts if part]
        return "; ".join(found) or " ".join(str(error).split()) or "no answer"

    @override
    def is_denied(self, error: Any) -> bool:
        return isinstance(error, psycopg_module().errors.InsufficientPrivilege)


def refused_row(error: Any, batch: pa.RecordBatch, *, as_text: bool) -> dict[str, Any] | None:
    """Return the row that COPY was reading. In CSV it counts lines, and values may hold line ends (in the first row, carriage returns)."""
    found = _COPY_LINE.findall(error.diag.context or "")
    if not found:
        return None
    at = int(found[-1])
    if not as_text:
        return row_at(batch, at - 1) if at <= batch.num_rows else None
    texts = [field.name for field in batch.schema if is_text(field.type)]
    line, end = 0, "\r"
    for index in range(batch.num_rows):
        row = row_at(batch, index)
        line += 1 + sum(_ends(row[name], end) for name in texts)
        end = "\n"
        if line >= at:
            return row
    return None


def _ends(value: str | bytes | None, end: str) -> int:
    """Count the line ends in a text, which is bytes if it is not UTF-8."""
    if isinstance(value, bytes):
        return value.count(end.encode())
    return 0 if value is None else value.count(end)


_SHOWN_BYTES = 40
_PREPARED_IDS = (
    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
)
_END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s
    AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"""


class PreparedTransactions(TwoPhase):
    """Transactions that are prepared with PREPARE TRANSACTION."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session

    @override
    def begin(self, transaction: SqlTransaction) -> None:
        self._session.execute("BEGIN")

    @override
    def prepare(self, transaction: SqlTransaction) -> None:
        self._session.execute(f"PREPARE TRANSACTION '{_global_id(transaction)}'")

    @override
    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        try:
            self._session.execute(f"{verb} PREPARED '{_global_id(transaction)}'")
        except psycopg_module().errors.UndefinedObject:
            return False
        return True

    @override
    def end_writer(self, transaction: SqlTransaction) -> None:
        self._session.execute(_END_SESSIONS, [session_name(transaction)])

    @override
    def prepared(self, job: str, sink: str, *, needed: bool) -> list[str]:
        prefix = _id_prefix(job, sink)
        return [gid.removeprefix(prefix) for (gid,) in self._session.execute(_PREPARED_IDS, [prefix])]


def session_name(transaction: SqlTransaction) -> str:
    """Return the session's name in `pg_stat_activity`; its first 34 characters are unique."""
    digest = owner_digest(transaction.job, transaction.sink)
    return f"penstock {digest} {transaction.token} {transaction.job}"[:63]


def _id_prefix(job: str, sink: str) -> str:
    """Return the prefix of the names of all prepared transactions of a job and sink."""
    return f"penstock:{job[:_SHOWN_BYTES]}:{sink[:_SHOWN_BYTES]}:{owner_digest(job, sink)}:"


def _global_id(transaction: SqlTransaction) -> str:
    """Return the name of a prepared transaction: letters, digits and `-_:.`, less than 200 bytes."""
    return _id_prefix(transaction.job, transaction.sink) + transaction.numbers


_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""A connection to an unreachable server fails after a minute; the defaults of the system are hours."""
_SILENCE_S = 30


class PostgresSession(SqlSession):
    """One connection of psycopg, in autocommit mode."""

    mark = "%s"
    quote = '"'
    record_types = RecordTypes(
        identity="job text, sink text, run bigint, checkpoint bigint, subtask bigint, attempt bigint, token text, rows bigint",
        number="id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        table_name="text",
    )

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, or several without values; returns the result rows of the last one."""
        answer = self.connection.execute(statement, values or None)
        while answer.nextset():
            pass
        return [] if answer.description is None else list(answer.fetchall())

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns the number of changed rows."""
        return int(self.connection.execute(statement, values or None).rowcount)

    def has(self, schema: str | None, table: str) -> bool:
        """Return whether a table exists; without a schema, on the search path."""
        return bool(self.execute("SELECT 1 WHERE to_regclass(%s) IS NOT NULL", [self.quoted(schema, table)]))

    def literal(self, value: str) -> str:
        """Return a value as an SQL literal, for several statements in one call."""
        return str(psycopg_module().sql.Literal(value).as_string(self.connection))

    def create(self, statement: str) -> None:
        """Create a table, under a lock, because two sessions would collide in the catalogue."""
        with self.transaction():
            self.execute("SELECT pg_advisory_xact_lock(hashtext('penstock'))")
            self.execute(statement)

    def transaction(self) -> AbstractContextManager[object]:
        """Open a transaction: all changes become visible together, or none."""
        made: AbstractContextManager[object] = self.connection.transaction()
        return made

    def close(self) -> None:
        """Close the connection; the server rolls back an open transaction."""
        self.connection.close()


class PostgresServer(SqlServer):
    """A PostgreSQL server; the address is a connection string of libpq."""

    called = "PostgreSQL"
    errors = PostgresErrors()

    @override
    def without_secrets(self) -> str:
        return _without_secrets(self.address)

    @override
    def connect(self, writer: SqlTransaction | None = None) -> PostgresSession:
        """Open a session. Settings in the address override the defaults here."""
        psycopg = psycopg_module()
        given = psycopg.conninfo.conninfo_to_dict(self.address)
        defaults = {
            "connect_timeout": self.connect_timeout_s,
            **_KEEPALIVES,
            "tcp_user_timeout": self._unread_ms(),
        }
        connection = psycopg.connect(
            self.address,
            autocommit=True,
            prepare_threshold=None,
            application_name="penstock" if writer is None else session_name(writer),
            client_encoding="UTF8",
            **{setting: given.get(setting, value) for setting, value in defaults.items()},
        )
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false), set_config('TimeZone', 'UTC', false), "
            "set_config('DateStyle', 'ISO', false), set_config('lock_timeout', %s, false)",
            [f"{round(self.lock_timeout_s * 1000)}ms"],
        )
        return PostgresSession(connection)

    @override
    def two_phase(self, session: SqlSession) -> PreparedTransactions:
        return PreparedTransactions(session)

    def check(self, session: SqlSession, *, prepared: bool) -> None:
        """Refuse a server that allows no prepared transactions, which is PostgreSQL's default."""
        if not prepared:
            return
        allowed = int(session.execute("SHOW max_prepared_transactions")[0][0])
        if allowed == 0:
            raise ConfigError(
                f"PostgreSQL at {self} allows no prepared transactions (max_prepared_transactions = 0); run ALTER SYSTEM "
                "SET max_prepared_transactions = 200 and restart the server (200: parallelism times the batches between two "
                "checkpoints, and some more), or use transactions='staged', which needs no setting",
                server=self.shown,
                max_prepared_transactions=allowed,
            )

    def _unread_ms(self) -> int:
        """Return how long sent rows may stay unread: a COPY that waits for a lock reads nothing."""
        return round((_SILENCE_S + max(_SILENCE_S, self.lock_timeout_s)) * 1000)


def _without_secrets(address: object) -> str:
    """Return an address as `user@host:port/database`; libpq's own message about an invalid one may quote the password."""
    psycopg = psycopg_module()
    if not isinstance(address, str):
        raise ConfigError(
            f"address must be a text such as 'postgresql://user@host/database', not {type(address).__name__}"
        )
    try:
        parts = psycopg.conninfo.conninfo_to_dict(address)
        ports = str(parts.get("port") or "0").split(",")
        if "@" in f"{parts.get('host')}{parts.get('dbname')}" or not all(port.isdecimal() for port in ports):
            raise psycopg.ProgrammingError  # a password that was not percent-encoded and was read as another part
    except psycopg.Error:
        raise ConfigError(
            "the address cannot be read; write postgresql://user:password@host:5432/database, with special characters of the "
            "password percent-encoded, or host=... dbname=... (it is not shown here because it may hold a password)"
        ) from None
    user = f"{parts['user']}@" if parts.get("user") else ""
    host = parts.get("host") or parts.get("hostaddr") or "local"
    port = f":{parts['port']}" if parts.get("port") else ""
    database = f"/{parts['dbname']}" if parts.get("dbname") else ""
    return f"{user}{host}{port}{database}"
