"""A log of known truth, jobs over it, and the comparison: shared by the Spark tests."""

from __future__ import annotations

import sqlite3
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark import TaskContext

import penstock as ps


@dataclass
class Ledger:
    """A partitioned log below `root` and places for a job's storage and results."""

    root: Path
    partitions: int = 2
    log: ps.sources.PartitionedLog = field(init=False)

    def __post_init__(self) -> None:
        self.log = ps.sources.PartitionedLog(self.root / "log", "app string, user long", self.partitions)

    def append(self, partition: int, app: str, count: int, *, user: int = 0) -> None:
        table = pa.table({"app": [app] * count, "user": pa.array(range(user, user + count), pa.int64())})
        self.log.append(partition, table)

    def fill(self, rows: int, apps: int = 5) -> None:
        for partition in range(self.partitions):
            names = [f"app{(row * 7 + partition) % apps}" for row in range(rows)]
            users = pa.array([row % 100 for row in range(rows)], pa.int64())
            self.log.append(partition, pa.table({"app": names, "user": users}))

    def truth(self, column: str = "app") -> dict[Any, int]:
        return dict(Counter(self.log.table()[column].to_pylist()))

    def job(self, name: str = "pv", **settings: Any) -> ps.Job:
        settings.setdefault("checkpoint", ps.Checkpointing(interval="1ms"))
        settings.setdefault("restart", ps.no_restart())
        return ps.Job(name, storage=self.root / "store", local_dir=self.root / "local", **settings)

    def sqlite(self, table: str = "views", key: str = "app") -> ps.sinks.SQLite:
        return ps.sinks.SQLite(self.root / "out.db", table=table, mode="upsert", key=[key])

    def files(self, name: str = "files") -> ps.sinks.Files:
        return ps.sinks.Files(self.root / name, format="parquet")

    def counts(self, table: str = "views") -> dict[Any, int]:
        with sqlite3.connect(self.root / "out.db") as database:
            return dict(database.execute(f"select * from {table}").fetchall())

    def rows_of(self, table: str) -> list[Any]:
        with sqlite3.connect(self.root / "out.db") as database:
            return database.execute(f"select * from {table}").fetchall()

    def rows(self, name: str = "files") -> list[dict[str, Any]]:
        if not any((self.root / name).glob("*.parquet")):
            return []
        return ds.dataset(self.root / name, format="parquet").to_table().to_pylist()


def fail_for_good(marker: Path) -> None:
    """Fail both attempts of a task after which the driver gives up the batch; after the second one `marker` exists."""
    task = TaskContext.get()
    assert task is not None
    if task.attemptNumber() == 1:
        marker.touch()
    raise RuntimeError("the disk of the user is on fire")


class Count(ps.KeyedProcess):
    """Counts rows per key and emits the new count."""

    count = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        self.count.value += len(rows)
        yield key, self.count.value
