"""One job into files, PostgreSQL and Kafka at once. As a script it dies with -9 between the commits of two of its sinks."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import penstock as ps
from penstock.storage import Storage

DIES_IN = 1
"""The checkpoint whose commits are cut in two."""


class Number(ps.KeyedProcess):
    """Numbers the rows of a key: 1, 2, 3, ... whatever the batches are."""

    seen = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        for _ in rows:
            self.seen.value += 1
            yield key, self.seen.value


@dataclass(frozen=True)
class Places:
    """Where the job reads and writes."""

    root: Path
    dsn: str
    table: str
    brokers: str
    topic: str

    def files(self, kind: type[ps.sinks.Files] = ps.sinks.Files) -> ps.sinks.Files:
        return kind(self.root / "files")

    def postgres(self, kind: type[ps.sinks.Postgres] = ps.sinks.Postgres) -> ps.sinks.Postgres:
        return kind(self.dsn, self.table, create=True)

    def kafka(self) -> ps.sinks.Kafka:
        return ps.sinks.Kafka(
            self.brokers,
            self.topic,
            staging=self.root / "staging",
            key="app",
            commits_topic=f"{self.topic}-commits",
        )


def build(
    spark,
    places: Places,
    *,
    storage: Storage | Path | None = None,
    code: ps.KeyedProcess | None = None,
    files: ps.sinks.Files | None = None,
    postgres: ps.sinks.Postgres | None = None,
    only_for_postgres: Callable = lambda frame: frame,
    **settings,
) -> ps.Job:
    """Number the rows of a log of `app` and `user`, 100 a batch, and write them to three sinks."""
    settings = {"checkpoint": ps.Checkpointing(interval="1ms"), "restart": ps.no_restart(), **settings}
    job = ps.Job(
        "several", storage=storage or places.root / "store", local_dir=places.root / "local", **settings
    )
    log = ps.sources.PartitionedLog(places.root / "log", "app string, user long", 2)
    clicks = job.read(log.read(spark, rows_per_batch=100), uid="clicks")
    numbered = clicks.key_by("app").process(code or Number(), schema="app string, n long", uid="number")
    numbered.write_to(files or places.files(), uid="to-files")
    numbered.transform(only_for_postgres).write_to(postgres or places.postgres(), uid="to-postgres")
    numbered.write_to(places.kafka(), uid="to-kafka")
    return job


class FirstFiles(ps.sinks.Files):
    """Leaves a mark when it has committed."""

    def commit_all(self, transactions):
        transactions = list(transactions)
        super().commit_all(transactions)
        if any(one["checkpoint"] == DIES_IN for one in transactions):
            (self.path / "_committed").touch()


class DeadlyPostgres(ps.sinks.Postgres):
    """Ends the process before it commits, when the files are there."""

    mark: Path

    def commit_all(self, transactions):
        transactions = list(transactions)
        if any(one["checkpoint"] == DIES_IN for one in transactions):
            while not self.mark.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        super().commit_all(transactions)


def main() -> None:
    """Run until it is dead; `main` never comes back when all is well."""
    root, dsn, table, brokers, topic = sys.argv[1:]
    places = Places(Path(root), dsn, table, brokers, topic)
    postgres = places.postgres(DeadlyPostgres)
    assert isinstance(postgres, DeadlyPostgres)
    postgres.mark = places.root / "files" / "_committed"
    spark = ps.local_session("several-sinks", cores=2)
    build(spark, places, files=places.files(FirstFiles), postgres=postgres).run(available_now=True)


if __name__ == "__main__":
    main()
