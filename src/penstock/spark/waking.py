"""Rows that only wake a subtask: without any, a task of it has nothing to do. Driver.

The other half is `operators/inputs.py`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention

from penstock.operators.inputs import WAKE
from penstock.state.keys import GROUP_SHIFT, SORT_KEY


def waking_all(rows: DataFrame, parallelism: int) -> DataFrame:
    """Rows that have their sort key, and one for each subtask that has nothing but its own."""
    subtasks = rows.sparkSession.range(parallelism)
    own = F.shiftleft(F.col("id"), GROUP_SHIFT).alias(SORT_KEY)
    columns = [
        own if field.name == SORT_KEY else F.lit(None).cast(field.dataType).alias(field.name)
        for field in rows.schema.fields
    ]
    asleep, awake = (F.lit(given).cast("boolean").alias(WAKE) for given in (None, True))
    return rows.select("*", asleep).union(subtasks.select(*columns, awake))
