"""Arrow values as JSON text. Executors.

Dates and timestamps are ISO 8601 (with a time zone: in UTC, ending in 'Z'), decimals are strings, bytes are
base64, maps are objects. JSON has neither NaN nor infinity: they become null.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.state.ddl import spark_type

_ENCODER = msgspec.json.Encoder()
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_EPOCH = dt.date(1970, 1, 1)
_FIRST_DAY = (dt.date.min - _EPOCH).days
_LAST_DAY = (dt.date.max - _EPOCH).days


def json_lines(batch: pa.RecordBatch) -> bytes:
    """Encode each row as one line."""
    try:
        batch = _with_timestamp_texts(batch)
        target = pa.schema([field.with_type(_encodable(field.type)) for field in batch.schema])
        if target != batch.schema:
            batch = batch.cast(target, safe=False)
        columns = [_values(column) for column in batch.columns]
        names = batch.schema.names
        return _ENCODER.encode_lines(
            [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
            if columns
            else [{}] * batch.num_rows
        )
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise BadRecordError(
            f"a row cannot be written as JSON: {error}; columns: {batch.schema.names}", cause=str(error)
        ) from error


def json_texts(column: pa.Array) -> pa.Array:
    """Encode each value that is not null as one text; a null stays null."""
    try:
        cast = column.cast(_encodable(column.type), safe=False)
        texts = [None if value is None else _ENCODER.encode(value).decode() for value in _values(cast)]
    except (ValueError, OverflowError, KeyError, TypeError) as error:
        raise BadRecordError(
            f"a value of type {spark_type(column.type)} cannot be written as JSON: {error}", cause=str(error)
        ) from error
    return pa.array(texts, pa.string())


def timestamp_texts(column: pa.Array) -> pa.Array:
    """Write timestamps in ISO 8601 with all digits of their unit, so that the texts sort like the times."""
    in_utc = column.view(pa.timestamp(column.type.unit))
    check_years(column.view(pa.int64()), units_per_day=86_400 * _PER_SECOND[column.type.unit])
    return pc.strftime(in_utc, format="%Y-%m-%dT%H:%M:%S" + ("" if column.type.tz is None else "Z"))


def check_years(column: pa.Array, *, units_per_day: int) -> None:
    """Refuse times outside the years 1 to 9999, for which Arrow silently writes nonsense."""
    ends = pc.min_max(column).as_py()
    if ends["min"] is not None and not (
        _FIRST_DAY * units_per_day <= ends["min"] and ends["max"] < (_LAST_DAY + 1) * units_per_day
    ):
        raise pa.ArrowInvalid("a date or time is outside the years 1 to 9999")


def refuse_odd_years(batch: pa.RecordBatch) -> None:
    """Refuse dates and times that other programs could not read back from text, naming the column."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            if pa.types.is_date(column.type):
                check_years(column.cast(pa.date32()).view(pa.int32()), units_per_day=1)
            elif pa.types.is_timestamp(column.type):
                check_years(column.view(pa.int64()), units_per_day=86_400 * _PER_SECOND[column.type.unit])
        except pa.ArrowInvalid as error:
            raise BadRecordError(
                f"column {name!r} of type {spark_type(column.type)} cannot be written as text: {error}; filter such rows before write_to",
                column=name,
            ) from error


def unsupported_in_json(data_type: pa.DataType) -> pa.DataType | None:
    """Find the part of a type that has no JSON form, if there is one."""
    if pa.types.is_interval(data_type) or pa.types.is_union(data_type):
        return data_type
    if pa.types.is_map(data_type) and pa.types.is_nested(data_type.key_type):
        return data_type
    for index in range(data_type.num_fields):
        found = unsupported_in_json(data_type.field(index).type)
        if found is not None:
            return found
    return None


def _values(column: pa.Array) -> list[Any]:
    """Return Python values in which every map is a dictionary. Arrow makes lists of pairs, before version 20 always."""
    values: list[Any] = column.to_pylist()
    if not _has_map(column.type):
        return values
    return [_with_dictionaries(value, column.type) for value in values]


def _with_dictionaries(value: Any, kind: pa.DataType) -> Any:
    if value is None or not _has_map(kind):
        return value
    if pa.types.is_struct(kind):
        return {field.name: _with_dictionaries(value[field.name], field.type) for field in kind}
    if not pa.types.is_map(kind):
        return [_with_dictionaries(item, kind.value_type) for item in value]
    made = {key: _with_dictionaries(item, kind.item_type) for key, item in value}
    if len(made) != len(value):
        raise KeyError("a map has the same key twice")
    return made


def _has_map(data_type: pa.DataType) -> bool:
    return pa.types.is_map(data_type) or any(
        _has_map(data_type.field(index).type) for index in range(data_type.num_fields)
    )


def _with_timestamp_texts(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Format timestamps with Arrow, which is many times faster than building Python datetimes."""
    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type):
            batch = batch.set_column(index, field.name, timestamp_texts(batch.column(index)))
    return batch


def _encodable(data_type: pa.DataType) -> pa.DataType:
    """Return the type to cast to: Python's datetime holds microseconds, and one time zone makes texts comparable."""
    if pa.types.is_nested(data_type):
        return _encodable_nested(data_type)
    if pa.types.is_timestamp(data_type):
        unit = "us" if data_type.unit == "ns" else data_type.unit
        return pa.timestamp(unit, None if data_type.tz is None else "UTC")
    if pa.types.is_time64(data_type):
        return pa.time64("us")
    if pa.types.is_duration(data_type) and data_type.unit == "ns":
        return pa.duration("us")
    if pa.types.is_dictionary(data_type):
        return _encodable(data_type.value_type)
    return data_type


def _encodable_nested(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(data_type):
        return pa.struct([field.with_type(_encodable(field.type)) for field in data_type])
    if pa.types.is_map(data_type):
        key, item = data_type.key_field, data_type.item_field
        return pa.map_(key.with_type(_encodable(key.type)), item.with_type(_encodable(item.type)))
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        value = data_type.value_field.with_type(_encodable(data_type.value_type))
        return pa.list_(value) if pa.types.is_list(data_type) else pa.large_list(value)
    return data_type
