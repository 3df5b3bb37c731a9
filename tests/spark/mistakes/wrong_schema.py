"""A text where the schema has a number."""

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": "shop", "user": 1}])


class Last(ps.KeyedProcess):
    def process(self, key, rows, ctx):
        yield key, f"user {rows[-1].user}"


job = ps.Job("last", storage="store")
clicks = job.read(log.read(spark), uid="clicks")
last = clicks.key_by("app").process(Last(), schema="app string, user long", uid="last")
last.write_to(ps.sinks.SQLite("out.db", table="last", mode="upsert", key=["app"]), uid="out")
job.run(available_now=True)
