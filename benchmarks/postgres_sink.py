"""Rows into PostgreSQL: `sinks.Postgres` beside Spark's JDBC writer, on one server, in turns.

The peer as its users run it: `foreachBatch`, mode append, no further options. A second one has the driver's
`reWriteBatchedInserts`, which puts many rows into one statement. Neither is exactly once: a batch that is repeated is written again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import jobs
import numpy as np
import pyarrow as pa
import servers
from bench import Bench
from data import PARTITIONS, Clicks
from measure import Found
from pyspark.sql import DataFrame, SparkSession

import penstock as ps

if TYPE_CHECKING:
    from services.postgres_process import PostgresProcess

DRIVER = ("org.postgresql", "postgresql", "42.7.8")
COLUMNS = "id bigint, customer text, amount double precision, at timestamptz, paid boolean"
ROUNDS = 3
BATCHES = 4
WARM_UP = 2
FIRST_MICROSECOND = 1_700_000_000_000_000


class Orders(Clicks):
    """Rows as a shop has them: numbers, a text, a time and a flag."""

    schema = "id long, customer string, amount double, at timestamp, paid boolean"

    def orders(self, rows: int, *, batches: int) -> int:
        """Add batches of so many rows."""
        for _ in range(batches * PARTITIONS):
            self._write(self._table(rows // PARTITIONS))
        return batches

    def _table(self, rows: int) -> pa.Table:
        rng = self._rng
        customers = np.char.add("customer ", rng.integers(0, 50_000, rows).astype(str))
        moments = FIRST_MICROSECOND + rng.integers(0, 10**13, rows)
        return pa.table(
            {
                "id": rng.integers(0, 2**62, rows),
                "customer": customers,
                "amount": rng.integers(0, 100_000, rows) / 100,
                "at": pa.array(moments, pa.timestamp("us", "UTC")),
                "paid": rng.random(rows) < 0.8,
            }
        )


@dataclass
class PenstockRows:
    """A job that only writes: append by prepared transactions, a checkpoint every batch."""

    orders: Orders
    root: Path
    dsn: str
    table: str = "by_penstock"

    def run(self, spark: SparkSession) -> None:
        checkpointing = ps.Checkpointing(interval="1ms", max_concurrent=jobs.AT_ONCE)
        job = ps.Job(
            "bench", storage=self.root / "store", local_dir=self.root / "local", checkpoint=checkpointing
        )
        rows = job.read(self.orders.read(spark), uid="orders")
        rows.write_to(ps.sinks.Postgres(self.dsn, self.table), uid="out")
        job.run(available_now=True)


@dataclass
class JdbcRows:
    """Spark's own writer, batch by batch."""

    orders: Orders
    root: Path
    dsn: str
    table: str
    parameters: str = ""

    def run(self, spark: SparkSession) -> None:
        writer = self.orders.read(spark).writeStream.foreachBatch(self._writes())
        jobs.run_query(writer, self.root / self.table)

    def _writes(self) -> Callable[[DataFrame, int], None]:
        user, _, rest = self.dsn.removeprefix("postgresql://").partition(":")
        password, _, place = rest.partition("@")
        options = {
            "url": f"jdbc:postgresql://{place}{self.parameters}",
            "driver": "org.postgresql.Driver",
            "dbtable": self.table,
            "user": user,
            "password": password,
        }

        def write(frame: DataFrame, _: int) -> None:
            frame.write.format("jdbc").options(**options).mode("append").save()

        return write


def measure(bench: Bench) -> Found:
    """Median seconds a batch; at the end all three tables must have the same rows."""
    rows, turns = bench.size((200_000, ROUNDS), (4_000, 1))
    driver = servers.jar(*DRIVER)
    with servers.postgres() as server, bench.scratch() as root:
        bench.spark.sql(f"ADD JAR '{driver}'")
        orders = Orders(root)
        rewriting = "?reWriteBatchedInserts=true"
        writers = {
            "spark_jdbc": JdbcRows(orders, root, server.dsn(), "by_jdbc"),
            "spark_jdbc_rewritten": JdbcRows(orders, root, server.dsn(), "by_rewritten", rewriting),
            "penstock": PenstockRows(orders, root, server.dsn()),
        }
        with server.connect() as connection:
            for writer in writers.values():
                connection.execute(f"CREATE TABLE {writer.table} ({COLUMNS})")
        seconds: dict[str, list[float]] = {name: [] for name in writers}
        for turn in range(turns):
            batches = orders.orders(rows, batches=WARM_UP + BATCHES)
            for name, writer in writers.items():
                times = bench.run(f"{name}, turn {turn + 1} of {turns}", writer, batches=batches)
                seconds[name] += times.seconds[WARM_UP:]
        _compare_tables(server, [writer.table for writer in writers.values()])
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        **{f"{name}_s": value for name, value in medians.items()},
        "ratio": medians["spark_jdbc"] / medians["penstock"],
        "ratio_rewritten": medians["spark_jdbc_rewritten"] / medians["penstock"],
        "penstock_rows_per_second": rows / medians["penstock"],
    }


def _compare_tables(server: PostgresProcess, tables: list[str]) -> None:
    """The same rows, or the comparison is void."""
    with server.connect() as connection:
        facts = [
            connection.execute(
                f"SELECT count(*), sum(id), sum(amount::numeric), min(at), max(at), count(distinct customer) FROM {table}"
            ).fetchone()
            for table in tables
        ]
        subtasks = connection.execute("SELECT count(DISTINCT subtask) FROM _penstock_commits").fetchone()
    if len(set(facts)) != 1 or subtasks != (PARTITIONS,):
        raise RuntimeError(f"the tables {tables} differ: {facts}, subtasks {subtasks}")
