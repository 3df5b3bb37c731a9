"""UV and PV, the classic pair, under a failure: who counts at least once has the users right, and too many page views.

The job counts twice. `aggregate` counts exactly once. A function of ours writes into tables of its own, at least once: when the job goes
back to its checkpoint, the function sees the same views again. Users are a set, which a repetition does not change; page views are a
counter, which it does. In the first run the machine "dies" in the second batch.
"""

import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import penstock as ps

VIEWS, USERS, A_BATCH = 100, 7, 50


def counting_by_hand(folder: Path) -> Any:
    """A function for `Foreach` that counts into tables of its own."""
    died = folder / "died"

    def count(batch: pa.RecordBatch, context: Any) -> None:
        """Called in the task with the views of a batch, and again with the same views after a failure."""
        users = [[user] for user in batch.column("user").to_pylist()]
        with sqlite3.connect(folder / "by-hand.db") as database:
            database.execute("CREATE TABLE IF NOT EXISTS views (n)")
            database.execute("CREATE TABLE IF NOT EXISTS users (name PRIMARY KEY)")
            database.execute("INSERT INTO views VALUES (?)", [batch.num_rows])
            database.executemany("INSERT OR IGNORE INTO users VALUES (?)", users)
        if context.checkpoint == 1 and not died.exists():
            died.touch()
            raise SystemError("the machine dies here: the second batch is written, and in no checkpoint yet")

    return count


def job(spark: SparkSession) -> ps.Job:
    """A hundred views more, and the job that counts them; `penstock run examples/users_and_views.py` finds it by this name."""
    log = ps.sources.PartitionedLog("users-and-views/log", "page string, user string", partitions=1)
    log.append(0, [{"page": "home", "user": f"user-{number % USERS}"} for number in range(VIEWS)])

    made = ps.Job("users-and-views", storage="users-and-views/storage", restart=ps.fixed_delay(delay="0s"))
    views = made.read(log.read(spark, rows_per_batch=A_BATCH), uid="views")
    counts = views.key_by("page").aggregate(pv=F.count("*"), uv=F.count_distinct("user"), uid="counts")
    table = ps.sinks.SQLite("users-and-views/counts.db", table="counts", mode="upsert", key=["page"])
    counts.write_to(table, uid="counts-out")
    by_hand = counting_by_hand(Path("users-and-views").resolve())
    views.write_to(ps.sinks.Foreach(by_hand), uid="by-hand")
    return made


if __name__ == "__main__":
    job(ps.local_session("users-and-views")).run(available_now=True)
    by_hand = sqlite3.connect("users-and-views/by-hand.db")
    (users,), (views,) = (
        by_hand.execute(query).fetchone()
        for query in ("SELECT count(*) FROM users", "SELECT sum(n) FROM views")
    )
    print(f"at least once: {users} users, {views} page views")
    exact = sqlite3.connect("users-and-views/counts.db").execute("SELECT uv, pv FROM counts")
    print("exactly once: {} users, {} page views".format(*exact.fetchone()))
