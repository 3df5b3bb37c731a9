"""`rows.usr` where there is `user`."""

import penstock as ps

spark = ps.local_session("mistakes")
log = ps.sources.PartitionedLog("log", "app string, user long", partitions=2)
log.append(0, [{"app": "shop", "user": 1}, {"app": "shop", "user": 2}])


class Visits(ps.KeyedProcess):
    visits = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        for row in rows:
            if row.usr > 0:
                self.visits.value += 1
        yield key, self.visits.value


job = ps.Job("visits", storage="store")
clicks = job.read(log.read(spark), uid="clicks")
visits = clicks.key_by("app").process(Visits(), schema="app string, visits long", uid="visits")
visits.write_to(ps.sinks.SQLite("out.db", table="visits", mode="upsert", key=["app"]), uid="out")
job.run(available_now=True)
