"""The job runs already."""

import time

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": "shop", "user": 1}])


def views_job():
    job = ps.Job("visits", storage="store")
    clicks = job.read(log.read(spark), uid="clicks")
    views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
    views.write_to(ps.sinks.SQLite("out.db", table="views", mode="upsert", key=["app"]), uid="out")
    return job


first = views_job().start()
while first.progress.batches == 0:
    time.sleep(0.1)
try:
    views_job().run(available_now=True)
finally:
    first.cancel()
