"""A MySQL or MariaDB server: address, sessions, errors and XA transactions. Driver and executors.

An error number that is in no list below fails a job before it starts or in a task. At commit, where a checkpoint has promised the rows, it
is retried, because only what the table itself refuses is refused for good.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from typing_extensions import override

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import ConfigError, UnavailableError
from penstock.lazy_imports import optional_package
from penstock.sinks.sql.server import (
    PREPARED,
    DriverErrors,
    Meaning,
    RecordTypes,
    SqlServer,
    SqlSession,
    SqlTransaction,
    TwoPhase,
    owner_digest,
)
from penstock.wording import duration

REFUSED_ROWS = {1048, 1062, 1216, 1264, 1265, 1292, 1364, 1366, 1367, 1406, 1411, 1452, 1644, 3140, 3819, 4025}  # fmt: skip
"""NULL, duplicate, foreign key, out of range, too long, not a value of the type, a trigger's SIGNAL, JSON, CHECK."""
_REFUSED_LOGIN = {1044, 1045, 1049, 1698}
MAY_NOT_RECOVER = 1401
"""The error of XA RECOVER for a user without XA_RECOVER_ADMIN."""
_SERVER = {1021, 1024, 1026, 1030, 1037, 1038, 1041, 1053, 1077, 1114, 1135, 1290, 1836, 3168, 3170}
"""Disk, files, memory, threads, shutdown, read-only."""
_CONNECTION = {0, 1040, 1047, 1129, 1158, 1159, 1160, 1161, 1203, 1226, 1317, 1927, 1969, 3024, 4031, *range(2000, 3000)}  # fmt: skip
"""Too many connections, a lost or killed one, a cluster node that is not ready, a statement that took too long."""
_TRANSACTION = {1020, 1180, 1181, 1205, 1206, 1213, 1399, 1401, 1402, 1613, 1614, 1637, 1792, 3100, 3101}
"""Locks, conflicts, replication, an XA transaction that was rolled back before it was prepared."""
_MAY_PASS = {*_SERVER, *_CONNECTION, *_TRANSACTION}
_CONSTRAINTS = {1022, 1169, 1217, 1365, 1451, 1526, 1557, 1586, 1690, 1748, 1761, 1762, 3156}
"""Other numbers for duplicates and foreign keys, a value that fits no partition, a CHECK that cannot be evaluated."""
_SCHEMA = {1051, 1054, 1064, 1072, 1091, 1109, 1118, 1136, 1146, 1305, 1347, 1356, 1442, 1471, 1906, 3105}
"""A missing table or column, a row that is too long, a broken trigger, a generated column."""
_REFUSED_FOR_EVER = {*REFUSED_ROWS, *_CONSTRAINTS, *_SCHEMA}
"""Errors that a retried commit would raise again."""
_DENIED = {1044, 1142}


def pymysql_module() -> Any:
    """Import PyMySQL, which only these sinks need."""
    return optional_package("pymysql", needed_by="sinks.MySQL and sinks.MariaDB", extra="mysql")


