"""How the sinks `MySQL` and `MariaDB` commit and abort. Driver."""

from __future__ import annotations

from penstock.clock import SYSTEM_CLOCK
from penstock.errors import UnavailableError
from penstock.sinks.mysql.codes import MAY_NOT_RECOVER
from penstock.sinks.mysql.server import MySQLServer, Session, code, pymysql_module
from penstock.sinks.mysql.table import TargetTable
from penstock.sinks.mysql.writing import global_part, session_lock, xid
from penstock.sinks.sql.settling import Settling
from penstock.sinks.sql.transaction import SqlTransaction

_UNKNOWN_XID = 1397
_NO_SUCH_SESSION = 1094
_ATTACHED_TRIES = 50
_ATTACHED_PAUSE_S = 0.1
_STAGED_COLUMNS = """SELECT column_name FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = ?
    AND ordinal_position > 2 ORDER BY ordinal_position"""


class MySQLSettling(Settling):
    """One session of the driver."""

    def __init__(
        self, session: Session, table: TargetTable, server: MySQLServer, *, only_staged: bool
    ) -> None:
        super().__init__(session, str(server))
        self._mysql = session
        self._table = table
        self._server = server
        self._only_staged = only_staged

    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """See `Settling.settle`. 'Unknown' is also said while the session that prepared it has not ended, so the list is looked at."""
        for _ in range(_ATTACHED_TRIES):
            try:
                self._mysql.execute(f"XA {verb} {xid(transaction, self._server.database)}")
            except pymysql_module().Error as error:
                if code(error) != _UNKNOWN_XID:
                    raise
            else:
                return True
            if transaction.numbers not in self._listed(transaction.job, transaction.sink):
                return False
            SYSTEM_CLOCK.sleep(_ATTACHED_PAUSE_S)
        raise UnavailableError(
            f"transaction {transaction.name} is prepared in {self._server} but the session that prepared it has not ended; it is "
            "tried again",
            transaction=transaction.name,
        )

    def end_writer(self, transaction: SqlTransaction) -> None:
        """See `Settling.end_writer`."""
        lock = session_lock(transaction, self._server.database)
        holder = self._mysql.execute("SELECT IS_USED_LOCK(?)", [lock])[0][0]
        if holder is not None:
            try:
                self._mysql.execute(f"KILL {int(holder):d}")
            except pymysql_module().Error as error:
                if code(error) != _NO_SUCH_SESSION:
                    raise

    def prepared(self, job: str, sink: str) -> set[str]:
        """See `Settling.prepared`. Who stages needs no right to list them: without it nothing was ever prepared."""
        try:
            return self._listed(job, sink)
        except pymysql_module().Error as error:
            if self._only_staged and code(error) == MAY_NOT_RECOVER:
                return set()
            raise

    def _listed(self, job: str, sink: str) -> set[str]:
        """The second halves of the names whose first half says job, sink and database."""
        part = global_part(job, sink, self._server.database).encode()
        found = set()
        for _, global_length, branch_length, data in self._mysql.execute("XA RECOVER"):
            raw = data if isinstance(data, bytes) else str(data).encode()
            if raw[:global_length] == part:
                found.add(raw[global_length : global_length + branch_length].decode(errors="replace"))
        return found

    def move(self, number: int, staged_in: str) -> None:
        """See `Settling.move`."""
        columns = [name for (name,) in self._mysql.execute(_STAGED_COLUMNS, [staged_in])]
        self._mysql.execute(self._table.insert_sql(staged_in, columns, number))
