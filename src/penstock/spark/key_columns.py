"""Key columns as Spark expressions: normalised, hashed, placed. Driver.

The key group is Spark's own partitioning hash modulo max_parallelism. If parallelism divides max_parallelism, Spark's shuffle of
`groupBy` therefore brings every key to the subtask that owns it, with map-side aggregation and without a second shuffle.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own convention
from pyspark.sql.types import ArrayType, DataType, DoubleType, FloatType, StringType, StructType

from penstock.errors import ConfigError
from penstock.operators.inputs import EVERYTHING, check_key_columns
from penstock.state.keys import GROUP_SHIFT, SORT_KEY

_HASH_BITS = (1 << GROUP_SHIFT) - 1


def check_keys(frame: DataFrame, keys: tuple[str, ...], uid: str) -> None:
    """Refuse key columns that do not exist or cannot be hashed and compared exactly."""
    check_key_columns(uid, keys, frame.columns)
    for key in keys:
        kind = frame.schema[key].dataType
        if isinstance(kind, StringType) and kind.collation != "UTF8_BINARY":
            raise ConfigError(
                f"operator {uid!r}: key column {key!r} has the collation {kind.collation}; cast it to string"
            )
    try:
        _ = frame.select(F.hash(*map(quoted, keys)), F.xxhash64(*map(quoted, keys))).schema
    except AnalysisException as error:
        raise ConfigError(
            f"operator {uid!r}: Spark cannot hash the key ({', '.join(keys)}): {error}"
        ) from error


def with_key(frame: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """The rows with a constant key column, for an operator without a key."""
    return frame.withColumn(EVERYTHING, F.lit(0).cast("byte")) if EVERYTHING in keys else frame


def float_keys(frame: DataFrame, keys: tuple[str, ...]) -> tuple[str, ...]:
    """The key columns that must be `normalised`."""
    return tuple(key for key in keys if _has_float(frame.schema[key].dataType))


def normalised(frame: DataFrame, floats: tuple[str, ...]) -> DataFrame:
    """Turn -0.0 into 0.0 and all NaNs into one, as Spark's own groupBy does, so that equal keys have equal hashes."""
    if not floats:
        return frame
    return frame.withColumns({key: normal(F.col(quoted(key)), frame.schema[key].dataType) for key in floats})


def sort_key(keys: tuple[str, ...], max_parallelism: int) -> Column:
    """The number by which state is sorted; see `penstock.state.keys`."""
    columns = [F.col(quoted(key)) for key in keys]
    group = F.pmod(F.hash(*columns), F.lit(max_parallelism)).cast("long")
    low_bits = F.xxhash64(*columns).bitwiseAND(F.lit(_HASH_BITS))
    return F.shiftleft(group, GROUP_SHIFT).bitwiseOR(low_bits).alias(SORT_KEY)


def sort_key_of_partition(parallelism: int) -> Column:
    """The sort key of rows without a key: the rows of one input partition go to one subtask, in order."""
    subtask = F.pmod(F.spark_partition_id(), F.lit(parallelism)).cast("long")
    return F.shiftleft(subtask, GROUP_SHIFT).alias(SORT_KEY)


def subtask_of(parallelism: int) -> Column:
    """The subtask that owns a row, from its sort key."""
    return (F.shiftright(F.col(SORT_KEY), GROUP_SHIFT) % F.lit(parallelism)).cast("int")


def placed_by_key(frame: DataFrame, keys: tuple[str, ...], parallelism: int) -> bool:
    """Whether Spark's plan brings every key to partition `hash mod parallelism`.

    Usually the shuffle of `groupBy` does. Spark omits it if equal keys are already in one partition (after `limit`, `coalesce(1)`,
    `repartition`, or with a single input partition), which may be another one.
    """
    partitioning = frame._jdf.queryExecution().executedPlan().outputPartitioning()
    if (
        partitioning.getClass().getSimpleName() != "HashPartitioning"
        or partitioning.numPartitions() != parallelism
    ):
        return False
    expressions = partitioning.expressions().iterator()
    names = []
    while expressions.hasNext():
        names.append(str(expressions.next().sql()).strip("`").replace("``", "`"))
    return names == list(keys)


def quoted(name: str) -> str:
    """A column name in backticks, so that it may contain dots."""
    return f"`{name.replace('`', '``')}`"


def _has_float(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_float(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_float(kind.elementType)
    return isinstance(kind, DoubleType | FloatType)


def normal(column: Column, kind: DataType) -> Column:
    """The column with one zero and one NaN, of the same type; null stays null."""
    if not _has_float(kind):
        return column
    if isinstance(kind, StructType):
        fields = [
            normal(column.getField(field.name), field.dataType).alias(field.name) for field in kind.fields
        ]
        return F.when(column.isNotNull(), F.struct(*fields))
    if isinstance(kind, ArrayType):
        element = kind.elementType
        return F.transform(column, lambda item: normal(item, element))
    nan, zero = (F.lit(number).cast(kind) for number in (float("nan"), 0.0))
    return F.when(F.isnan(column), nan).when(column == 0, zero).otherwise(column)
