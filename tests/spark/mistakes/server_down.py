"""Nobody listens at the address of the table."""

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": "shop", "user": 1}])

job = ps.Job("visits", storage="store", restart=ps.fixed_delay(attempts=1))
clicks = job.read(log.read(spark), uid="clicks")
views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
views.write_to(ps.sinks.Postgres("postgresql://me@127.0.0.1:1/shop", table="views"), uid="out")
job.run(available_now=True)
