"""Bad rows as Spark sees them: the columns of dead letters, and rows without a key among those that it aggregates. Driver."""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from penstock.config import OnBadRecord
from penstock.engine.dead_letters import ROW, ROWS
from penstock.operators.bad_records import LETTER
from penstock.spark.key_columns import quoted

LETTERS: StructType = from_arrow_schema(LETTER)


def all_nullable(result: StructType) -> StructType:
    """The columns of results beside which dead letters stand."""
    return StructType([StructField(field.name, field.dataType) for field in result.fields])


def grouped_with_bad_rows(
    frame: DataFrame, keys: tuple[str, ...], partials: tuple[Column, ...], policy: OnBadRecord
) -> DataFrame:
    """The aggregates of a batch. Rows without a key are groups of their own: only counted, or each kept as it is."""
    groups: list[str | Column] = [quoted(key) for key in keys]
    if policy is OnBadRecord.KEEP:
        has_no_key = reduce(or_, (F.col(quoted(key)).isNull() for key in keys))
        whole = F.struct(*(F.col(quoted(name)) for name in frame.columns))
        groups.append(F.when(has_no_key, whole).alias(ROW))
    if policy is not OnBadRecord.FAIL:
        partials = (*partials, F.count(F.lit(1)).alias(ROWS))
    return frame.groupBy(*groups).agg(*partials)
