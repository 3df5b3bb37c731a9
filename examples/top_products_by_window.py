"""The best products of every hour: sales per product and hour, and the first two of each hour. Run it again: a day more.

An hour is ranked when it is over, with all that was sold in it. A sale that comes within ten minutes after its hour changes its ranks:
the table is written by hour and rank, and always has the newest result.
"""

import sqlite3
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
SALES = [
    ("09:10", "tea", 3),
    ("09:40", "rice", 5),
    ("09:50", "milk", 1),
    ("10:05", "tea", 4),
    ("10:06", "rice", 1),
    ("09:59", "milk", 6),
    ("11:30", "rice", 2),
]
"""In the order in which they come in: the milk of 09:59 comes when its hour is over."""


def job(spark: SparkSession) -> ps.Job:
    """A day more of sales, and the job that ranks them; `penstock run examples/top_products_by_window.py` finds it by this name."""
    log = ps.sources.PartitionedLog(
        "top-by-window/log", "at timestamp, product string, amount long", partitions=1
    )
    day = FIRST_DAY + timedelta(days=log.end_offsets()[0] // len(SALES))
    for clock, product, amount in SALES:
        hours, minutes = map(int, clock.split(":"))
        log.append(
            0, [{"at": day + timedelta(hours=hours, minutes=minutes), "product": product, "amount": amount}]
        )

    often = ps.Checkpointing(interval="1s")
    made = ps.Job("top-by-window", storage="top-by-window/storage", parallelism=2, checkpoint=often)
    sales = made.read(
        log.read(spark, rows_per_batch=1), uid="sales", event_time="at", out_of_order="0s", max_ahead=None
    )
    sold = (
        sales.key_by("product")
        .window(ps.windows.tumbling("1h"), lateness="10min")
        .aggregate(sold=F.sum("amount"), uid="sold")
    )
    best = sold.key_by("window_start").top(2, by="sold desc", of="product", uid="best")
    table = ps.sinks.SQLite("top-by-window/out.db", table="best", mode="upsert", key=["window_start", "rank"])
    best.write_to(table, uid="best-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("top-by-window")).run(available_now=True, drain=True)
    with sqlite3.connect("top-by-window/out.db") as database:
        query = (
            "select substr(window_start, 12, 5), rank, product, sold from best order by window_start, rank"
        )
        for row in database.execute(query):
            print("{}, {}: {} ({})".format(*row))
