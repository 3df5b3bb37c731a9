"""A connection to a SQL server, as the sinks for all of them use it. Driver and executors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar


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
    record_types: ClassVar[RecordTypes]

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement; returns the rows of its answer."""

    @abstractmethod
    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; returns how many rows it has changed."""

    @abstractmethod
    def quoted(self, schema: str | None, table: str) -> str:
        """The name of a table as SQL writes it."""

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

    def named(self, schema: str | None, table: str) -> str:
        """The name of a table as a statement with values has to write it, where a `%` may stand for one."""
        name = self.quoted(schema, table)
        return name.replace("%", "%%") if "%" in self.mark else name
