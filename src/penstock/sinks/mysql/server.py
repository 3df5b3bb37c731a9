"""A MySQL or MariaDB server as the sink talks to it: its address without the secret, sessions, errors. Driver and executors."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.sinks.mysql.codes import MAY_PASS, REFUSED_FOR_EVER, REFUSED_LOGIN, REFUSED_ROWS
from penstock.sinks.sql.bad_rows import bad_record

_DEFAULT_PORT = 3306
_PARTITION = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A server that is cut off without a word is given up after a minute; the system's own limits are hours. Not all systems have all."""
_HAS = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?"
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_notes = 1, time_zone = '+00:00', "
    "innodb_lock_wait_timeout = {lock_timeout_s:d}, lock_wait_timeout = {lock_timeout_s:d}"
)
"""The second is for locks of whole tables: an ALTER TABLE that waits for a prepared transaction holds up all that comes after it."""


def pymysql_module() -> Any:
    """Import PyMySQL, which only these sinks need."""
    try:
        import pymysql
    except ImportError as error:
        raise ConfigError(
            "sinks.MySQL and sinks.MariaDB need PyMySQL, which is not installed here; run pip install 'penstock[mysql]' on "
            "the driver and on every executor",
            package="pymysql",
        ) from error
    return pymysql


@cache
def _connection_class() -> Any:
    """PyMySQL's connection, with limits for a server that is silent from its first word on.

    Where no certificate is asked for, PyMySQL would load all of the system's each time (30 ms of CPU).
    """

    class Connection(pymysql_module().connections.Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, given: Any) -> Any:
            return super()._create_ssl_ctx(given) if given else _unverified()

        def _get_server_information(self) -> None:
            if not self.unix_socket:
                for name, value in _PARTITION.items():
                    if hasattr(socket, name):
                        self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            super()._get_server_information()

    return Connection


