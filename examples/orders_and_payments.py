"""Two streams: orders with their payments, and orders that nobody paid within ten minutes. Run it again: two hours later, the same again.

Own code over both streams adds up what each customer owes. When the input is done, `drain=True` lets time come to its end, so that the last
orders are known to be unpaid.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

import penstock as ps

BEGIN = datetime(2024, 5, 1, 12, tzinfo=UTC)


class Owed(ps.KeyedCoProcess):
    """What a customer owes: orders add to it, payments take away."""

    cents = ps.ValueState("long", default=0)

    def process_left(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> None:  # noqa: ARG002
        """Called with the orders of a customer."""
        self.cents.value += sum(rows.column("price"))

    def process_right(self, key: str, rows: ps.types.Rows, ctx: ps.types.Context) -> Any:  # noqa: ARG002
        """Called with the payments of a customer, after the orders of the same batch."""
        self.cents.value -= sum(rows.column("paid"))
        yield key, self.cents.value


def append(orders: ps.sources.PartitionedLog, payments: ps.sources.PartitionedLog) -> None:
    """Three orders, of which the first is paid in time and the second too late."""
    begin = BEGIN + timedelta(hours=2) * (len(orders.table()) // 3)
    at = [begin + timedelta(minutes=minutes) for minutes in range(60)]
    orders.append(
        0,
        [
            {"order_id": "A", "customer": "ada", "price": 700, "ordered_at": at[0]},
            {"order_id": "B", "customer": "bob", "price": 300, "ordered_at": at[1]},
            {"order_id": "C", "customer": "ada", "price": 200, "ordered_at": at[2]},
        ],
    )
    payments.append(
        0,
        [
            {"order_id": "A", "payer": "ada", "paid": 700, "paid_at": at[5]},
            {"order_id": "B", "payer": "bob", "paid": 300, "paid_at": at[30]},
        ],
    )


def without_places(rows: DataFrame) -> DataFrame:
    """Both logs have these columns. They are dropped behind `read`, which tells the partitions by them."""
    return rows.drop("partition", "offset")


def job(spark: SparkSession) -> ps.Job:
    """Some orders and payments, and the job over them; `penstock run examples/orders_and_payments.py` finds it by this name."""
    order = "order_id string, customer string, price long, ordered_at timestamp"
    payment = "order_id string, payer string, paid long, paid_at timestamp"
    order_log = ps.sources.PartitionedLog("orders/orders", order, partitions=1)
    payment_log = ps.sources.PartitionedLog("orders/payments", payment, partitions=1)
    append(order_log, payment_log)

    made = ps.Job("orders", storage="orders/storage")
    orders = made.read(order_log.read(spark), uid="orders", event_time="ordered_at").transform(without_places)
    payments = made.read(payment_log.read(spark), uid="payments", event_time="paid_at").transform(
        without_places
    )

    paid = orders.join(payments, on="order_id", within=("0min", "10min"), how="left", uid="paid")
    paid.write_to(ps.sinks.Files("orders/paid", format="parquet"), uid="paid-out")

    both = orders.key_by("customer").connect(payments.key_by("payer"))
    owed = both.process(Owed(), schema="customer string, cents long", uid="owed")
    owed.write_to(
        ps.sinks.SQLite("orders/owed.db", table="owed", mode="upsert", key=["customer"]), uid="owed-out"
    )
    return made


if __name__ == "__main__":
    job(ps.local_session("orders-and-payments")).run(available_now=True, drain=True)
    for row in sorted(
        ds.dataset(Path("orders/paid")).to_table().to_pylist(), key=lambda row: row["ordered_at"]
    ):
        minutes = row["paid_at"] and round((row["paid_at"] - row["ordered_at"]).total_seconds() / 60)
        print(
            f"order {row['order_id']}: {'not paid in time' if minutes is None else f'paid after {minutes} minutes'}"
        )
