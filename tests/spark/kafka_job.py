"""A job from Kafka to Kafka in a process of its own: its session needs Spark's connector, and it is killed with -9."""

from __future__ import annotations

import json
import sys

import penstock as ps


class Number(ps.KeyedProcess):
    """Numbers the clicks of a user: 1, 2, 3, ... whatever the batches are."""

    seen = ps.ValueState("long", default=0)

    def process(self, key, rows, ctx):
        for _ in rows:
            self.seen.value += 1
            yield key, self.seen.value


def main() -> None:
    """Run until killed, or until the input known now is done (`available_now`, `without lost`); then print what the checkpoint says."""
    servers, source, target, folder, connector, mode = sys.argv[1:]
    spark = ps.local_session("kafka-job", config=json.loads(connector))
    clicks = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .option("failOnDataLoss", str(mode != "without lost").lower())
        .load()
        .selectExpr("CAST(key AS STRING) AS user", "CAST(value AS STRING) AS page")
    )
    job = ps.Job(
        "kafka-job",
        storage=f"{folder}/storage",
        checkpoint=ps.Checkpointing(interval="500ms"),
        restart=ps.no_restart(),
    )
    numbered = (
        job.read(clicks, uid="clicks").key_by("user").process(Number(), schema="user string, n long", uid="n")
    )
    sink = ps.sinks.Kafka(
        servers, target, staging=f"{folder}/staging", key="user", commits_topic=f"{target}-commits"
    )
    numbered.write_to(sink, uid="out")
    guarantee = job.guarantee()
    handle = job.start(available_now=mode != "until killed")
    handle.wait()
    last = handle.checkpoints()[-1]
    print(json.dumps({"positions": last.barrier.positions["clicks"], "guarantee": guarantee.level.value}))


if __name__ == "__main__":
    main()
