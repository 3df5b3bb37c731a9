"""Rows into PostgreSQL: `sinks.Postgres` beside Spark's JDBC writer, on one server, in turns.

The peer as its users run it: `foreachBatch`, mode append, no further options. A second one has the driver's
`reWriteBatchedInserts`, which puts many rows into one statement. Neither is exactly once: a batch that is repeated is written again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
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
ROUNDS = 2
BATCHES = 3
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


Writer = JdbcRows | PenstockRows


def measure(bench: Bench) -> Found:
    """Median seconds a batch of many rows, and of fewer; at the end all three tables must have the same rows."""
    sizes, turns = bench.size(((1_000_000, 200_000), ROUNDS), ((4_000, 2_000), 1))
    driver = servers.jar(*DRIVER)
    with servers.postgres() as server, bench.scratch() as root:
        bench.spark.sql(f"ADD JAR '{driver}'")
        orders = Orders(root)
        rewriting = "?reWriteBatchedInserts=true"
        writers: dict[str, Writer] = {
            "spark_jdbc": JdbcRows(orders, root, server.dsn(), "by_jdbc"),
            "spark_jdbc_rewritten": JdbcRows(orders, root, server.dsn(), "by_rewritten", rewriting),
            "penstock": PenstockRows(orders, root, server.dsn()),
        }
        with server.connect() as connection:
            for writer in writers.values():
                connection.execute(f"CREATE TABLE {writer.table} ({COLUMNS})")
        large, small = (_medians(bench, orders, writers, rows=rows, turns=turns) for rows in sizes)
        _compare_tables(server, [writer.table for writer in writers.values()])
    return {
        **{f"{name}_s": value for name, value in large.items()},
        "ratio": large["spark_jdbc"] / large["penstock"],
        "ratio_rewritten": large["spark_jdbc_rewritten"] / large["penstock"],
        "penstock_rows_per_second": sizes[0] / large["penstock"],
        "ratio_small_batches": small["spark_jdbc"] / small["penstock"],
        "ratio_rewritten_small_batches": small["spark_jdbc_rewritten"] / small["penstock"],
    }


def _medians(
    bench: Bench, orders: Orders, writers: Mapping[str, Writer], *, rows: int, turns: int
) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    for turn in range(turns):
        batches = orders.orders(rows, batches=WARM_UP + BATCHES)
        for name, writer in writers.items():
            title = f"{name}, {rows:,} rows, turn {turn + 1} of {turns}"
            seconds[name] += bench.run(title, writer, batches=batches).seconds[WARM_UP:]
    return {name: statistics.median(times) for name, times in seconds.items()}


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
