"""Bad rows as Spark sees them: the columns of dead letters, and rows without a key among those that it aggregates. Driver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from penstock.config import OnBadRecord
from penstock.engine.dead_letters import ROW, ROWS
from penstock.operators.bad_records import LETTER
from penstock.operators.distinct_values import WHOSE
from penstock.spark.distinct_values import DistinctValues, with_distinct_values
from penstock.spark.key_columns import quoted

LETTERS: StructType = from_arrow_schema(LETTER)


def all_nullable(result: StructType) -> StructType:
    """The columns of results beside which dead letters stand."""
    return StructType([StructField(field.name, field.dataType) for field in result.fields])


def grouped_with_bad_rows(
    frame: DataFrame,
    keys: tuple[str, ...],
    partials: tuple[Column, ...],
    policy: OnBadRecord,
    distinct: Sequence[DistinctValues] = (),
) -> DataFrame:
    """The aggregates of a batch. Rows without a key are groups of their own: only counted, or each kept as it is."""
    groups: list[str | Column] = [quoted(key) for key in keys]
    if policy is OnBadRecord.FAIL and not distinct:
        return frame.groupBy(*groups).agg(*partials)
    has_no_key = reduce(or_, (F.col(quoted(key)).isNull() for key in keys))
    names, rows = plain_names(frame, keys), frame
    if policy is not OnBadRecord.FAIL:
        columns = {name: F.when(~has_no_key, F.col(quoted(name))) for name in names}
        if policy is OnBadRecord.KEEP:
            columns[ROW] = F.when(has_no_key, _whole(frame))
            groups.append(ROW)
        rows = frame.withColumns(columns)
    if distinct:
        rows = with_distinct_values(rows, distinct, counted=~has_no_key, others=names)
        groups += [WHOSE, *(quoted(name) for values in distinct for name in values.names)]
    return rows.groupBy(*groups).agg(*partials, F.count(F.lit(1)).alias(ROWS))


def plain_names(frame: DataFrame, keys: tuple[str, ...]) -> list[str]:
    """The columns whose values may be left out: all that are no keys, and whose names say which they are.

    They are null in rows without a key, which nobody wants to be added up, and which must not overflow.
    """
    times = Counter(name.lower() for name in frame.columns)
    taken = {key.lower() for key in keys}
    return [name for name in frame.columns if times[name.lower()] == 1 and name.lower() not in taken]


def _whole(frame: DataFrame) -> Column:
    """The row. Texts are compared byte by byte in it: to a collation two rows may be one, and the other would be lost."""
    row = F.struct(*(F.col(quoted(name)) for name in frame.columns))
    plain = _without_collations(frame.schema)
    return row if plain == frame.schema else row.cast(plain)


def _without_collations(kind: DataType) -> DataType:
    match kind:
        case StringType():
            return StringType()
        case ArrayType():
            return ArrayType(_without_collations(kind.elementType), kind.containsNull)
        case MapType():
            key, value = _without_collations(kind.keyType), _without_collations(kind.valueType)
            return MapType(key, value, kind.valueContainsNull)
        case StructType():
            return StructType(
                [
                    StructField(one.name, _without_collations(one.dataType), one.nullable, one.metadata)
                    for one in kind.fields
                ]
            )
        case _:
            return kind
