"""Own Python code in columns: what every customer has spent, and who is new, with polars. Run it again: the sums go on.

It needs the extra `polars`: in a checkout, pip install '.[polars]'.
"""

import sys
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import penstock as ps

try:
    import polars as pl
except ImportError:
    sys.exit(
        "top_spenders.py needs the package polars: in a checkout of Penstock, run pip install '.[polars]'"
    )


class Spending(ps.BatchProcess):
    """Add up the orders of each customer, all customers of a batch at once."""

    orders = ps.ValueState("long", default=0)
    spent = ps.ValueState("double", default=0.0)

    def process_batch(
        self, keys: ps.types.BatchKeys, batch: ps.types.BatchRows, state: ps.types.BatchState
    ) -> Any:
        """`keys` has a row per customer, `batch` a row per order; state has one value per customer, in the order of `keys`."""
        orders = batch.to_polars().with_columns(key=pl.Series(batch.key_index))
        sums = orders.group_by("key").agg(pl.len().alias("orders"), pl.col("amount").sum()).sort("key")
        before = pl.DataFrame({"orders": pl.Series(state["orders"]), "spent": pl.Series(state["spent"])})
        state["orders"] = before["orders"] + sums["orders"]
        state["spent"] = before["spent"] + sums["amount"]
        return keys.to_polars().with_columns(
            spent=before["spent"] + sums["amount"], new=before["orders"] == 0
        )


def append_orders(log: ps.sources.PartitionedLog) -> None:
    """Ada orders twice, Bob once."""
    log.append(0, [{"customer": "ada", "amount": 20.0}, {"customer": "ada", "amount": 5.5}])
    log.append(1, [{"customer": "bob", "amount": 12.0}])


def job(spark: SparkSession) -> ps.Job:
    """Some orders, and the job that adds them up; `penstock run examples/top_spenders.py` finds it by this name."""
    log = ps.sources.PartitionedLog("spending/log", "customer string, amount double", partitions=2)
    append_orders(log)

    made = ps.Job("spending", storage="spending/storage", parallelism=2)
    orders = made.read(log.read(spark), uid="orders")
    spending = orders.key_by("customer").process(
        Spending(), schema="customer string, spent double, new boolean", uid="spending"
    )
    spending.write_to(ps.sinks.Files("spending/out", format="parquet"), uid="spending-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("top-spenders")).run(available_now=True)
    for row in sorted(pq.read_table("spending/out").to_pylist(), key=lambda row: row["spent"]):
        print(f"{row['customer']}: {row['spent']:.2f}{' (new)' if row['new'] else ''}")
