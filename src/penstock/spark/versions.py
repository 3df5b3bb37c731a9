"""The Spark versions that Penstock supports, and their differences. Driver and executors.

Everything that one of them lacks, or names differently, is here. Features are detected, not derived from the version number.
Only `PartitionedLog` needs more, where Spark gives a Python source no limits: see `penstock.spark.log_source`.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import to_arrow_schema, to_arrow_type
from pyspark.sql.types import DataType, StructType

from penstock.errors import ConfigError

__all__ = [
    "HAS_READ_LIMITS",
    "HAS_REPARTITION_BY_ID",
    "TESTED",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_schema",
    "arrow_type",
    "hashed_to",
    "package_of_logs",
    "partition_by_number",
    "refuse_untested",
    "repartitioned",
    "with_version",
]

TESTED = ("4.0", "4.1", "4.2", "4.3")
_SPARKS_OWN = "org.apache.spark:"


def refuse_untested(version: str) -> None:
    """Raise `ConfigError` for a Spark version that is not tested."""
    if ".".join(version.split(".")[:2]) not in TESTED:
        raise ConfigError(
            f"this is PySpark {version}; Penstock was tested on {', '.join(TESTED[:-1])} and {TESTED[-1]}. Nothing was started. "
            f"Install one of them: pip install 'pyspark~={TESTED[-1]}.0'",
            version=version,
            tested=TESTED,
        )


def package_of_logs(jvm: Any) -> str:
    """The Java package of the classes that write the progress log of a query; 4.0 has another one."""
    package = "org.apache.spark.sql.execution.streaming"
    newer = f"{package}.checkpointing"
    found = jvm.org.apache.spark.util.Utils.classIsLoadable(f"{newer}.CheckpointFileManager")
    return newer if found else package


# ── PySpark's types as Arrow's: the name of an argument ────────────────────────────────────────────

_UTC: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in inspect.signature(to_arrow_type).parameters
    else {"timestamp_utc": True}  # 4.0 and 4.1
)


def arrow_type(kind: DataType) -> pa.DataType:
    """The Arrow type of a Spark type, timestamps in UTC."""
    return to_arrow_type(kind, **_UTC)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of a Spark schema, timestamps in UTC."""
    return to_arrow_schema(schema, **_UTC)


# ── rows to a partition by its number: missing in 4.0 ──────────────────────────────────────────────

HAS_REPARTITION_BY_ID = hasattr(DataFrame, "repartitionById")


def partition_by_number(session: SparkSession, number: Column, partitions: int) -> Column:
    """The column to pass to `repartitioned`, for rows that belong to partition `number`."""
    return number if HAS_REPARTITION_BY_ID else hashed_to(session, number, partitions)


def repartitioned(rows: DataFrame, partitions: int, column: Column) -> DataFrame:
    """The rows in this many partitions, placed by the column of `partition_by_number`."""
    if HAS_REPARTITION_BY_ID:
        return rows.repartitionById(partitions, column)
    return rows.repartition(partitions, column)


def hashed_to(session: SparkSession, number: Column, partitions: int) -> Column:
    """A column that Spark's own hash partitioning places in partition `number`."""
    ids = F.array(*map(F.lit, _ids_by_partition(session, partitions)))
    return F.element_at(ids, number + 1)


def _ids_by_partition(session: SparkSession, partitions: int) -> list[int]:
    """For each partition an int that hashes to it, according to Spark itself."""
    found: dict[int, int] = {}
    count = 0
    while len(found) < partitions:
        ids = range(count, count + 16 * partitions)
        frame = session.createDataFrame([(n,) for n in ids], "id int")
        for n, partition in frame.select("id", F.pmod(F.hash("id"), F.lit(partitions))).collect():
            found.setdefault(partition, n)
        count = ids.stop
    return [found[partition] for partition in range(partitions)]


# ── limits for sources in Python: missing in 4.0 and 4.1 ───────────────────────────────────────────

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_READ_LIMITS = True
except ImportError:
    HAS_READ_LIMITS = False

    class ReadLimit:  # type: ignore[no-redef]
        """A limit for the rows of a batch."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """All available rows, without a limit."""

    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most this many rows."""

        def __init__(self, max_rows: int) -> None:
            self.max_rows = max_rows

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """A marker class; these versions of Spark never use it."""


# ── packages from Maven that must be of the same version ───────────────────────────────────────────


def with_version(package: str, version: str = pyspark.__version__) -> str:
    """The Maven package with a version: one of Spark's own that is given without gets that of the running Spark."""
    if package.startswith(_SPARKS_OWN) and package.count(":") == 1:
        release = re.match(r"\d+\.\d+\.\d+", version)
        return f"{package}:{release.group() if release else version}"
    return package
