"""Rows of other outputs among the results of an operator, as Spark sees them: one DataFrame, and each of them out of it. Driver.

The other half is `operators/outputs.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import StructField, StructType

Beside = Mapping[str, StructType]
"""The columns of the outputs that stand beside the results, by tag."""


def tagged(result: StructType, beside: Beside) -> StructType:
    """The columns of all of them in one."""
    return StructType([*result.fields, *(StructField(tag, columns) for tag, columns in beside.items())])


def results_of(frame: DataFrame, tags: Collection[str]) -> DataFrame:
    """The rows that have none of the tags."""
    return frame.where(reduce(and_, (F.col(tag).isNull() for tag in tags))).drop(*tags)


def rows_of(frame: DataFrame, tag: str) -> DataFrame:
    """The rows that have this tag."""
    return frame.where(F.col(tag).isNotNull()).select(f"{tag}.*")
