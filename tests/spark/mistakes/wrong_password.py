"""The server knows another password."""

import os

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)

job = ps.Job("visits", storage="store")
clicks = job.read(log.read(spark), uid="clicks")
views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
views.write_to(ps.sinks.Postgres(os.environ["WRONG_DSN"], table="views"), uid="out")
job.run(available_now=True)