@cache
def _unverified() -> ssl.SSLContext:
    """What PyMySQL makes when nothing is said: encrypted if the server can, and whoever the server is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Session:
    """One connection; statements go out as they are, so a `%` in a name is only a `%`."""

    mark = "?"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, with a literal for each `?`; returns the rows of its answer."""
        with self._connection.cursor() as cursor:
            cursor.execute(self._filled(statement, values))
            return list(cursor.fetchall())

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns how many rows it has changed."""
        with self._connection.cursor() as cursor:
            return int(cursor.execute(self._filled(statement, values)))

    def notes(self, statement: str) -> list[tuple[str, int, str]]:
        """Run a statement; returns what the server remarks on it, most often nothing: level, number and text."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            if not cursor.warning_count:
                return []
            cursor.execute("SHOW WARNINGS")
            return list(cursor.fetchall())

    def named(self, table: str) -> str:
        """The name of one of the tables of records, which needs no quotes."""
        return table

    def has(self, table: str) -> bool:
        """Tell whether a table is there."""
        return bool(self.execute(_HAS, [table]))

    def literal(self, value: Any) -> str:
        """Write a value for SQL."""
        return str(self._connection.escape(value))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything that is done inside visible at once, or nothing of it."""
        self._connection.begin()
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._rollback()
            raise

    def close(self) -> None:
        """Leave; the server rolls back what is open."""
        if self._connection.open:
            self._connection.close()

    def _rollback(self) -> None:
        try:
            self._connection.rollback()
        except pymysql_module().Error:
            self.close()

    def _filled(self, statement: str, values: Sequence[Any]) -> str:
        parts = statement.split("?") if values else [statement]
        filled = [literal + part for literal, part in zip(map(self.literal, values), parts[1:], strict=True)]
        return parts[0] + "".join(filled)


@dataclass(frozen=True)
class MySQLServer:
    """Where the server is; whatever is printed of it has no password."""

    url: str = field(repr=False)
    lock_timeout_s: float = 30.0
    connect_timeout_s: int = 10
    shown: str = field(init=False, default="")
    database: str = field(init=False, default="")

    def __post_init__(self) -> None:
        parts = _parts(self.url)
        where = parts.get("unix_socket") or f"{parts['host']}:{parts['port']}"
        object.__setattr__(self, "database", parts["database"])
        object.__setattr__(self, "shown", f"{parts['user']}@{where}/{parts['database']}")

    def __str__(self) -> str:
        return self.shown

    def connect(self) -> Session:
        """Open a session whose statements are transactions of their own until one is begun."""
        connection = _connection_class()(
            **_parts(self.url), charset="utf8mb4", autocommit=True, connect_timeout=self.connect_timeout_s
        )
        session = Session(connection)
        session.execute(_SESSION.format(lock_timeout_s=max(1, round(self.lock_timeout_s))))
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        return session

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open a session for the time of a call."""
        session = self.connect()
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def config_errors(self) -> Iterator[None]:
        """Report what the server says before the job starts."""
        try:
            yield
        except pymysql_module().Error as error:
            if code(error) in REFUSED_LOGIN:
                raise ConfigError(
                    f"the server at {self} refuses the connection: {said(error)}; check user, password and database",
                    server=self.shown,
                ) from error
            raise self._translated(error, ConfigError, "change the table or the sink's settings") from error

    @contextmanager
    def task_errors(self, table: str) -> Iterator[None]:
        """Report what the server says while rows are written: nothing of them is visible yet."""
        try:
            yield
        except pymysql_module().Error as error:
            if code(error) in REFUSED_ROWS:
                raise bad_record(table, said(error), None) from error
            raise self._translated(error, ConfigError, "was the table changed while the job ran?") from error

    @contextmanager
    def commit_errors(self, for_good: type[PenstockError], follows: str) -> Iterator[None]:
        """Report what the server says when a commit or an abort is due."""
        try:
            yield
        except pymysql_module().Error as error:
            may_pass = code(error) not in REFUSED_FOR_EVER
            raise self._translated(error, for_good, follows, may_pass=may_pass) from error

    def _translated(
        self, error: Any, for_good: type[PenstockError], follows: str, *, may_pass: bool = False
    ) -> PenstockError:
        if may_pass or code(error) in MAY_PASS:
            for_good, follows = (
                UnavailableError,
                "it is tried again; check the server, its locks and its limits",
            )
        return for_good(
            f"the server at {self}: {said(error)}; {follows}",
            server=self.shown,
            code=code(error),
            cause=said(error),
        )


def code(error: Any) -> int:
    """The number of an error; 0 when the connection was closed on this side."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def server_kind(session: Session) -> str:
    """Which of the two servers it is."""
    return "MariaDB" if "mariadb" in str(session.execute("SELECT VERSION()")[0][0]).lower() else "MySQL"


def said(error: Any) -> str:
    """What the server has to say about an error."""
    return " ".join(str(error.args[-1] if error.args else "no answer").split()) or "the connection is closed"


def _parts(url: object) -> dict[str, Any]:
    """Take an address apart; what is wrong with it is said without it, because it may hold a password."""
    try:
        return _read_url(url if isinstance(url, str) else "")
    except ValueError:
        raise ConfigError(
            "the url cannot be read; write mysql://user:password@host:3306/database, with special characters of the password "
            "percent-encoded, and ?unix_socket=... or ?ssl_ca=... if needed (it is not shown here because it may hold a password)"
        ) from None


def _read_url(url: str) -> dict[str, Any]:
    found = urlsplit(url)
    options = {
        name: values[-1] for name, values in parse_qs(found.query, strict_parsing=bool(found.query)).items()
    }
    database = unquote(found.path.removeprefix("/"))
    known = found.scheme in {"mysql", "mariadb"} and set(options) <= {"unix_socket", "ssl_ca"}
    if (
        not known
        or found.fragment
        or not database
        or "/" in database
        or "@" in database + (found.hostname or "")
    ):
        raise ValueError
    return {
        "host": found.hostname or "127.0.0.1",
        "port": found.port or _DEFAULT_PORT,
        "user": unquote(found.username or ""),
        "password": os.environ.get("MYSQL_PWD", "") if found.password is None else unquote(found.password),
        "database": database,
        **options,
        **({"ssl_verify_cert": True} if "ssl_ca" in options else {}),
    }
