"""The jobs that the chaos tests run. User code in them is not deterministic: what one attempt emits no other attempt can emit.

`Links` remembers in its state the random name of the last row it emitted for a key, and puts it into the next one. So the
rows of a key form one chain if, and only if, every row was delivered once and by the very attempt whose state was kept: a
batch that is lost, doubled, or delivered by one attempt and remembered by another breaks the chain.
"""

from __future__ import annotations

import secrets
import time

from known_truth import JOB, POISON, Site
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from timed_job import build_timed_job

import penstock as ps
from penstock.storage import Storage

ROWS_PER_BATCH = 20_000
SIDE_BY_SIDE = "side-by-side"
SHUFFLED = "shuffled"
TIMED = "timed"
NAMES_KEPT = 3


class Links(ps.KeyedProcess):
    """Counts the rows of a key and emits the increment in pieces of random size, each linked to the one before.

    The count is the sum of a map, a count for each partition; the name of the one before is the last of a list, which is kept short. The name of each link is in a side output too, so that the two must be of the same attempt.
    Raises on one kind of row, when it has emitted everything and changed its state: nothing of that may stay.
    """

    by_partition = ps.MapState("long", "long")
    names = ps.ListState("string")
    echoes = ps.SideOutput("user long, name string")

    def process(self, key, rows, ctx):
        left = [f"{row.partition}:{row.offset}" for row in rows]
        while left:
            piece = 1 + secrets.randbelow(len(left))
            for row in left[:piece]:
                partition = int(row.split(":")[0])
                self.by_partition[partition] = self.by_partition.get(partition, 0) + 1
            before, name = self.names[-1] if self.names else "", _new_name()
            self.names.append(name)
            if len(self.names) > NAMES_KEPT:
                self.names.pop(0)
            ctx.emit("echoes", (key, name))
            yield key, piece, sum(self.by_partition.values()), before, name, left[:piece]
            left = left[piece:]
        if POISON in rows.column("app"):
            raise ValueError("one of the rows is poison")


class Relay(ps.KeyedProcess):
    """Passes on the rows of another operator, with a chain of its own."""

    last = ps.ValueState("string", default="")

    def process(self, key, rows, ctx):
        for row in rows:
            before, self.last.value = self.last.value, _new_name()
            yield key, before, self.last.value, row.user, row.piece, row.total, row.before, row.name, row.rows


def _new_name() -> str:
    return f"{time.time_ns():x}-{secrets.token_hex(8)}"


LINK = "user long, piece long, total long, before string, name string, rows array<string>"
RELAYED = f"bucket long, relay_before string, relay_name string, {LINK}"


def build_job(
    site: Site,
    spark: SparkSession,
    shape: str = SIDE_BY_SIDE,
    *,
    storage: Storage | None = None,
    interval: str = "200ms",
    timeout: str = "5min",
    rows_per_batch: int = ROWS_PER_BATCH,
    busy_timeout: str = "10s",
) -> ps.Job:
    """Count views by app into SQLite; beside it, or instead of it, chains of increments by user into Parquet.

    Side by side, rows that cannot be taken are dead letters, and the side output of the links is written, in Parquet too.
    """
    if shape == TIMED:
        return build_timed_job(site, spark, interval=interval, rows_per_batch=rows_per_batch)
    job = ps.Job(
        JOB,
        storage=storage or site.storage,
        local_dir=site.local_dir,
        checkpoint=ps.Checkpointing(interval=interval, timeout=timeout, retained=2),
        restart=ps.exponential_delay(initial="100ms", maximum="2s"),
    )
    clicks = job.read(site.log.read(spark, rows_per_batch=rows_per_batch), uid="clicks")
    links = clicks.key_by("user").process(Links(), schema=LINK, uid="links")
    if shape == SHUFFLED:
        relayed = links.transform(_shuffled).key_by("bucket").process(Relay(), schema=RELAYED, uid="relay")
        relayed.write_to(site.links_sink(), uid="links-out")
        return job
    links.write_to(site.links_sink(), uid="links-out")
    links.side("echoes").write_to(site.echoes_sink(), uid="echoes-out")
    views = clicks.key_by("app").aggregate(pv=F.count("*"), users=F.sum("user"), uid="views")
    written = views.write_to(site.views_sink(busy_timeout), uid="views-out")
    letters = links.bad_records().union(views.bad_records()).union(written.bad_records())
    letters.write_to(site.letters_sink(), uid="letters-out")
    return job


def _shuffled(links: DataFrame) -> DataFrame:
    shuffled = links.repartition(3)
    return shuffled.mapInArrow(_dawdle, shuffled.schema).withColumn("bucket", F.col("user") % 7)


def _dawdle(batches):
    """Take time, so that a kill finds the operator before done and its results not yet used up."""
    for batch in batches:
        time.sleep(0.4)
        yield batch
