"""There is no room for state."""

import os

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": f"app {number}", "user": number} for number in range(20_000)])

often = ps.Checkpointing(interval="10ms")
job = ps.Job(
    "visits",
    storage=os.environ["STORAGE"],
    checkpoint=often,
    restart=ps.no_restart(),
    parallelism=1,
)
clicks = job.read(log.read(spark), uid="clicks")
views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
views.write_to(ps.sinks.SQLite("out.db", table="views", mode="upsert", key=["app"]), uid="out")
job.run(available_now=True)