def code(error: Any) -> int:
    """Return the number of an error; 0 if the connection was closed on this side."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


class MySQLErrors(DriverErrors):
    """Interprets the errors of PyMySQL by their numbers."""

    module = pymysql_module

    @override
    def meaning(self, error: Any) -> Meaning:
        for numbers, found in (
            (_REFUSED_LOGIN, Meaning.NO_LOGIN),
            (REFUSED_ROWS, Meaning.BAD_ROW),
            (_MAY_PASS, Meaning.MAY_PASS),
            (_REFUSED_FOR_EVER, Meaning.REFUSED),
        ):
            if code(error) in numbers:
                return found
        return Meaning.UNKNOWN

    @override
    def code(self, error: Any) -> dict[str, Any]:
        return {"code": code(error)}

    @override
    def said(self, error: Any) -> str:
        text = str(error.args[-1] if error.args else "no answer")
        return " ".join(text.split()) or "the connection is closed"

    @override
    def is_denied(self, error: Any) -> bool:
        return code(error) in _DENIED


_SHOWN_BYTES = 20
_UNKNOWN_XID = 1397
_NO_SUCH_SESSION = 1094
_ATTACHED_TRIES = 50
_ATTACHED_PAUSE_S = 0.1


class XATransactions(TwoPhase):
    """XA transactions. The server has one list of their names for all databases."""

    def __init__(self, session: SqlSession, database: str, shown: str) -> None:
        self._session = session
        self._database = database
        self._shown = shown

    @override
    def begin(self, transaction: SqlTransaction) -> None:
        prepared = transaction.how == PREPARED
        self._session.execute(f"XA START {self._xid(transaction)}" if prepared else "START TRANSACTION")

    @override
    def prepare(self, transaction: SqlTransaction) -> None:
        self._session.execute(f"XA END {self._xid(transaction)}")
        self._session.execute(f"XA PREPARE {self._xid(transaction)}")

    @override
    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """Commit or roll back. The error 'unknown' also occurs until the session that prepared it ends, so the list is checked."""
        for _ in range(_ATTACHED_TRIES):
            try:
                self._session.execute(f"XA {verb} {self._xid(transaction)}")
            except pymysql_module().Error as error:
                if code(error) != _UNKNOWN_XID:
                    raise
            else:
                return True
            if transaction.numbers not in self._listed(transaction.job, transaction.sink):
                return False
            SYSTEM_CLOCK.sleep(_ATTACHED_PAUSE_S)
        raise UnavailableError(
            f"transaction {transaction.name} is prepared in {self._shown} but the session that prepared it has not ended "
            f"after {duration(_ATTACHED_TRIES * _ATTACHED_PAUSE_S)}; if this continues, end that session with KILL",
            transaction=transaction.name,
        )

    @override
    def end_writer(self, transaction: SqlTransaction) -> None:
        lock = session_lock(transaction, self._database)
        holder = self._session.execute("SELECT IS_USED_LOCK(?)", [lock])[0][0]
        if holder is not None:
            try:
                self._session.execute(f"KILL {int(holder):d}")
            except pymysql_module().Error as error:
                if code(error) != _NO_SUCH_SESSION:
                    raise

    @override
    def prepared(self, job: str, sink: str, *, needed: bool) -> set[str]:
        """List prepared transactions. A user that only stages rows needs no right to do so: it never prepared any."""
        try:
            return self._listed(job, sink)
        except pymysql_module().Error as error:
            if not needed and code(error) == MAY_NOT_RECOVER:
                return set()
            raise

    def _listed(self, job: str, sink: str) -> set[str]:
        """Return the second parts of the names whose first part is that of this job, sink and database."""
        part = _global_part(job, sink, self._database).encode()
        found = set()
        for _, global_length, branch_length, data in self._session.execute("XA RECOVER"):
            raw = data if isinstance(data, bytes) else str(data).encode()
            if raw[:global_length] == part:
                found.add(raw[global_length : global_length + branch_length].decode(errors="replace"))
        return found

    def _xid(self, transaction: SqlTransaction) -> str:
        """Return the name of a prepared transaction in SQL: two parts of at most 64 bytes, of letters, digits and `-_:.`."""
        part = _global_part(transaction.job, transaction.sink, self._database)
        return f"'{part}','{transaction.numbers}'"


def session_lock(transaction: SqlTransaction, database: str) -> str:
    """Return the name of the lock that identifies the session of an attempt."""
    return f"penstock {owner_digest(transaction.job, transaction.sink, database)} {transaction.token}"


def _global_part(job: str, sink: str, database: str) -> str:
    """Return the first part of the names of all prepared transactions of a job and sink in a database."""
    return f"{job[:_SHOWN_BYTES]}:{sink[:_SHOWN_BYTES]}:{owner_digest(job, sink, database)}"


_DEFAULT_PORT = 3306
_PARTITION = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 60_000}
"""A connection to an unreachable server fails after a minute; the defaults of the system are hours. Not all systems have all options."""
_HAS = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = ?"
_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', sql_notes = 1, time_zone = '+00:00', "
    "innodb_lock_wait_timeout = {lock_timeout_s:d}, lock_wait_timeout = {lock_timeout_s:d}"
)
"""`lock_wait_timeout` is for locks of whole tables: an ALTER TABLE that waits for a prepared transaction blocks all later statements."""
_NAME = "varchar(100) CHARACTER SET ascii COLLATE ascii_bin NOT NULL"
"""Names of jobs and sinks are compared byte by byte, whatever the collation of the database."""
_OLDEST = {"MariaDB": (10, 5, 2), "MySQL": (8, 0, 0)}
"""In older versions the end of a session rolled back its prepared transaction, or XA did not survive a crash."""


@cache
def _connection_class() -> Any:
    """Return PyMySQL's connection class, with timeouts that apply from the first packet on.

    If no certificate is checked, PyMySQL would still load all of the system's certificates each time (30 ms of CPU).
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
    """Return PyMySQL's default: encrypted if the server supports it, without a check of the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class MySQLSession(SqlSession):
    """One connection of PyMySQL. Statements are sent as they are, so a `%` in a name needs no escape."""

    mark = "?"
    quote = "`"
    record_types = RecordTypes(
        identity=(
            f"job {_NAME}, sink {_NAME}, run bigint NOT NULL, checkpoint bigint NOT NULL, subtask bigint NOT NULL, "
            "attempt bigint NOT NULL, token char(8) CHARACTER SET ascii COLLATE ascii_bin NOT NULL, row_total bigint"
        ),
        number="id bigint PRIMARY KEY AUTO_INCREMENT",
        table_name="varchar(64)",
        options=" ENGINE = InnoDB",
    )

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement, with a literal for each `?`; returns its result rows."""
        with self._connection.cursor() as cursor:
            cursor.execute(self._filled(statement, values))
            return list(cursor.fetchall())

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns the number of changed rows."""
        with self._connection.cursor() as cursor:
            return int(cursor.execute(self._filled(statement, values)))

    def notes(self, statement: str) -> list[tuple[str, int, str]]:
        """Run a statement; returns the server's warnings: level, number and text."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            if not cursor.warning_count:
                return []
            cursor.execute("SHOW WARNINGS")
            return list(cursor.fetchall())

    def has(self, schema: str | None, table: str) -> bool:  # noqa: ARG002 - there are no schemas
        """Return whether a table exists in the database."""
        return bool(self.execute(_HAS, [table]))

    def create(self, statement: str) -> None:
        """Create a table; the server handles concurrent creation."""
        self.execute(statement)

    def literal(self, value: Any) -> str:
        """Return a value as an SQL literal."""
        return str(self._connection.escape(value))

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction: all changes become visible together, or none."""
        self._connection.begin()
        try:
            yield
            self._connection.commit()
        except BaseException:
            self._rollback()
            raise

    def close(self) -> None:
        """Close the connection; the server rolls back an open transaction."""
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


class MySQLServer(SqlServer):
    """A MySQL or MariaDB server; the address is a URL."""

    called = "the server"
    errors = MySQLErrors()

    @property
    def database(self) -> str:
        """The database that the address names."""
        return str(_parts(self.address)["database"])

    @override
    def without_secrets(self) -> str:
        pymysql_module()
        parts = _parts(self.address)
        where = parts.get("unix_socket") or f"{parts['host']}:{parts['port']}"
        return f"{parts['user']}@{where}/{parts['database']}"

    @override
    def connect(self, writer: SqlTransaction | None = None) -> MySQLSession:
        """Open a session. A writer holds a lock by which it can be found."""
        connection = _connection_class()(
            **_parts(self.address), charset="utf8mb4", autocommit=True, connect_timeout=self.connect_timeout_s
        )
        session = MySQLSession(connection)
        session.execute(_SESSION.format(lock_timeout_s=max(1, round(self.lock_timeout_s))))
        session.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if writer is not None:
            session.execute("SELECT GET_LOCK(?, 0)", [session_lock(writer, self.database)])
        return session

    @override
    def two_phase(self, session: SqlSession) -> XATransactions:
        return XATransactions(session, self.database, str(self))

    def check(self, session: SqlSession, *, prepared: bool) -> None:
        """Refuse a server that is too old, and a user that may not list prepared transactions, which recovery needs."""
        _check_version(session)
        if not prepared:
            return
        try:
            session.execute("XA RECOVER")
        except self.errors.all() as error:
            if code(error) != MAY_NOT_RECOVER:
                raise
            raise ConfigError(
                f"this user may not list prepared transactions (XA RECOVER: {self.errors.said(error)}), so they could not be found after a "
                "crash; run GRANT XA_RECOVER_ADMIN ON *.* TO ..., or use transactions='staged', which needs no such right",
                code=code(error),
            ) from error


def server_kind(session: SqlSession) -> str:
    """Return whether the server is 'MySQL' or 'MariaDB'."""
    return _kind_and_version(session)[0]


def _kind_and_version(session: SqlSession) -> tuple[str, str]:
    text = str(session.execute("SELECT VERSION()")[0][0])
    return ("MariaDB" if "mariadb" in text.lower() else "MySQL"), text


def _check_version(session: SqlSession) -> None:
    kind, text = _kind_and_version(session)
    numbers = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    if numbers is not None and tuple(map(int, numbers.groups())) < _OLDEST[kind]:
        raise ConfigError(
            f"{kind} {text} is too old: {'.'.join(map(str, _OLDEST[kind]))} is the first version whose prepared transactions outlive "
            "their session and a crash; use a newer server",
            version=text,
        )


def _parts(address: object) -> dict[str, Any]:
    """Parse an address; the error for an invalid one does not quote it, because it may hold a password."""
    try:
        return _read_url(address if isinstance(address, str) else "")
    except ValueError:
        raise ConfigError(
            "the address cannot be read; write mysql://user:password@host:3306/database, with special characters of the password "
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
