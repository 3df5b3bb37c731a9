"""Sessions: how long each user stays, and what comes too late for it, exactly once, into Parquet files.

A view within 30 minutes of another belongs to the same session. A session is over when event time has passed its end: that of the newest
view, less the minute by which views may come out of order. Run it again: every user comes back a day later.
"""

from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)
VIEWS = [
    ("ada", "09:00", "home"),
    ("ada", "09:20", "tea"),
    ("bob", "09:10", "home"),
    ("ada", "09:35", "cart"),
    ("ada", "19:00", "home"),
    ("bob", "08:00", "tea"),
]
"""In the order in which they come in: the last one comes when its session would have been over for long."""


def append_a_day(log: ps.sources.PartitionedLog) -> None:
    """The views of a day more, in the order in which they come in."""
    day = FIRST_DAY + timedelta(days=log.end_offsets()[0] // len(VIEWS))
    for user, clock, page in VIEWS:
        hours, minutes = map(int, clock.split(":"))
        log.append(0, [{"user": user, "at": day + timedelta(hours=hours, minutes=minutes), "page": page}])


def job(spark: SparkSession) -> ps.Job:
    """A day more of views, and the job that makes sessions of them; `penstock run examples/sessions.py` finds it by this name."""
    log = ps.sources.PartitionedLog("sessions/log", "user string, at timestamp, page string", partitions=1)
    append_a_day(log)

    often = ps.Checkpointing(interval="1s")
    made = ps.Job("sessions", storage="sessions/storage", parallelism=2, checkpoint=often)
    views = made.read(
        log.read(spark, rows_per_batch=2), uid="views", event_time="at", out_of_order="1min", max_ahead=None
    )
    sessions = (
        views.key_by("user")
        .window(ps.windows.session("30min"))
        .aggregate(views=F.count("*"), last=F.max("at"), uid="sessions")
    )
    sessions.write_to(ps.sinks.Files("sessions/out", format="parquet"), uid="sessions-out")
    sessions.late().write_to(ps.sinks.Files("sessions/late", format="parquet"), uid="late-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("sessions")).run(available_now=True, drain=True)
    for row in sorted(pq.read_table("sessions/out").to_pylist(), key=lambda row: row["window_start"]):
        print(f"{row['user']} from {row['window_start']:%H:%M} to {row['last']:%H:%M}, views: {row['views']}")
    for row in pq.read_table("sessions/late").to_pylist():
        print(f"too late: {row['user']} at {row['at']:%H:%M}")
