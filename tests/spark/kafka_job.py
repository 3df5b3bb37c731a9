"""A job from Kafka to Kafka in a process of its own: its session needs Spark's connector, and it is killed with -9.

What to do it reads from standard input, an order a line, and answers each with a line of JSON: Spark is started once for all of them.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.sql import SparkSession

import penstock as ps
from penstock.errors import PenstockError

LAST_ATTEMPT = 1


class Order(msgspec.Struct, frozen=True):
    """Between which topics to run the job, and how: see `run`."""

    mode: str
    servers: str
    source: str
    target: str
    folder: str
    positions: dict[str, Any] = {}


class Number(ps.KeyedProcess):
    """Numbers the clicks of a user: 1, 2, 3, ... whatever the batches are. Fails in its first batch, unless `failed` exists."""

    seen = ps.ValueState("long", default=0)

    def __init__(self, failed: Path) -> None:
        self.failed = failed

    def process(self, key, rows, ctx):
        if not self.failed.exists():
            task = TaskContext.get()
            assert task is not None
            if task.attemptNumber() == LAST_ATTEMPT:
                self.failed.touch()
            raise RuntimeError("before the first checkpoint")
        for _ in rows:
            self.seen.value += 1
            yield key, self.seen.value


def main() -> None:
    """Run the job as one order after another says; each run is as one in a new process, but for the JVM."""
    spark = ps.local_session("kafka-job", config=json.loads(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(run(spark, msgspec.json.decode(line, type=Order))), flush=True)


def run(spark: SparkSession, order: Order) -> dict[str, Any]:
    """Run from the latest offsets until killed, with one failure before the first checkpoint, or until the input known now is done (`available_now`, `without lost`); then say what the checkpoint says."""
    mode, folder = order.mode, order.folder
    clicks = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", order.servers)
        .option("subscribe", order.source)
        .option("startingOffsets", "latest" if mode == "until killed" else "earliest")
        .option("maxOffsetsPerTrigger", 40 if mode == "until killed" else 400)
        .option("failOnDataLoss", str(mode != "without lost").lower())
        .load()
        .selectExpr("CAST(key AS STRING) AS user", "CAST(value AS STRING) AS page")
    )
    job = ps.Job(
        "kafka-job",
        storage=f"{folder}/storage",
        checkpoint=ps.Checkpointing(interval="500ms"),
        restart=ps.fixed_delay(attempts=1, delay="1ms") if mode == "until killed" else ps.no_restart(),
    )
    failed = Path(folder, "failed")
    if mode != "until killed":
        failed.touch()
    by_user = job.read(clicks, uid="clicks").key_by("user")
    numbered = by_user.process(Number(failed), schema="user string, n long", uid="n")
    sink = ps.sinks.Kafka(
        order.servers,
        order.target,
        staging=f"{folder}/staging",
        key="user",
        commits_topic=f"{order.target}-commits",
    )
    numbered.write_to(sink, uid="out")
    try:
        handle = job.start(available_now=mode != "until killed", positions=order.positions)
        handle.wait()
    except PenstockError as error:
        return {"error": traceback.format_exception_only(error)[0].strip()}
    last, level = handle.checkpoints()[-1], job.guarantee().level
    return {"positions": last.barrier.positions["clicks"], "guarantee": level and level.value}


if __name__ == "__main__":
    main()
