"""Transactions of a SQL server that can wait for their commit, and the sessions that write them. Begun in tasks, settled on the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

from penstock.sinks.sql.transaction import SqlTransaction


class TwoPhase(ABC):
    """What one session can do with them."""

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
