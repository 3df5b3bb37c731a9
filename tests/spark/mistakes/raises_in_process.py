"""A division by zero, which may have to do with the data: it is tried again once."""

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": "shop", "user": 0}])


class Share(ps.KeyedProcess):
    def process(self, key, rows, ctx):
        yield key, sum(100 // row.user for row in rows)


job = ps.Job("share", storage="store")
clicks = job.read(log.read(spark), uid="clicks")
share = clicks.key_by("app").process(Share(), schema="app string, share long", uid="share")
share.write_to(ps.sinks.SQLite("out.db", table="share", mode="upsert", key=["app"]), uid="out")
job.run(available_now=True)
