"""A SQL server as a sink talks to it: an address without its secret, sessions, and transactions that can wait. Driver and executors."""

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
from penstock.sinks.tables import quoted_name
from penstock.sinks.transaction import NamedTransaction

PREPARED: Final = "prepared"
STAGED: Final = "staged"


class SqlTransaction(NamedTransaction, frozen=True, kw_only=True):
    """One whose rows wait in the server, prepared or in a table; `how` stays true when settings change."""

    how: Literal["prepared", "staged"] = PREPARED

    @property
    def numbers(self) -> str:
        """The part of the name behind job and sink."""
        return self.name.removeprefix(f"{self.job}.{self.sink}.")


msgspec.json.Decoder(SqlTransaction)  # so that `convert` meets a type that is known, see `snapshot.mailbox`


def owner_digest(*parts: str) -> str:
    """Tell job and sink (and where they write) from all others, in 16 characters."""
    return hashlib.blake2s("\0".join(parts).encode(), digest_size=8).hexdigest()


class Meaning(enum.Enum):
    """What an error of a server means for a job."""

    NO_LOGIN = enum.auto()
    """User, password or database are refused: wrong settings before the job starts, and later something that may pass."""
    BAD_ROW = enum.auto()
    """A row is refused for what is in it."""
    MAY_PASS = enum.auto()
    """The server is away, busy or in trouble."""
    REFUSED = enum.auto()
    """Asking again would not help."""
    UNKNOWN = enum.auto()
    """Ends a job in a task; a commit, which a checkpoint has promised, is tried again."""


class DriverErrors(ABC):
    """The errors of one driver."""

    @abstractmethod
    def all(self) -> type[Exception]:
        """The class of all errors of the driver."""

    @abstractmethod
    def meaning(self, error: Any) -> Meaning:
        """What one of them means."""

    @abstractmethod
    def code(self, error: Any) -> Mapping[str, Any]:
        """Its number, by the name that the server has for it."""

    @abstractmethod
    def said(self, error: Any) -> str:
        """What the server has to say about it, in one line."""

    @abstractmethod
    def is_denied(self, error: Any) -> bool:
        """Tell whether this user may not do what was asked."""


RowOf = Callable[[Any], Mapping[str, Any] | None]
"""Finds the row that an error of the server is about; None if it does not tell."""
_CHECK_USER = "check user, password, database and what this user may do"
_PASSES = frozenset({Meaning.MAY_PASS, Meaning.NO_LOGIN})


@dataclass(frozen=True)
class RecordTypes:
    """How a server declares the columns of the tables of records."""

    identity: str
    """Job to token, and how many rows a transaction has."""
    number: str
    """The column that numbers staged transactions."""
    table_name: str
    options: str = ""
    """What follows the columns."""


class SqlSession(ABC):
    """One connection. A statement with values has a `mark` for each; one without goes out as it is."""

    mark: ClassVar[str]
    quote: ClassVar[str]
    record_types: ClassVar[RecordTypes]

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; returns the rows of its answer."""

    @abstractmethod
    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns how many rows it has changed."""

    @abstractmethod
    def has(self, schema: str | None, table: str) -> bool:
        """Tell whether a table is there."""

    @abstractmethod
    def create(self, statement: str) -> None:
        """Make a table that another session may be making too."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[object]:
        """Make everything that is done inside visible at once, or nothing of it."""

    @abstractmethod
    def close(self) -> None:
        """Leave; the server rolls back what is open."""

    def quoted(self, schema: str | None, table: str) -> str:
        """The name of a table as SQL writes it."""
        return quoted_name(*filter(None, (schema, table)), mark=self.quote)

    def named(self, schema: str | None, table: str) -> str:
        """The name of a table as a statement with values has to write it, where a `%` may stand for one."""
        name = self.quoted(schema, table)
        return name.replace("%", "%%") if "%" in self.mark else name


class TwoPhase(ABC):
    """The server's own transactions that can wait for their commit, through one session. Begun in tasks, settled on the driver."""

    @abstractmethod
    def begin(self, transaction: SqlTransaction) -> None:
        """Begin a transaction, so that what it writes can be prepared; a plain one if its rows are only staged."""

    @abstractmethod
    def prepare(self, transaction: SqlTransaction) -> None:
        """Make what was written durable and invisible: when the session has ended any other can settle it."""

    @abstractmethod
    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """COMMIT or ROLLBACK a prepared transaction; False if there is none of this name."""

    @abstractmethod
    def end_writer(self, transaction: SqlTransaction) -> None:
        """End the session of an attempt that is still writing, if there is one."""

    @abstractmethod
    def prepared(self, job: str, sink: str, *, needed: bool) -> Iterable[str]:
        """The `numbers` of what is prepared of this job and sink in this database; not `needed`: whoever may not look has none."""


@dataclass(frozen=True)
class SqlServer(ABC):
    """Where the server is; whatever is printed of it has no password."""

    address: str = field(repr=False)
    lock_timeout_s: float = 30.0
    connect_timeout_s: int = 10
    shown: str = field(init=False, default="")
    called: ClassVar[str]
    """In messages."""
    errors: ClassVar[DriverErrors]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown", self.without_secrets())

    def __str__(self) -> str:
        return self.shown

    @abstractmethod
    def without_secrets(self) -> str:
        """The address for messages; one that cannot be read is refused without a word of it."""

    @abstractmethod
    def connect(self, writer: SqlTransaction | None = None) -> SqlSession:
        """Open a session whose statements are transactions of their own until one is begun; that of a writer can be found and ended."""

    @abstractmethod
    def two_phase(self, session: SqlSession) -> TwoPhase:
        """What a session of `connect` can do with transactions that wait."""

    @abstractmethod
    def check(self, session: SqlSession, *, prepared: bool) -> None:
        """Refuse a server that cannot keep what it is going to be given, `prepared` or not."""

    @contextmanager
    def session(self) -> Iterator[Any]:
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
        except self.errors.all() as error:
            if self.errors.meaning(error) is Meaning.NO_LOGIN:
                raise ConfigError(
                    f"{self.called} at {self} refuses the connection: {self.errors.said(error)}; check user, password and database",
                    server=self.shown,
                ) from error
            raise self._translated(error, ConfigError, "change the table or the sink's settings") from error

    @contextmanager
    def task_errors(self, table: str, row_of: RowOf = lambda _: None) -> Iterator[None]:
        """Report what the server says while rows are written: nothing of them is visible yet."""
        try:
            yield
        except self.errors.all() as error:
            if self.errors.meaning(error) is Meaning.BAD_ROW:
                raise bad_record(table, self.errors.said(error), row_of(error)) from error
            raise self._translated(error, ConfigError, "was the table changed while the job ran?") from error

    @contextmanager
    def commit_errors(self, for_good: type[PenstockError], follows: str) -> Iterator[None]:
        """Report what the server says when a commit or an abort is due."""
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
            follows = _CHECK_USER if denied else "check the server, its locks and its limits, and the address"
        said = self.errors.said(error)
        return for_good(
            f"{self.called} at {self}: {said}; {follows}",
            server=self.shown,
            cause=said,
            denied=denied,
            **self.errors.code(error),
        )


def checked_lock_timeout_s(lock_timeout: Duration) -> float:
    """In seconds; never 0, which servers take for 'without a limit'."""
    return seconds("lock_timeout", lock_timeout, minimum_s=0.001)
