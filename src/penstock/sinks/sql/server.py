"""A SQL server: address, sessions, errors, and transactions that wait for their commit. Driver and executors.

A server limits the length of a transaction's name (PostgreSQL 199 bytes, XA 64 and 64). So a name holds the
beginnings of job and sink for people to read, and a digest of both for the comparison.
"""

from __future__ import annotations

import enum
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

import msgspec

from penstock.config import Duration, seconds
from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.sinks.bad_rows import bad_record
from penstock.sinks.table_checks import quoted_name
from penstock.sinks.transaction import NamedTransaction

PREPARED: Final = "prepared"
STAGED: Final = "staged"


class SqlTransaction(NamedTransaction, frozen=True, kw_only=True):
    """A transaction whose rows wait in the server, prepared or in a table. `how` does not change with the settings of the sink."""

    how: Literal["prepared", "staged"] = PREPARED

    @property
    def numbers(self) -> str:
        """The part of the name after job and sink."""
        return self.name.removeprefix(f"{self.job}.{self.sink}.")


msgspec.json.Decoder(SqlTransaction)  # registers the type before there are threads, see `snapshot.mailbox`


def owner_digest(*parts: str) -> str:
    """Return 16 characters that identify a job and sink (and their target)."""
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()


class Meaning(enum.Enum):
    """The meaning of a server's error for a job."""

    NO_LOGIN = enum.auto()
    """User, password or database are refused: a wrong setting before the job starts, a temporary failure later."""
    BAD_ROW = enum.auto()
    """A row is refused because of its values."""
    MAY_PASS = enum.auto()
    """The server is unreachable, busy or failing."""
    REFUSED = enum.auto()
    """Retrying would not help."""
    UNKNOWN = enum.auto()
    """Fails the job in a task; a commit, which a checkpoint has promised, is retried."""


class DriverErrors(ABC):
    """Interprets the errors of one driver, of which `module` imports the Python package."""

    module: ClassVar[Callable[[], Any]]

    def all(self) -> type[Exception]:
        """Return the base class of the driver's errors."""
        kind: type[Exception] = type(self).module().Error
        return kind

    @abstractmethod
    def meaning(self, error: Any) -> Meaning:
        """Return the meaning of an error."""

    @abstractmethod
    def code(self, error: Any) -> Mapping[str, Any]:
        """Return the code of an error, under the name that the server has for it."""

    @abstractmethod
    def said(self, error: Any) -> str:
        """Return the server's message in one line."""

    @abstractmethod
    def is_denied(self, error: Any) -> bool:
        """Return whether the user lacks a right."""


RowOf = Callable[[Any], Mapping[str, Any] | None]
"""Finds the row that an error of the server is about; None if the error does not say."""
_CHECK_USER = "check user, password, database and the rights of this user"
_PASSES = frozenset({Meaning.MAY_PASS, Meaning.NO_LOGIN})


@dataclass(frozen=True)
class RecordTypes:
    """The column types of the tables of records on one server."""

    identity: str
    """The columns from job to token, and the number of rows of a transaction."""
    number: str
    """The column that numbers staged transactions."""
    table_name: str
    options: str = ""
    """What follows the list of columns."""


class SqlSession(ABC):
    """One connection. A statement has a `mark` for each value; a statement without values is sent as it is."""

    mark: ClassVar[str]
    quote: ClassVar[str]
    record_types: ClassVar[RecordTypes]

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; returns its result rows."""

    @abstractmethod
    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns the number of changed rows."""

    @abstractmethod
    def has(self, schema: str | None, table: str) -> bool:
        """Return whether a table exists."""

    @abstractmethod
    def create(self, statement: str) -> None:
        """Create a table that another session may be creating at the same time."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """Open a transaction: all changes become visible together, or none."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; the server rolls back an open transaction."""

    def quoted(self, schema: str | None, table: str) -> str:
        """Return the quoted name of a table."""
        return quoted_name(*filter(None, (schema, table)), mark=self.quote)

    def named(self, schema: str | None, table: str) -> str:
        """Return the quoted name of a table for a statement with values, in which a `%` may have to be doubled."""
        name = self.quoted(schema, table)
        return name.replace("%", "%%") if "%" in self.mark else name


