"""Where results leave the job. In: Arrow batches of one batch. Out: rows that others see, once.

Called by the spark package: in tasks (write, pre-commit) and, through the checkpoint package, on the driver
(commit, abort).
"""

from typing import TYPE_CHECKING

from penstock.lazy_imports import LateNames

if TYPE_CHECKING:
    from penstock.sinks.delta_lake import DeltaLake
    from penstock.sinks.files import Files
    from penstock.sinks.kafka.sink import Kafka
    from penstock.sinks.redis import Redis
    from penstock.sinks.sql.mysql import MariaDB, MySQL
    from penstock.sinks.sql.postgres import Postgres
    from penstock.sinks.sql_upsert import SQLUpsert
    from penstock.sinks.sqlite import SQLite
    from penstock.sinks.two_phase_commit import Delivery, Transaction, TransactionContext, TwoPhaseCommitSink
    from penstock.sinks.user_functions import Foreach, WriteAheadLog

__all__ = [
    "Delivery",
    "DeltaLake",
    "Files",
    "Foreach",
    "Kafka",
    "MariaDB",
    "MySQL",
    "Postgres",
    "Redis",
    "SQLUpsert",
    "SQLite",
    "Transaction",
    "TransactionContext",
    "TwoPhaseCommitSink",
    "WriteAheadLog",
]

_NAMES = LateNames(
    __name__,
    {
        "delta_lake": ("DeltaLake",),
        "files": ("Files",),
        "kafka.sink": ("Kafka",),
        "redis": ("Redis",),
        "sql.mysql": ("MariaDB", "MySQL"),
        "sql.postgres": ("Postgres",),
        "sql_upsert": ("SQLUpsert",),
        "sqlite": ("SQLite",),
        "two_phase_commit": ("Delivery", "Transaction", "TransactionContext", "TwoPhaseCommitSink"),
        "user_functions": ("Foreach", "WriteAheadLog"),
    },
)
"""A job has one or two sinks. Each Python worker would import them all, which takes it a tenth of a second."""
__getattr__, __dir__ = _NAMES.get, _NAMES.all
