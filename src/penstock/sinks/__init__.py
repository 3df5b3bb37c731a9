"""Where results leave the job. In: Arrow batches of one batch. Out: rows that others see, once.

Called by the spark package: in tasks (write, pre-commit) and, through the checkpoint package, on the driver
(commit, abort).
"""

from penstock.sinks.files import Files
from penstock.sinks.kafka import Kafka
from penstock.sinks.mysql import MariaDB, MySQL
from penstock.sinks.postgres import Postgres
from penstock.sinks.sqlite import SQLite
from penstock.sinks.two_phase_commit import Delivery, Transaction, TransactionContext, TwoPhaseCommitSink

__all__ = [
    "Delivery",
    "Files",
    "Kafka",
    "MariaDB",
    "MySQL",
    "Postgres",
    "SQLite",
    "Transaction",
    "TransactionContext",
    "TwoPhaseCommitSink",
]
