"""A division by zero in a Python function of Spark's, behind an operator: the sink only sees its rows break off."""

from pyspark.sql import functions as F

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": "shop", "user": 1}])


@F.udf("double")
def share(views):
    return 1 / (views - views)


job = ps.Job("share", storage="store")
clicks = job.read(log.read(spark), uid="clicks")
views = clicks.key_by("app").aggregate(pv=F.count("*"), uid="views")
shares = views.transform(lambda frame: frame.withColumn("share", share("pv")))
shares.write_to(ps.sinks.SQLite("out.db", table="share", mode="upsert", key=["app"]), uid="out")
job.run(available_now=True)
