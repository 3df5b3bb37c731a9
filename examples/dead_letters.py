"""Rows that cannot be taken do not end the job: sums of payments into SQLite, and the bad rows, with the reason, into JSON files."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import penstock as ps

PAYMENTS = [("ada", "1000"), ("bob", "two"), (None, "500"), ("ada", "250")]


class Sums(ps.KeyedProcess):
    """Add up the payments of an account; cents that are no number raise."""

    total = ps.ValueState("long", default=0)

    def process(self, key: str, rows: Any, ctx: ps.types.Context) -> Iterator[tuple[str, int]]:  # noqa: ARG002
        """Handle the payments of one account in one batch."""
        for payment in rows:
            self.total.value += int(payment.cents)
        yield key, self.total.value


def job(spark: SparkSession) -> ps.Job:
    """Some payments more, and the job that adds them up; `penstock run examples/dead_letters.py` finds it by this name."""
    log = ps.sources.PartitionedLog("payments/log", "account string, cents string", partitions=1)
    log.append(0, [{"account": account, "cents": cents} for account, cents in PAYMENTS])

    made = ps.Job("payments", storage="payments/storage")
    payments = made.read(log.read(spark), uid="payments")
    sums = payments.key_by("account").process(Sums(), schema="account string, total long", uid="sums")
    table = ps.sinks.SQLite("payments/sums.db", table="sums", mode="upsert", key=["account"])
    written = sums.write_to(table, uid="sums-out")

    bad = sums.bad_records().union(written.bad_records())
    bad.write_to(ps.sinks.Files("payments/bad", format="json"), uid="bad-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("payments")).run(available_now=True)
    print(sqlite3.connect("payments/sums.db").execute("SELECT account, total FROM sums").fetchall())
    letters = [json.loads(line) for file in Path("payments/bad").glob("*.json") for line in file.open()]
    for letter in sorted(letters, key=lambda letter: str(letter["row"])):
        print(f"{letter['operator']}: {letter['reason'].partition(' (/')[0]}: {letter['row']}")
