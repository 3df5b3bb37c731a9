"""What the sinks for SQL servers share about types of columns. Executors; the types also on the driver."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.sinks.json_text import check_years


@dataclass(frozen=True)
class SqlType:
    """The type that `CREATE TABLE` would use for a column, and all that can hold its values unchanged."""

    name: str
    fitting: frozenset[str]


_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}
"""Below a second; servers keep six at most."""


def fraction_digits(data_type: pa.DataType) -> int:
    """How many digits below a second a column needs; 0 if it holds no times."""
    types = pa.types
    if types.is_dictionary(data_type):
        return fraction_digits(data_type.value_type)
    holds_times = types.is_timestamp(data_type) or types.is_time(data_type) or types.is_duration(data_type)
    return _DIGITS[data_type.unit] if holds_times else 0


def needed_scale(data_type: pa.DataType) -> int | None:
    """How many digits below one a column of exact numbers needs; None if it holds none."""
    types = pa.types
    if types.is_dictionary(data_type):
        return needed_scale(data_type.value_type)
    if types.is_decimal(data_type):
        return int(data_type.scale)
    return 0 if types.is_integer(data_type) else None


def is_text(data_type: pa.DataType) -> bool:
    """Tell whether a column holds strings, of any of Arrow's layouts."""
    types = pa.types
    if types.is_dictionary(data_type):
        return is_text(data_type.value_type)
    return bool(
        types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)
    )


def plain_texts(column: pa.Array) -> pa.Array | None:
    """The texts of a column of strings; None for other columns."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    return column.cast(pa.large_string()) if is_text(column.type) else None


def is_bytes(data_type: pa.DataType) -> bool:
    """Tell whether a column holds bytes, of any of Arrow's layouts."""
    types = pa.types
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_fixed_size_binary(data_type)
        or types.is_binary_view(data_type)
    )


def date_texts(column: pa.Array) -> pa.Array:
    """Write dates in ISO 8601."""
    check_years(column.cast(pa.date32()).view(pa.int32()), units_per_day=1)
    return column.cast(pa.string())
