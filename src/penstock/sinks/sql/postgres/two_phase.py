"""`PREPARE TRANSACTION` in the task, `COMMIT PREPARED` on the driver; and the sessions of tasks. Executors and driver."""

from __future__ import annotations

from penstock.sinks.sql.postgres.errors import psycopg_module
from penstock.sinks.sql.server import SqlSession, TwoPhase
from penstock.sinks.sql.transaction import SqlTransaction, owner_digest

_SHOWN_BYTES = 40
_PREPARED_IDS = (
    "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND starts_with(gid, %s)"
)
_END_SESSIONS = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s
    AND datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"""


class PreparedTransactions(TwoPhase):
    """See `TwoPhase`."""

    def __init__(self, session: SqlSession) -> None:
        self._session = session

    def begin(self, transaction: SqlTransaction) -> None:  # noqa: ARG002 - any transaction can be prepared
        """See `TwoPhase`."""
        self._session.execute("BEGIN")

    def prepare(self, transaction: SqlTransaction) -> None:
        """See `TwoPhase`."""
        self._session.execute(f"PREPARE TRANSACTION '{_global_id(transaction)}'")

    def settle(self, verb: str, transaction: SqlTransaction) -> bool:
        """See `TwoPhase`."""
        try:
            self._session.execute(f"{verb} PREPARED '{_global_id(transaction)}'")
        except psycopg_module().errors.UndefinedObject:
            return False
        return True

    def end_writer(self, transaction: SqlTransaction) -> None:
        """See `TwoPhase`."""
        self._session.execute(_END_SESSIONS, [session_name(transaction)])

    def prepared(self, job: str, sink: str, *, needed: bool) -> list[str]:  # noqa: ARG002 - everybody may look
        """See `TwoPhase`."""
        prefix = _id_prefix(job, sink)
        return [gid.removeprefix(prefix) for (gid,) in self._session.execute(_PREPARED_IDS, [prefix])]


def session_name(transaction: SqlTransaction) -> str:
    """What `pg_stat_activity` shows; no two transactions have the same first 34 characters."""
    digest = owner_digest(transaction.job, transaction.sink)
    return f"penstock {digest} {transaction.token} {transaction.job}"[:63]


def _id_prefix(job: str, sink: str) -> str:
    """The beginning that the names of all prepared transactions of a job and sink have, and no others."""
    return f"penstock:{job[:_SHOWN_BYTES]}:{sink[:_SHOWN_BYTES]}:{owner_digest(job, sink)}:"


def _global_id(transaction: SqlTransaction) -> str:
    """The name of a prepared transaction: letters, digits and `-_:.`, less than 200 bytes."""
    return _id_prefix(transaction.job, transaction.sink) + transaction.numbers
