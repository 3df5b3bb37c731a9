"""The embedded log as a streaming DataFrame, over real queries with real restarts."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.errors import ConfigError
from penstock.sources import PartitionedLog
from penstock.spark.versions import HAS_READ_LIMITS

pytestmark = pytest.mark.spark
needs_limits = pytest.mark.skipif(
    not HAS_READ_LIMITS, reason="Spark before 4.2 keeps rows_per_batch only in a job (test_engine has those)"
)
SCHEMA = "app string, n long, at timestamp"
WHEN = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"app": f"a{n % 3}", "n": n, "at": WHEN} for n in range(first, first + count)]


@pytest.fixture
def log(tmp_path: Path) -> PartitionedLog:
    log = PartitionedLog(tmp_path / "log", SCHEMA, 2)
    log.append(0, rows(0, 30))
    log.append(1, rows(1000, 10))
    return log


class Query:
    """A query over a log that remembers, for each batch, the rows as (partition, offset, n)."""

    def __init__(self, spark: SparkSession, log: PartitionedLog, rows_per_batch: int | None = None) -> None:
        self.frame = log.read(spark, rows_per_batch)
        self.progress_log = log.path.parent / "progress"
        self.batches: list[list[tuple[int, int, int]]] = []
        self.fail_in_batch: int | None = None

    def collect(self, frame: DataFrame, batch: int) -> None:
        found = [(row.partition, row.offset, row.n) for row in frame.collect()]
        if batch == self.fail_in_batch:
            raise RuntimeError("planned failure")
        self.batches.append(found)

    def start(self, **trigger: Any) -> Any:
        writer = self.frame.writeStream.foreachBatch(self.collect)
        return writer.option("checkpointLocation", str(self.progress_log)).trigger(**trigger).start()

    def run(self) -> list[list[tuple[int, int, int]]]:
        self.batches = []
        query = self.start(availableNow=True)
        query.awaitTermination()
        return self.batches


def expected(log: PartitionedLog) -> list[tuple[int, int, int]]:
    return [(row["partition"], row["offset"], row["n"]) for row in log.table().to_pylist()]


def flat(batches: list[list[tuple[int, int, int]]]) -> list[tuple[int, int, int]]:
    return sorted(row for batch in batches for row in batch)


def test_rows_come_with_their_positions(spark: SparkSession, log: PartitionedLog) -> None:
    """A batch holds each partition's rows in the order of their offsets, with all columns typed."""
    query = Query(spark, log)
    assert (
        query.frame.schema.simpleString()
        == "struct<partition:int,offset:bigint,app:string,n:bigint,at:timestamp>"
    )
    (batch,) = query.run()
    for partition in (0, 1):
        offsets = [row[1] for row in batch if row[0] == partition]
        assert offsets == list(range(log.end_offsets()[partition]))
    assert flat([batch]) == expected(log)


@needs_limits
def test_a_limit_is_kept_and_shared(spark: SparkSession, log: PartitionedLog) -> None:
    """With rows_per_batch an available-now run takes several batches, full and fair, and reads everything once."""
    batches = Query(spark, log, rows_per_batch=12).run()
    assert [len(batch) for batch in batches] == [12, 12, 12, 4]
    assert [sum(row[0] == 1 for row in batch) for batch in batches] == [6, 4, 0, 0]
    assert flat(batches) == expected(log)


@needs_limits
def test_a_restart_goes_on_where_it_stopped(spark: SparkSession, log: PartitionedLog) -> None:
    """Runs over one progress log read what was added in between: nothing is lost, nothing comes twice."""
    seen = Query(spark, log, rows_per_batch=25).run()
    assert Query(spark, log).run() == []
    log.append(1, rows(2000, 5))
    again = Query(spark, log).run()
    assert flat(again) == [(1, 10 + n, 2000 + n) for n in range(5)]
    assert flat(seen + again) == expected(log)


@needs_limits
def test_a_failed_batch_is_read_again_as_it_was(spark: SparkSession, log: PartitionedLog) -> None:
    """After a failure the planned range comes again with the same rows, although more have been appended."""
    query = Query(spark, log, rows_per_batch=15)
    query.fail_in_batch = 1
    with pytest.raises(StreamingQueryException, match="planned failure"):
        query.run()
    first = query.batches
    planned = json.loads((query.progress_log / "offsets" / "1").read_text().splitlines()[-1])
    log.append(0, rows(30, 3))
    query.fail_in_batch = None
    again = query.run()
    assert len(first) == 1
    assert {p: max(o for q, o, _ in again[0] if q == p) + 1 for p in (0, 1)} == {
        int(p): o for p, o in planned.items()
    }
    assert flat(first + again) == expected(log)


