"""A little of everything that tests ask of Spark, so that a JVM that archives its classes has seen them; a script for `quick_spark`.

`python spark_tour.py FRESH ARCHIVE`: Java writes FRESH as it ends, and it becomes ARCHIVE when it is whole.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from penstock.spark.local_session import local_session


class Numbers(DataSource):
    """A stream of numbers that Python makes."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return "id long, name string"

    def streamReader(self, schema):  # noqa: N802 - Spark's name
        return NumbersReader()


class NumbersReader(DataSourceStreamReader):
    """Ten numbers a batch."""

    def initialOffset(self):  # noqa: N802 - Spark's name
        return {"at": 0}

    def latestOffset(self):  # noqa: N802 - Spark's name
        return {"at": 10}

    def partitions(self, start, end):
        return [InputPartition(0)]

    def read(self, partition):
        yield from ((number, f"n{number}") for number in range(10))


def main() -> None:
    fresh, archive = map(Path, sys.argv[1:])
    fresh.unlink(missing_ok=True)
    spark = local_session("tour")
    with tempfile.TemporaryDirectory() as folder:
        spark.dataSource.register(Numbers)
        _stream(spark.readStream.format("numbers").load(), f"{folder}/numbers")
        _rows(spark).write.parquet(f"{folder}/parquet")
        files = spark.readStream.schema("id long, name string").parquet(f"{folder}/parquet")
        _stream(files, f"{folder}/files")
    spark.stop()
    _wait_for_java()
    fresh.replace(archive)


def _rows(spark: SparkSession) -> DataFrame:
    return spark.range(100).select("id", F.concat(F.lit("n"), F.col("id")).alias("name"))


def _stream(frame: DataFrame, folder: str) -> None:
    query = (
        frame.writeStream.foreachBatch(_batch)
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def _batch(batch: DataFrame, number: int) -> None:
    mapped = batch.mapInArrow(_as_they_are, batch.schema).repartition(2, "name")
    mapped.persist()
    totals = mapped.groupBy("name").agg(F.count("*").alias("n"), F.sum("id"), F.bit_xor("id"), F.max("name"))
    totals.withColumn("number", F.lit(number)).orderBy("name").collect()
    mapped.groupBy((F.col("id") % 3).alias("k")).applyInArrow(lambda table: table, mapped.schema).toArrow()
    mapped.unpersist()


def _as_they_are(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    return batches


def _wait_for_java() -> None:
    """It writes the archive as it ends."""
    java = SparkContext._gateway.proc
    SparkContext._gateway.shutdown()
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    main()
