"""A PostgreSQL server as the sink talks to it: its address without the secret, sessions, and what errors mean. Driver and executors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.sinks.sql.bad_rows import bad_record, row_at
from penstock.sinks.sql.values import is_text

_MAY_PASS = ("08", "25", "40", "53", "55", "57", "58", "XX")
"""Classes of SQLSTATE: connection, transaction state, conflict, resources, not ready, operator, system, internal."""
_REFUSES_ROWS = ("22", "23", "P0")
_TOO_LONG = "54000"
"""A row that is too long for an index, or for a page."""
_COPY_LINE = re.compile(r"^COPY .*?, line (\d+)", re.MULTILINE)
"""Where COPY was; the functions of triggers, which the context names before it, have lines too."""
_KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""A server that is cut off without a word is given up after a minute; the system's own limits are hours."""
_SILENCE_S = 30
_BUSY_SERVER = ("starting up", "shutting down", "too many", "connection slots", "recovery")


def psycopg_module() -> Any:
    """Import psycopg, which only this sink needs."""
    try:
        import psycopg
    except ImportError as error:
        raise ConfigError(
            "sinks.Postgres needs psycopg 3, which is not installed here; run pip install 'penstock[postgres]' on the "
            "driver and on every executor",
            package="psycopg",
        ) from error
    return psycopg


@dataclass(frozen=True)
class PostgresServer:
    """Where the server is; whatever is printed of it has no password."""

    dsn: str = field(repr=False)
    lock_timeout_s: float = 30.0
    connect_timeout_s: int = 10
    shown: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", _without_secrets(self.dsn))

    def __str__(self) -> str:
        return self.shown

    def connect(self, name: str = "penstock") -> Any:
        """Open a session whose statements are transactions of their own until BEGIN."""
        psycopg = psycopg_module()
        given = psycopg.conninfo.conninfo_to_dict(self.dsn)
        defaults = {
            "connect_timeout": self.connect_timeout_s,
            **_KEEPALIVES,
            "tcp_user_timeout": self._unread_ms(),
        }
        connection = psycopg.connect(
            self.dsn,
            autocommit=True,
            prepare_threshold=None,
            application_name=name,
            client_encoding="UTF8",
            **{setting: given.get(setting, value) for setting, value in defaults.items()},
        )
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false), set_config('TimeZone', 'UTC', false), "
            "set_config('DateStyle', 'ISO', false), set_config('lock_timeout', %s, false)",
            [f"{round(self.lock_timeout_s * 1000)}ms"],
        )
        return connection

    def _unread_ms(self) -> int:
        """How long sent rows may stay unread: a COPY that waits for a lock reads nothing meanwhile."""
        return round((_SILENCE_S + max(_SILENCE_S, self.lock_timeout_s)) * 1000)

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Open a session for the time of a call."""
        connection = self.connect()
        try:
            yield connection
        finally:
            connection.close()

    @contextmanager
    def config_errors(self) -> Iterator[None]:
        """Report what the server says before the job starts."""
        psycopg = psycopg_module()
        try:
            yield
        except psycopg.Error as error:
            refused = error.sqlstate is None and "FATAL" in str(error)
            if refused and not any(words in str(error) for words in _BUSY_SERVER):
                raise ConfigError(
                    f"PostgreSQL at {self} refuses the connection: {_one_line(error)}; check user, password and database",
                    server=self.shown,
                ) from error
            raise self._translated(error, ConfigError, "change the table or the sink's settings") from error

    @contextmanager
    def task_errors(
        self, table: str, batch: pa.RecordBatch | None = None, *, as_text: bool = True
    ) -> Iterator[None]:
        """Report what the server says while rows are written: nothing of them is visible yet."""
        psycopg = psycopg_module()
        try:
            yield
        except psycopg.Error as error:
            if (error.sqlstate or "")[:2] in _REFUSES_ROWS or error.sqlstate == _TOO_LONG:
                raise bad_record(table, said(error), _refused_row(error, batch, as_text=as_text)) from error
            raise self._translated(error, ConfigError, "was the table changed while the job ran?") from error

    @contextmanager
    def commit_errors(self, for_good: type[PenstockError], follows: str) -> Iterator[None]:
        """Report what the server says when a commit or an abort is due."""
        psycopg = psycopg_module()
        try:
            yield
        except psycopg.Error as error:
            raise self._translated(error, for_good, follows) from error

    def _translated(self, error: Any, for_good: type[PenstockError], follows: str) -> PenstockError:
        state = error.sqlstate
        if state is None or state[:2] in _MAY_PASS:
            for_good, follows = (
                UnavailableError,
                "it is tried again; check the server, its locks and its limits",
            )
        return for_good(
            f"PostgreSQL at {self}: {said(error)}; {follows}",
            server=self.shown,
            sqlstate=state,
            cause=said(error),
        )


def said(error: Any) -> str:
    """Put together what the server has to say about an error."""
    parts = [error.diag.message_primary, error.diag.message_detail, error.diag.message_hint]
    found = [part.rstrip(".") for part in parts if part]
    return "; ".join(found) or _one_line(error)


def _refused_row(error: Any, batch: pa.RecordBatch | None, *, as_text: bool) -> dict[str, Any] | None:
    """Find the row that COPY was at. In CSV it counts lines, and a value may hold some (of the first row, carriage returns)."""
    found = _COPY_LINE.findall(error.diag.context or "")
    if not found or batch is None:
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
    """How often a text holds this end of a line; it is bytes if it is no UTF-8."""
    if isinstance(value, bytes):
        return value.count(end.encode())
    return 0 if value is None else value.count(end)


def _one_line(error: Any) -> str:
    return " ".join(str(error).split()) or "no answer"


def _without_secrets(dsn: object) -> str:
    """Write an address as `user@host:port/database`; libpq's own message about a bad one may quote the password."""
    psycopg = psycopg_module()
    if not isinstance(dsn, str):
        raise ConfigError(
            f"dsn must be a text such as 'postgresql://user@host/database', not {type(dsn).__name__}"
        )
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
        ports = str(parts.get("port") or "0").split(",")
        if "@" in f"{parts.get('host')}{parts.get('dbname')}" or not all(port.isdecimal() for port in ports):
            raise psycopg.ProgrammingError  # a password that was not encoded, taken for something else
    except psycopg.Error:
        raise ConfigError(
            "the dsn cannot be read; write postgresql://user:password@host:5432/database, with special characters of the "
            "password percent-encoded, or host=... dbname=... (it is not shown here because it may hold a password)"
        ) from None
    user = f"{parts['user']}@" if parts.get("user") else ""
    host = parts.get("host") or parts.get("hostaddr") or "local"
    port = f":{parts['port']}" if parts.get("port") else ""
    database = f"/{parts['dbname']}" if parts.get("dbname") else ""
    return f"{user}{host}{port}{database}"
