"""The best products of every shop: sums per product, and the first two of them. Run it again: the sums go on.

The table always has the newest result. It is written by shop and rank: what is second now takes the place of what was second before.
"""

import sqlite3

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

SALES = [
    {"shop": "north", "product": "tea", "amount": 12},
    {"shop": "north", "product": "milk", "amount": 7},
    {"shop": "south", "product": "tea", "amount": 3},
    {"shop": "north", "product": "rice", "amount": 9},
    {"shop": "north", "product": "milk", "amount": 4},
    {"shop": "south", "product": "tea", "amount": -1},
]


def job(spark: SparkSession) -> ps.Job:
    """Some sales, and the job that ranks them; `penstock run examples/top_products.py` finds it by this name."""
    log = ps.sources.PartitionedLog(
        "top-products/log", "shop string, product string, amount long", partitions=1
    )
    log.append(0, SALES)

    made = ps.Job("top-products", storage="top-products/storage", parallelism=2)
    sales = made.read(log.read(spark), uid="sales")
    sold = sales.key_by("shop", "product").aggregate(sold=F.sum("amount"), uid="sold")
    best = sold.key_by("shop").top(2, by="sold desc", of="product", uid="best")
    table = ps.sinks.SQLite("top-products/out.db", table="best", mode="upsert", key=["shop", "rank"])
    best.write_to(table, uid="best-out")
    return made


if __name__ == "__main__":
    job(ps.local_session("top-products")).run(available_now=True)
    with sqlite3.connect("top-products/out.db") as database:
        for row in database.execute("select shop, rank, product, sold from best order by shop, rank"):
            print("{}, {}: {} ({})".format(*row))
