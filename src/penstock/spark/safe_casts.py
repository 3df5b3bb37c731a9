"""Casts that lose nothing: what a column of a user may become when it is stored as another type. Driver."""

from __future__ import annotations

from pyspark.sql import types as T  # noqa: N812 - PySpark's own convention

_WHOLE: dict[type[T.DataType], int] = {T.ByteType: 3, T.ShortType: 5, T.IntegerType: 10, T.LongType: 19}
"""Whole numbers, and how many digits they have."""
_IN_FLOAT, _IN_DOUBLE = 5, 10
"""So many digits of a whole number of these types a float, or a double, holds exactly."""


def loses_nothing(found: T.DataType, wanted: T.DataType) -> bool:
    """Whether every value of the one type is a value of the other."""
    match found, wanted:
        case T.NullType(), _:
            return True
        case T.ArrayType(), T.ArrayType():
            return loses_nothing(found.elementType, wanted.elementType)
        case T.MapType(), T.MapType():
            return loses_nothing(found.keyType, wanted.keyType) and loses_nothing(
                found.valueType, wanted.valueType
            )
        case T.StructType(), T.StructType():
            return found.names == wanted.names and all(
                loses_nothing(one.dataType, other.dataType)
                for one, other in zip(found.fields, wanted.fields, strict=True)
            )
        case ((T.StringType() | T.CharType() | T.VarcharType()), T.StringType()):
            return True
        case _:
            same = type(found) is type(wanted) and not isinstance(found, T.DecimalType)
            return same or _of_numbers(found, wanted)


def _of_numbers(found: T.DataType, wanted: T.DataType) -> bool:
    digits = _WHOLE.get(type(found))
    match wanted:
        case T.DoubleType():
            return isinstance(found, T.FloatType) or (digits or 99) <= _IN_DOUBLE
        case T.FloatType():
            return (digits or 99) <= _IN_FLOAT
        case T.DecimalType():
            if isinstance(found, T.DecimalType):
                whole = found.precision - found.scale
                return found.scale <= wanted.scale and whole <= wanted.precision - wanted.scale
            return digits is not None and digits <= wanted.precision - wanted.scale
        case _:
            return digits is not None and digits <= _WHOLE.get(type(wanted), 0)
