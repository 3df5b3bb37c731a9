"""What the errors of a server's driver mean for a job. Driver and executors."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any


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
