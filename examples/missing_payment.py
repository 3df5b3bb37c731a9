"""Timers: an alert for every order that is not paid within 30 minutes, by the times that stand in the events.

Run it again: another day of events comes. The last order of a day is paid the next morning, which is too late.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as ps
from penstock.types import Context, Rows, Timer

PATIENCE = timedelta(minutes=30)


class MissingPayments(ps.KeyedProcess):
    """Set a timer when an order comes, delete it when its payment comes: when it fires, the payment did not come."""

    ordered = ps.ValueState("timestamp")

    def process(self, key: str, rows: Rows, ctx: Context) -> None:  # noqa: ARG002
        """Look at the events of one order in one batch, the earliest first (see `order_by`)."""
        for event in rows:
            if event.what == "ordered":
                self.ordered.value = event.at
                ctx.set_timer(event.at + PATIENCE)
            elif self.ordered.value is not None and event.at <= self.ordered.value + PATIENCE:
                ctx.delete_timer(self.ordered.value + PATIENCE)
                self.ordered.clear()

    def on_timer(self, key: str, timer: Timer, ctx: Context) -> Iterator[tuple[str, datetime]]:  # noqa: ARG002
        """Time has come to the moment for which the timer was set, and nobody has deleted it."""
        yield key, timer.at
        self.ordered.clear()


def append_a_day(log: ps.sources.PartitionedLog) -> None:
    """The first order of a day is paid in time, the second never. The last waits for its payment when the day ends."""
    day = log.end_offsets()[0] // 5
    events = [
        (f"{day - 1}-3", "paid", 7, 0),
        (f"{day}-1", "ordered", 9, 0),
        (f"{day}-2", "ordered", 9, 5),
        (f"{day}-1", "paid", 9, 20),
        (f"{day}-3", "ordered", 18, 0),
    ]
    midnight = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day)
    log.append(
        0,
        [
            {"order": order, "what": what, "at": midnight + timedelta(hours=hour, minutes=minute)}
            for order, what, hour, minute in events
        ],
    )


def job(spark: SparkSession) -> ps.Job:
    """A day more of events, and the job that looks for missing payments: `penstock run` finds it by this name."""
    log = ps.sources.PartitionedLog(
        "missing-payment/log", "order string, what string, at timestamp", partitions=1
    )
    append_a_day(log)

    made = ps.Job("missing-payment", storage="missing-payment/storage", parallelism=2)
    events = made.read(log.read(spark), uid="events", event_time="at", out_of_order="1min")
    alerts = events.key_by("order").process(
        MissingPayments(), schema="order string, missing_since timestamp", uid="alerts", order_by="at"
    )
    alerts.write_to(ps.sinks.Files("missing-payment/out", format="parquet"), uid="alerts-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("missing-payment")).run(available_now=True)
    for row in sorted(pq.read_table("missing-payment/out").to_pylist(), key=lambda row: row["missing_since"]):
        print(f"order {row['order']}: no payment until {row['missing_since']:%Y-%m-%d %H:%M}")
