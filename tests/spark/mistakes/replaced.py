"""Another start has taken the job over."""

import time

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": "shop", "user": 1}])


def views_job():
    job = ps.Job("views", storage="store")
    clicks = job.read(log.read(spark), uid="clicks")
    views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
    views.write_to(ps.sinks.SQLite("out.db", table="views", mode="upsert", key=["app"]), uid="out")
    return job


def wait_for_a_batch(handle):
    while handle.progress.batches == 0:
        time.sleep(0.1)


first = views_job().start()
wait_for_a_batch(first)
second = views_job().start(takeover=True)
try:
    log.append(0, [{"app": "shop", "user": 2}])
    wait_for_a_batch(second)
    first.wait()
finally:
    second.cancel()