def test_a_torn_tail_is_not_delivered(spark: SparkSession, log: PartitionedLog) -> None:
    """Half a frame is not there for the query; what replaces it is."""
    with (log.path / "partition-00000.log").open("ab") as file:
        file.write(b"PSL1" + bytes(50))
    assert flat(Query(spark, log).run()) == [row for row in expected(log) if row[1] < 30]
    log.append(0, rows(30, 2))
    assert flat(Query(spark, log).run()) == [(0, 30, 30), (0, 31, 31)]


def test_rows_appended_while_it_runs_arrive(spark: SparkSession, log: PartitionedLog) -> None:
    """A running query takes up new rows in later batches, each once."""
    query = Query(spark, log)
    running = query.start(processingTime="0 seconds")
    try:
        for number in range(5):
            log.append(number % 2, rows(5000 + number, 1))
            running.processAllAvailable()
    finally:
        running.stop()
    assert len(query.batches) > 1
    assert flat(query.batches) == expected(log)


@needs_limits
def test_available_now_ignores_what_comes_later(spark: SparkSession, log: PartitionedLog) -> None:
    """Rows appended after an available-now run began wait for the next run."""
    query = Query(spark, log, rows_per_batch=10)
    plain = query.collect

    def append_too(frame: DataFrame, batch: int) -> None:
        plain(frame, batch)
        log.append(0, rows(9000 + batch, 1))

    query.collect = append_too  # type: ignore[method-assign]
    assert len(flat(query.run())) == 40
    assert flat(Query(spark, log).run()) == [(0, 30 + n, 9000 + n) for n in range(4)]


def test_a_log_that_lost_rows_stops_the_query(spark: SparkSession, log: PartitionedLog) -> None:
    """A progress log that is ahead of the log is an error, not a silent gap."""
    Query(spark, log).run()
    other = PartitionedLog(log.path.parent / "other", SCHEMA, 2)
    other.append(0, rows(0, 3))
    with pytest.raises(StreamingQueryException, match="log ends"):
        Query(spark, other).run()


def test_all_column_types_cross_into_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Nested, nullable and NOT NULL columns arrive as they were appended, in a batch DataFrame too."""
    ddl = "s string not null, d date, b binary, x decimal(10,2), a array<string>, m map<string,long>, r struct<u:int,v:timestamp_ntz>"
    log = PartitionedLog(tmp_path / "log", ddl, 1)
    local = WHEN.replace(tzinfo=None)
    frame = log.read(spark)  # also registers the format
    batch = spark.read.format("penstock-log").option("path", str(log.path))
    assert batch.load().count() == 0
    log.append(
        0,
        [
            {"s": "x", "a": ["p", None], "m": {"k": 1}, "r": {"u": 1, "v": local}},
            {"s": "y", "b": b"\1"},
        ],
    )
    found = [row.asDict(recursive=True) for row in batch.load().orderBy("offset").collect()]
    assert found[0]["a"] == ["p", None]
    assert found[0]["m"] == {"k": 1}
    assert found[0]["r"] == {"u": 1, "v": local}
    assert bytes(found[1]["b"]) == b"\1"
    assert frame.schema == batch.load().schema


def test_a_limit_below_one_is_refused(spark: SparkSession, log: PartitionedLog) -> None:
    """A limit that would read nothing for ever fails before the query starts."""
    with pytest.raises(ConfigError, match="rows_per_batch is 0"):
        log.read(spark, rows_per_batch=0)


@pytest.mark.skipif(HAS_READ_LIMITS, reason="this Spark has limits")
def test_a_limit_that_spark_cannot_keep_is_refused(spark: SparkSession, log: PartitionedLog) -> None:
    """A query that is not a job fails before its first batch, and says from which Spark on it could."""
    query = Query(spark, log, rows_per_batch=12)
    with pytest.raises(StreamingQueryException, match=r"Spark before 4\.2"):
        query.run()
    assert query.batches == []