class TwoPhase(ABC):
    """The server's own transactions that can wait for their commit, through one session. Begun in tasks, settled on the driver."""

    @abstractmethod
    def begin(self, transaction: SqlTransaction) -> None:
        """Begin a transaction that can be prepared; an ordinary one if its rows are only staged."""

    @abstractmethod
    def prepare(self, transaction: SqlTransaction) -> None:
        """Make the rows durable but not visible. Any other session can then commit them or roll them back."""

    @abstractmethod
    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """COMMIT or ROLLBACK a prepared transaction; False if there is none of this name."""

    @abstractmethod
    def end_writer(self, transaction: SqlTransaction) -> None:
        """End the session of an attempt that is still writing."""

    @abstractmethod
    def prepared(self, job: str, sink: str, *, needed: bool) -> Iterable[str]:
        """Return the `numbers` of the prepared transactions of this job and sink in this database.

        If the user may not list them, return none unless they are `needed`.
        """


@dataclass(frozen=True)
class SqlServer(ABC):
    """The address of the server; its password is never shown."""

    address: str = field(repr=False)
    lock_timeout_s: float = 30.0
    connect_timeout_s: int = 10
    shown: str = field(init=False, default="")
    called: ClassVar[str]
    """Its name in messages."""
    errors: ClassVar[DriverErrors]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", self.without_secrets())

    def __str__(self) -> str:
        return self.shown

    @abstractmethod
    def without_secrets(self) -> str:
        """Return the address for messages; raises `ConfigError` for an invalid one, without quoting it."""

    @abstractmethod
    def connect(self, writer: SqlTransaction | None = None) -> SqlSession:
        """Open a session in autocommit mode. `TwoPhase.end_writer` can find the session of a writer and end it."""

    @abstractmethod
    def two_phase(self, session: SqlSession) -> TwoPhase:
        """Return the transactions of a session that can wait for their commit."""

    @abstractmethod
    def check(self, session: SqlSession, *, prepared: bool) -> None:
        """Refuse a server that does not support these transactions, `prepared` or staged."""

    @contextmanager
    def session(self) -> Iterator[Any]:
        """Open a session and close it at the end."""
        session = self.connect()
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def config_errors(self) -> Iterator[None]:
        """Translate errors of the server before the job starts."""
        try:
            yield
        except self.errors.all() as error:
            if self.errors.meaning(error) is Meaning.NO_LOGIN:
                raise ConfigError(
                    f"{self.called} at {self} refuses the connection: {self.errors.said(error)}; check user, password and database",
                    server=self.shown,
                ) from error
            raise self._translated(error, ConfigError, "change the table or the sink's settings") from error

    @contextmanager
    def task_errors(self, table: str, row_of: RowOf = lambda _: None) -> Iterator[None]:
        """Translate errors of the server while rows are written; none of them is visible yet."""
        try:
            yield
        except self.errors.all() as error:
            if self.errors.meaning(error) is Meaning.BAD_ROW:
                raise bad_record(table, self.errors.said(error), row_of(error)) from error
            raise self._translated(
                error, ConfigError, "check whether the table was changed while the job ran"
            ) from error

    @contextmanager
    def commit_errors(self, for_good: type[PenstockError], follows: str) -> Iterator[None]:
        """Translate errors of the server during a commit or an abort."""
        try:
            yield
        except self.errors.all() as error:
            promised = {*_PASSES, Meaning.UNKNOWN}
            raise self._translated(error, for_good, follows, passes=promised) from error

    def _translated(
        self, error: Any, for_good: type[PenstockError], follows: str, *, passes: Container[Meaning] = _PASSES
    ) -> PenstockError:
        denied = self.errors.meaning(error) is Meaning.NO_LOGIN or self.errors.is_denied(error)
        if self.errors.meaning(error) in passes:
            for_good = UnavailableError
            follows = _CHECK_USER if denied else "check the server, its locks, its limits and the address"
        said = self.errors.said(error)
        return for_good(
            f"{self.called} at {self}: {said}; {follows}",
            server=self.shown,
            cause=said,
            denied=denied,
            **self.errors.code(error),
        )


def checked_lock_timeout_s(lock_timeout: Duration) -> float:
    """Return the timeout in seconds; never 0, which means no limit to servers."""
    return seconds("lock_timeout", lock_timeout, minimum_s=0.001)
