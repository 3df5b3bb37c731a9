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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps
from penstock.errors import PenstockError

LAST_ATTEMPT = 1
WINDOWS = "windows"
"""The mode in which rows are counted in windows, by Kafka's own timestamps."""


class Order(msgspec.Struct, frozen=True):
    """Between which topics to run the job, and how: see `run`."""

    mode: str
    servers: str
    source: str
    target: str
    folder: str
    drain: bool = False
    until: int = 0
    """In windows: run without an end until there are so many results in this run; 0: until the input known now is done."""
    idle_after: str | None = None
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
    """Run as the order says, and then say what the checkpoint says, or the error.

    The clicks of users are numbered from the latest offsets until killed, with one failure before the first checkpoint, or until the input
    known now is done (`available_now`, `without lost`). In `windows` they are counted in windows of a minute.
    """
    live = order.mode == "until killed"
    job = ps.Job(
        "kafka-job",
        storage=f"{order.folder}/storage",
        checkpoint=ps.Checkpointing(interval="500ms"),
        restart=ps.fixed_delay(attempts=1, delay="1ms") if live else ps.no_restart(),
    )
    clicks = read(spark, order)
    results = counted(job, clicks, order) if order.mode == WINDOWS else numbered(job, clicks, order)
    sink = ps.sinks.Kafka(
        order.servers,
        order.target,
        staging=f"{order.folder}/staging",
        key="user",
        commits_topic=f"{order.target}-commits",
    )
    results.write_to(sink, uid="out")
    try:
        handle = job.start(
            available_now=not live and not order.until, drain=order.drain, positions=order.positions
        )
        while order.until and handle.progress.rows_out.get("out", 0) < order.until and not handle.wait(0.1):
            pass
        if order.until:
            handle.stop()
        handle.wait()
    except PenstockError as error:
        return {"error": traceback.format_exception_only(error)[0].strip()}
    last, level = handle.checkpoints()[-1], job.guarantee().level
    return {
        "positions": last.barrier.positions["clicks"],
        "guarantee": level and level.value,
        "time": msgspec.to_builtins(last.barrier.time),
        "late_rows": last.late_rows,
    }


def read(spark: SparkSession, order: Order) -> DataFrame:
    """The clicks, with the columns that Kafka's rows have of their own."""
    rows = {"until killed": 40, WINDOWS: 2}
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", order.servers)
        .option("subscribe", order.source)
        .option("startingOffsets", "latest" if order.mode == "until killed" else "earliest")
        .option("maxOffsetsPerTrigger", rows.get(order.mode, 400))
        .option("failOnDataLoss", str(order.mode != "without lost").lower())
        .load()
        .selectExpr(
            "CAST(key AS STRING) AS user", "CAST(value AS STRING) AS page", "timestamp", "topic", "partition"
        )
    )


def numbered(job: ps.Job, clicks: DataFrame, order: Order) -> ps.types.Stream:
    failed = Path(order.folder, "failed")
    if order.mode != "until killed":
        failed.touch()
    by_user = job.read(clicks, uid="clicks").key_by("user")
    return by_user.process(Number(failed), schema="user string, n long", uid="n")


def counted(job: ps.Job, clicks: DataFrame, order: Order) -> ps.types.Stream:
    rows = job.read(
        clicks, uid="clicks", event_time="timestamp", out_of_order="0s", idle_after=order.idle_after
    )
    windows = rows.key_by("user").window(ps.windows.tumbling("1min"))
    return windows.aggregate(n=F.count("*"), uid="counts").transform(
        lambda counts: counts.withColumn("start_s", F.unix_timestamp("window_start"))
    )


if __name__ == "__main__":
    main()
