"""A SQL server as a sink talks to it: an address without its secret, sessions, and what errors mean for a job. Driver and executors."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from penstock.errors import ConfigError, PenstockError, UnavailableError
from penstock.sinks.bad_rows import bad_record
from penstock.sinks.sql.session import SqlSession
from penstock.sinks.sql.transaction import SqlTransaction
from penstock.sinks.sql.two_phase import TwoPhase

RowOf = Callable[[Any], Mapping[str, Any] | None]
"""Finds the row that an error of the server is about; None if it does not tell."""


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


_PASSES = frozenset({Meaning.MAY_PASS, Meaning.NO_LOGIN})


@dataclass(frozen=True)
class SqlServer(ABC):
    """Where the server is; whatever is printed of it has no password."""

    address: str = field(repr=False)
    lock_timeout_s: float = 30.0
    connect_timeout_s: int = 10
    shown: str = field(init=False, default="")
    called: ClassVar[str]
    """In messages."""

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
        """The server's own transactions that can wait for their commit, through a session of `connect`."""

    @abstractmethod
    def check(self, session: SqlSession, *, prepared: bool) -> None:
        """Refuse a server that cannot keep what it is going to be given, `prepared` or not."""

    @abstractmethod
    def driver_error(self) -> type[Exception]:
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
        except self.driver_error() as error:
            if self.meaning(error) is Meaning.NO_LOGIN:
                raise ConfigError(
                    f"{self.called} at {self} refuses the connection: {self.said(error)}; check user, password and database",
                    server=self.shown,
                ) from error
            raise self._translated(error, ConfigError, "change the table or the sink's settings") from error

    @contextmanager
    def task_errors(self, table: str, row_of: RowOf = lambda _: None) -> Iterator[None]:
        """Report what the server says while rows are written: nothing of them is visible yet."""
        try:
            yield
        except self.driver_error() as error:
            if self.meaning(error) is Meaning.BAD_ROW:
                raise bad_record(table, self.said(error), row_of(error)) from error
            raise self._translated(error, ConfigError, "was the table changed while the job ran?") from error

    @contextmanager
    def commit_errors(self, for_good: type[PenstockError], follows: str) -> Iterator[None]:
        """Report what the server says when a commit or an abort is due."""
        try:
            yield
        except self.driver_error() as error:
            promised = {*_PASSES, Meaning.UNKNOWN}
            raise self._translated(error, for_good, follows, passes=promised) from error

    def _translated(
        self, error: Any, for_good: type[PenstockError], follows: str, *, passes: Container[Meaning] = _PASSES
    ) -> PenstockError:
        if self.meaning(error) in passes:
            for_good, follows = (
                UnavailableError,
                "it is tried again; check the server, its locks and its limits",
            )
        said = self.said(error)
        return for_good(
            f"{self.called} at {self}: {said}; {follows}", server=self.shown, cause=said, **self.code(error)
        )
