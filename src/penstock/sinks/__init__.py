"""Where results leave the job. In: Arrow batches of one batch. Out: rows that others see, once.

Called by the spark package: in tasks (write, pre-commit) and, through the checkpoint package, on the driver
(commit, abort).
"""

from penstock.sinks.delta_lake import DeltaLake
from penstock.sinks.files import Files
from penstock.sinks.foreach import Foreach
from penstock.sinks.kafka import Kafka
from penstock.sinks.mysql import MariaDB, MySQL
from penstock.sinks.postgres import Postgres
from penstock.sinks.redis import Redis
from penstock.sinks.sql_upsert import SQLUpsert
from penstock.sinks.sqlite import SQLite
from penstock.sinks.two_phase_commit import Delivery, Transaction, TransactionContext, TwoPhaseCommitSink
from penstock.sinks.write_ahead_log import WriteAheadLog

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
