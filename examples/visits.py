"""Own Python code with state: the visits of each user, exactly once, into Parquet files.

A page view more than 30 minutes after the one before begins a new visit. Run it again: every user comes back a day later.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as ps
from penstock.types import Context, Rows

LONGEST_PAUSE = timedelta(minutes=30)


class Visits(ps.KeyedProcess):
    """Number the visits of a user, and yield each when it begins."""

    visits = ps.ValueState("long", default=0)
    last_seen = ps.ValueState("timestamp")

    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[str, int, datetime]]:  # noqa: ARG002
        """Look at the views of one user in one batch, the earliest first (see `order_by`)."""
        for view in rows:
            last_seen = self.last_seen.value
            if last_seen is None or view.at - last_seen > LONGEST_PAUSE:
                self.visits.value += 1
                yield key, self.visits.value, view.at
            self.last_seen.value = view.at


def append_a_day(log: ps.sources.PartitionedLog) -> None:
    """Ada comes in the morning and in the evening, Bob once."""
    day = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=log.end_offsets()[1])
    ada = [day + timedelta(hours=9), day + timedelta(hours=9, minutes=20), day + timedelta(hours=19)]
    log.append(0, [{"user": "ada", "at": at} for at in ada])
    log.append(1, [{"user": "bob", "at": day + timedelta(hours=12)}])


def job(spark: SparkSession) -> ps.Job:
    """A day more of views, and the job that counts them; `penstock run examples/visits.py` finds it by this name."""
    log = ps.sources.PartitionedLog("visits/log", "user string, at timestamp", partitions=2)
    append_a_day(log)

    made = ps.Job("visits", storage="visits/storage", parallelism=2)
    views = made.read(log.read(spark), uid="views")
    visits = views.key_by("user").process(
        Visits(), schema="user string, visit long, began timestamp", uid="visits", order_by="at"
    )
    visits.write_to(ps.sinks.Files("visits/out", format="parquet"), uid="visits-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("visits")).run(available_now=True)
    for row in sorted(pq.read_table("visits/out").to_pylist(), key=lambda row: row["began"]):
        print(f"{row['user']}: visit {row['visit']} began {row['began']:%Y-%m-%d %H:%M}")
