"""Count page views by app, exactly once, into SQLite. Run it again: the counts go on from where they were."""

import sqlite3

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("page-views")
log = ps.sources.PartitionedLog("page-views/log", "app string, page string", partitions=2)
log.append(0, [{"app": "shop", "page": "/"}, {"app": "blog", "page": "/about"}])
log.append(1, [{"app": "shop", "page": "/cart"}])

job = ps.Job("page-views", storage="page-views/storage", checkpoint=ps.Checkpointing(interval="10s"))
clicks = job.read(log.read(spark), uid="clicks")  # any streaming DataFrame
views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
table = ps.sinks.SQLite("page-views/views.db", table="views", mode="upsert", key=["app"])
views.write_to(table, uid="views-out")

if __name__ == "__main__":
    print(job.guarantee())
    job.run(available_now=True)  # job.run() goes on until Ctrl-C
    print(sqlite3.connect("page-views/views.db").execute("SELECT app, pv FROM views ORDER BY app").fetchall())
