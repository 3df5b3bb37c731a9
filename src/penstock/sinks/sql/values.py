"""Values and column types of the sinks for SQL servers. Executors; types also on the driver."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.sinks.json_text import check_years
from penstock.state.ddl import spark_type


@dataclass(frozen=True)
class SqlType:
    """The type that `CREATE TABLE` uses for a column, and all types that store its values unchanged."""

    name: str
    fitting: frozenset[str]


def sql_type(name: str, *fitting: str) -> SqlType:
    """Make a `SqlType` from the name and the fitting types."""
    return SqlType(name, frozenset(fitting))


class ValueKind(enum.Enum):
    """The kinds of Arrow columns that SQL types distinguish."""

    WHOLE = enum.auto()
    SINGLE = enum.auto()
    DOUBLE = enum.auto()
    DECIMAL = enum.auto()
    BOOLEAN = enum.auto()
    DATE = enum.auto()
    TIME = enum.auto()
    LOCAL_TIMESTAMP = enum.auto()
    INSTANT = enum.auto()
    DURATION = enum.auto()
    BYTES = enum.auto()
    NESTED = enum.auto()
    NULL = enum.auto()
    TEXT = enum.auto()


def kind_of(data_type: pa.DataType) -> ValueKind:
    """Return the kind of a column; text for any other type."""
    types = pa.types
    if types.is_dictionary(data_type):
        return kind_of(data_type.value_type)
    if types.is_timestamp(data_type):
        return ValueKind.LOCAL_TIMESTAMP if data_type.tz is None else ValueKind.INSTANT
    for matches, kind in (
        (types.is_integer, ValueKind.WHOLE),
        (types.is_float64, ValueKind.DOUBLE),
        (types.is_floating, ValueKind.SINGLE),
        (types.is_decimal, ValueKind.DECIMAL),
        (types.is_boolean, ValueKind.BOOLEAN),
        (types.is_date, ValueKind.DATE),
        (types.is_time, ValueKind.TIME),
        (types.is_duration, ValueKind.DURATION),
        (is_bytes, ValueKind.BYTES),
        (types.is_nested, ValueKind.NESTED),
        (types.is_null, ValueKind.NULL),
    ):
        if matches(data_type):
            return kind
    return ValueKind.TEXT


Conversions = Mapping[ValueKind, Callable[[pa.Array], pa.Array]]
"""Conversions of the kinds that a server does not accept as they are."""


def converted(batch: pa.RecordBatch, conversions: Conversions, server: str) -> Iterator[pa.Array]:
    """Yield the columns of a batch in the form that the server accepts."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        plain = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        convert = conversions.get(kind_of(plain.type))
        try:
            yield plain if convert is None else convert(plain)
        except (pa.ArrowException, BadRecordError) as error:
            raise BadRecordError(
                f"column {field.name!r} of type {spark_type(field.type)} holds a value that {server} cannot store: {error}; "
                "filter or change such rows before write_to",
                column=field.name,
            ) from error


def as_text(column: pa.Array) -> pa.Array:
    """Format values as Arrow does."""
    return column.cast(pa.string())


_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}
"""Digits below a second; servers keep at most six."""


def fraction_digits(data_type: pa.DataType) -> int:
    """Return the number of digits below a second that a column needs; 0 if it holds no times."""
    types = pa.types
    if types.is_dictionary(data_type):
        return fraction_digits(data_type.value_type)
    holds_times = types.is_timestamp(data_type) or types.is_time(data_type) or types.is_duration(data_type)
    return _DIGITS[data_type.unit] if holds_times else 0


def needed_scale(data_type: pa.DataType) -> int | None:
    """Return the number of digits after the decimal point that a column of exact numbers needs; None for other columns."""
    types = pa.types
    if types.is_dictionary(data_type):
        return needed_scale(data_type.value_type)
    if types.is_decimal(data_type):
        return int(data_type.scale)
    return 0 if types.is_integer(data_type) else None


def is_text(data_type: pa.DataType) -> bool:
    """Return whether a column holds strings, in any of Arrow's layouts."""
    types = pa.types
    if types.is_dictionary(data_type):
        return is_text(data_type.value_type)
    return bool(
        types.is_string(data_type) or types.is_large_string(data_type) or types.is_string_view(data_type)
    )


def plain_texts(column: pa.Array) -> pa.Array | None:
    """Return a column of strings in a plain layout; None for other columns."""
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    return column.cast(pa.large_string()) if is_text(column.type) else None


def is_bytes(data_type: pa.DataType) -> bool:
    """Return whether a column holds bytes, in any of Arrow's layouts."""
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
    return as_text(column)
