"""Rows into Kafka: `sinks.Kafka`, exactly once, beside Spark's own Kafka sink, at least once; on one broker, in turns.

Both streams wait for files. The clock runs from the moment a batch is there until a reader with read_committed can read all of its rows:
a third party sees that in the offsets of the topic, so for both sides it is the same moment.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
import servers
from bench import Bench
from data import Clicks
from measure import Found
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import penstock as ps

if TYPE_CHECKING:
    from services.kafka_broker import KafkaBroker

KEYS = 50_000
PARTITIONS = 4
ROUNDS = 3
BATCHES = 6
WARM_UP = 3
LOOK_EVERY_S = 0.01
PATIENCE_S = 300.0


class Arrivals(Clicks):
    """Batches that are made in one folder and moved, whole, into another, from which they are read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._made, self.folder = self.folder, root / "arrived"
        self.folder.mkdir()

    def _write(self, rows: pa.Table) -> None:
        arrived, self.folder = self.folder, self._made
        super()._write(rows)
        self.folder = arrived

    def arrive(self) -> None:
        """The next batch is there."""
        for path in sorted(self._made.iterdir()):
            path.rename(self.folder / path.name)


def views(clicks: Clicks, spark: SparkSession) -> DataFrame:
    """Rows whose JSON has about 100 bytes."""
    return clicks.read(spark).select(
        F.col("user").cast("string").alias("user"),
        "amount",
        F.concat(F.lit("/products/"), F.col("amount"), F.lit("/reviews")).alias("page"),
        F.lit("NL").alias("country"),
    )


class Topic:
    """A topic, and what a reader with read_committed could read of it."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.name = broker.new_topic(PARTITIONS)
        self._admin = broker.admin()

    def readable(self) -> int:
        """The offsets up to which everything is decided, over all partitions."""
        from confluent_kafka import IsolationLevel, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        latest = {TopicPartition(self.name, number): OffsetSpec.latest() for number in range(PARTITIONS)}
        asked = self._admin.list_offsets(latest, isolation_level=IsolationLevel.READ_COMMITTED)
        return sum(answer.result(30).offset for answer in asked.values())

    def wait_for(self, offset: int) -> None:
        """Return when so many are readable."""
        deadline = time.monotonic() + PATIENCE_S
        while self.readable() < offset:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} has {self.readable()} messages, not {offset}")
            time.sleep(LOOK_EVERY_S)


class Stream(Protocol):
    """One of the two sides; it goes on where it was when it is started again."""

    clicks: Arrivals
    topic: Topic

    def running(self, spark: SparkSession) -> AbstractContextManager[None]:
        """Wait for files, until the end of the block."""


@dataclass
class SparkStream:
    """Spark's own sink: JSON made in the JVM, every task with a producer of its own, no transactions."""

    clicks: Arrivals
    topic: Topic
    root: Path
    brokers: str

    @contextmanager
    def running(self, spark: SparkSession) -> Iterator[None]:
        message = F.to_json(F.struct("user", "amount", "page", "country")).alias("value")
        writer = views(self.clicks, spark).select(F.col("user").alias("key"), message).writeStream
        options = {"kafka.bootstrap.servers": self.brokers, "topic": self.topic.name}
        query = (
            writer.format("kafka")
            .options(**options)
            .option("checkpointLocation", str(self.root / "spark"))
            .start()
        )
        try:
            yield
            query.processAllAvailable()
        finally:
            query.stop()


@dataclass
class PenstockStream:
    """A job that only writes, with a checkpoint every batch."""

    clicks: Arrivals
    topic: Topic
    root: Path
    brokers: str

    @contextmanager
    def running(self, spark: SparkSession) -> Iterator[None]:
        job = ps.Job(
            "bench",
            storage=self.root / "store",
            local_dir=self.root / "local",
            checkpoint=ps.Checkpointing(interval="1ms"),
        )
        sink = ps.sinks.Kafka(self.brokers, self.topic.name, staging=self.root / "staging", key="user")
        job.read(views(self.clicks, spark), uid="views").write_to(sink, uid="out")
        handle = job.start()
        try:
            yield
        finally:
            handle.stop()


def measure(bench: Bench) -> Found:
    """Median seconds from the files to readable messages."""
    rows, turns = bench.size((200_000, ROUNDS), (5_000, 1))
    seconds: dict[str, list[float]] = {"spark_at_least_once": [], "penstock_exactly_once": []}
    connector = servers.kafka_connector()
    with bench.scratch() as root, servers.kafka(root / "broker") as broker, bench.jars(connector):
        streams: dict[str, Stream] = {
            name: make(Arrivals(root / name), Topic(broker), root, broker.address)
            for name, make in zip(seconds, (SparkStream, PenstockStream), strict=True)
        }
        for turn in range(turns):
            for name, stream in streams.items():
                with stream.running(bench.spark):
                    times = [_batch_s(stream, rows) for _ in range(WARM_UP + BATCHES)]
                seconds[name] += times[WARM_UP:]
                shown = ", ".join(f"{one:.2f}" for one in times)
                bench.console.print(f"  {name}, turn {turn + 1} of {turns}: {shown} s")
        topics = [stream.topic.name for stream in streams.values()]
        _compare(bench.spark, broker.address, rows * turns * (WARM_UP + BATCHES), topics)
    theirs, ours = (statistics.median(times) for times in seconds.values())
    return {
        "spark_at_least_once_s": theirs,
        "penstock_exactly_once_s": ours,
        "ratio": theirs / ours,
        "penstock_rows_per_second": rows / ours,
    }


def _batch_s(stream: Stream, rows: int) -> float:
    """Markers of transactions take offsets, too, but of the last partition's rows none is readable before its marker is there."""
    before = stream.topic.readable()
    stream.clicks.uniform(rows, KEYS)
    started = time.monotonic()
    stream.clicks.arrive()
    stream.topic.wait_for(before + rows)
    return time.monotonic() - started


def _compare(spark: SparkSession, brokers: str, rows: int, topics: list[str]) -> None:
    """The same messages in both topics, each as often, or the comparison is void."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", brokers)
    reader = reader.option("kafka.isolation.level", "read_committed")
    facts = [
        tuple(
            reader.option("subscribe", topic)
            .load()
            .agg(F.count("*"), F.bit_xor(F.xxhash64("key", "value")), F.sum(F.crc32("value")))
            .first()
            or ()
        )
        for topic in topics
    ]
    if facts[0] != facts[1] or facts[0][0] != rows:
        raise RuntimeError(f"{rows} messages were written, and the topics {topics} differ: {facts}")
