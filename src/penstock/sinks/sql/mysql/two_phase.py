"""`XA PREPARE` in the task, `XA COMMIT` on the driver; and the sessions of tasks. Executors and driver."""

from __future__ import annotations

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import UnavailableError
from penstock.sinks.sql.mysql.errors import MAY_NOT_RECOVER, code, pymysql_module
from penstock.sinks.sql.server import SqlSession, TwoPhase
from penstock.sinks.sql.transaction import PREPARED, SqlTransaction, owner_digest
from penstock.wording import duration

_SHOWN_BYTES = 20
_UNKNOWN_XID = 1397
_NO_SUCH_SESSION = 1094
_ATTACHED_TRIES = 50
_ATTACHED_PAUSE_S = 0.1


class XATransactions(TwoPhase):
    """See `TwoPhase`. The server has one list of names for all databases."""

    def __init__(self, session: SqlSession, database: str, shown: str) -> None:
        self._session = session
        self._database = database
        self._shown = shown

    def begin(self, transaction: SqlTransaction) -> None:
        """See `TwoPhase`."""
        prepared = transaction.how == PREPARED
        self._session.execute(f"XA START {self._xid(transaction)}" if prepared else "START TRANSACTION")

    def prepare(self, transaction: SqlTransaction) -> None:
        """See `TwoPhase`."""
        self._session.execute(f"XA END {self._xid(transaction)}")
        self._session.execute(f"XA PREPARE {self._xid(transaction)}")

    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """See `TwoPhase`. 'Unknown' is also said while the session that prepared it has not ended, so the list is looked at."""
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
            f"after {duration(_ATTACHED_TRIES * _ATTACHED_PAUSE_S)}; if it stays so, end that session with KILL",
            transaction=transaction.name,
        )

    def end_writer(self, transaction: SqlTransaction) -> None:
        """See `TwoPhase`."""
        lock = session_lock(transaction, self._database)
        holder = self._session.execute("SELECT IS_USED_LOCK(?)", [lock])[0][0]
        if holder is not None:
            try:
                self._session.execute(f"KILL {int(holder):d}")
            except pymysql_module().Error as error:
                if code(error) != _NO_SUCH_SESSION:
                    raise

    def prepared(self, job: str, sink: str, *, needed: bool) -> set[str]:
        """See `TwoPhase`. Who stages needs no right to list them: without it nothing was ever prepared."""
        try:
            return self._listed(job, sink)
        except pymysql_module().Error as error:
            if not needed and code(error) == MAY_NOT_RECOVER:
                return set()
            raise

    def _listed(self, job: str, sink: str) -> set[str]:
        """The second halves of the names whose first half says job, sink and database."""
        part = _global_part(job, sink, self._database).encode()
        found = set()
        for _, global_length, branch_length, data in self._session.execute("XA RECOVER"):
            raw = data if isinstance(data, bytes) else str(data).encode()
            if raw[:global_length] == part:
                found.add(raw[global_length : global_length + branch_length].decode(errors="replace"))
        return found

    def _xid(self, transaction: SqlTransaction) -> str:
        """The name of a prepared transaction in SQL: two parts of at most 64 bytes, of letters, digits and `-_:.`."""
        part = _global_part(transaction.job, transaction.sink, self._database)
        return f"'{part}','{transaction.numbers}'"


def session_lock(transaction: SqlTransaction, database: str) -> str:
    """The name of the lock by which the session of an attempt is found."""
    return f"penstock {owner_digest(transaction.job, transaction.sink, database)} {transaction.token}"


def _global_part(job: str, sink: str, database: str) -> str:
    """What the names of all prepared transactions of a job and sink in a database share, and no others."""
    return f"{job[:_SHOWN_BYTES]}:{sink[:_SHOWN_BYTES]}:{owner_digest(job, sink, database)}"
