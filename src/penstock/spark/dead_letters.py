"""Bad rows in Spark: the columns of dead letters, and rows without a key among the rows to aggregate. Driver."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from penstock.config import OnBadRecord
from penstock.operators.aggregate.distinct import WHOSE
from penstock.operators.bad_records import LETTER, ROW, ROWS
from penstock.operators.inputs import EVERYTHING, shown_keys
from penstock.spark.key_columns import quoted
from penstock.spark.operators.aggregate_values import (
    ARRIVAL,
    DistinctValues,
    for_aggregates,
    with_distinct_values,
)

LETTERS: StructType = from_arrow_schema(LETTER)


def all_nullable(result: StructType) -> StructType:
    """The columns of results, all nullable, because rows with dead letters have nulls there."""
    return StructType(
        [StructField(field.name, field.dataType, metadata=field.metadata) for field in result.fields]
    )


def rows_that_count(keys: tuple[str, ...], policy: OnBadRecord, *, distinct: bool) -> Column | None:
    """The rows of `grouped_with_bad_rows` that the aggregates use; None if all. Sums of the others are not needed, and may overflow."""
    if distinct:
        return for_aggregates() & ~has_no_key(keys)
    return None if policy is OnBadRecord.FAIL else ~has_no_key(keys)


def grouped_with_bad_rows(
    frame: DataFrame,
    keys: tuple[str, ...],
    partials: tuple[Column, ...],
    policy: OnBadRecord,
    distinct: Sequence[DistinctValues] = (),
    *,
    also: tuple[str, ...] = (),
    numbered: bool = False,
    whole: Column | None = None,
    counted: Column | None = None,
) -> DataFrame:
    """The aggregates of a batch, over `rows_that_count`. Rows without a key are separate groups: only counted, or kept whole.

    `also`: further columns to group by. `numbered`: count the rows of each group in any case. `whole`: further rows that are separate
    groups and kept whole. `counted`: the rows whose distinct values count, by default all that have a key.
    """
    groups: list[str | Column] = [quoted(name) for name in (*keys, *also)]
    if policy is OnBadRecord.FAIL and not distinct and not numbered:
        return frame.groupBy(*groups).agg(*partials)
    rows = frame
    kept = has_no_key(keys) if policy is OnBadRecord.KEEP else None
    kept = whole if kept is None else kept if whole is None else kept | whole
    if kept is not None:
        shown = frame.drop(*also, ARRIVAL, EVERYTHING)
        rows = rows.withColumn(ROW, F.when(kept, _comparable(shown)))
        groups.append(ROW)
    if distinct:
        rows = with_distinct_values(rows, distinct, ~has_no_key(keys) if counted is None else counted)
        groups += [WHOSE, *(quoted(name) for values in distinct for name in values.names)]
    grouped = rows.groupBy(*groups).agg(*partials, F.count(F.lit(1)).alias(ROWS))
    return grouped if kept is None else grouped.withColumn(ROW, _restored(shown))


def has_no_key(keys: tuple[str, ...]) -> Column:
    """Whether one of the key columns of a row is null."""
    return reduce(or_, (F.col(quoted(key)).isNull() for key in shown_keys(keys)), F.lit(False))  # noqa: FBT003 - a value


def _comparable(frame: DataFrame) -> Column:
    """The row as a value to group by.

    Under a collation different strings may be equal, and for Spark -0.0 equals 0.0: one of the rows would be lost. So strings are compared
    byte by byte, and floating-point numbers as strings, which preserve every number.
    """
    row = F.struct(*(F.col(quoted(name)) for name in frame.columns))
    kind = _replaced(frame.schema, floats=StringType())
    return row if kind == frame.schema else row.cast(kind)


def _restored(frame: DataFrame) -> Column:
    """The original row of a `_comparable` one."""
    comparable = _replaced(frame.schema, floats=StringType())
    row, kind = F.col(ROW), _replaced(frame.schema, floats=None)
    return row if kind == comparable else row.cast(kind)


def _replaced(kind: DataType, floats: DataType | None) -> DataType:
    """The type without collations, and with another type for floating-point numbers. Keys of maps stay: Spark compares them itself."""
    match kind:
        case StringType():
            return StringType()
        case FloatType() | DoubleType():
            return floats or kind
        case ArrayType():
            return ArrayType(_replaced(kind.elementType, floats))
        case MapType():
            return MapType(_replaced(kind.keyType, None), _replaced(kind.valueType, floats))
        case StructType():
            return StructType([StructField(one.name, _replaced(one.dataType, floats)) for one in kind.fields])
        case _:
            return kind
