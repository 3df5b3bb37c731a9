"""Count page views by app, exactly once, into SQLite. Kill it whenever you like: the counts stay right."""

import sqlite3
import sys

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("page-views")
source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1000).load()
clicks = source.selectExpr("if(value % 2 = 0, 'blog', 'shop') AS app", "value div 2 + 1 AS number")

job = ps.Job("page-views", storage="page-views/storage", checkpoint=ps.Checkpointing(interval="2s"))
views = job.read(clicks, uid="clicks").key_by("app")  # clicks may be any streaming DataFrame
counts = views.aggregate(counted=F.count("*"), last=F.max("number"), uid="counts")
table = ps.sinks.SQLite("page-views/views.db", table="views", mode="upsert", key=["app"])
counts.write_to(table, uid="views-out")

if __name__ == "__main__":
    job.run(available_now="--once" in sys.argv)  # without --once until Ctrl-C
    rows = sqlite3.connect("page-views/views.db").execute("SELECT app, counted, last FROM views ORDER BY app")
    for app, counted, last in rows:
        print(f"{app}: {counted} counted, the last was number {last}")
