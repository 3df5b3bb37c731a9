"""Rows that come twice: a sender that repeats what was not acknowledged. Each order passes once within an hour. Run it again: none passes.

The first copy that comes passes, whichever was sent first. A copy that comes more than an hour later, by its event time, is not a copy.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

import penstock as ps

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
SENT = [("A", 0), ("B", 1), ("A", 2), ("C", 3), ("B", 1), ("A", 90)]
"""Which order, and how many minutes after noon."""


def job(spark: SparkSession) -> ps.Job:
    """Some orders, and the job that lets each pass once; `penstock run examples/deduplication.py` finds it by this name."""
    log = ps.sources.PartitionedLog("deduplication/log", "order_id string, sent_at timestamp", partitions=1)
    log.append(
        0, [{"order_id": order, "sent_at": NOON + timedelta(minutes=minutes)} for order, minutes in SENT]
    )

    made = ps.Job("deduplication", storage="deduplication/storage")
    orders = made.read(log.read(spark), uid="orders", event_time="sent_at", out_of_order="2h")
    once = orders.dedupe(on="order_id", within="1h", uid="once")
    once.write_to(ps.sinks.Files("deduplication/once", format="parquet"), uid="once-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("deduplication")).run(available_now=True)
    for row in sorted(
        ds.dataset(Path("deduplication/once")).to_table().to_pylist(), key=lambda row: row["sent_at"]
    ):
        print(f"{row['sent_at']:%H:%M} order {row['order_id']}")
