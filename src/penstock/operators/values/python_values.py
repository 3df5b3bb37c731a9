"""Arrow columns as Python objects, the same that Arrow gives but in a fraction of its time, and a map is a dictionary. Executors.

Arrow makes a timestamp or a date through a scalar of its own, in microseconds each; NumPy makes the same objects in nanoseconds.
A dictionary's keys must not change: where the keys of a map are arrays or structs, they are tuples.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, tzinfo
from itertools import chain, pairwise
from typing import Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError

_UTC_NAMES = frozenset({"UTC", "Etc/UTC", "Z", "+00:00"})
_DAYS = (int(np.datetime64(date.min).astype(np.int64)), int(np.datetime64(date.max).astype(np.int64)))
MICROSECONDS = (-62_135_596_800_000_000, 253_402_300_799_999_999)
"""The first and the last day and moment that Python's calendar knows, from 1970."""
UNREADABLE = (ValueError, OverflowError, pa.ArrowException)


def as_moments(numbers: npt.NDArray[np.int64], kind: pa.DataType) -> pa.Array:
    """Microseconds since 1970 as a column of timestamps; what Python's calendar does not reach is its first or last moment."""
    return pa.array(np.clip(numbers, *MICROSECONDS)).cast(kind)


def python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """What `column.to_pylist()` returns, with every map as a dictionary; of a key that stands twice in a map the last value counts."""
    kind = column.type
    if has_map(kind):
        return _nested(column)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(column)
    if pa.types.is_date32(kind) and _within(column, pa.int32(), _DAYS):
        return _by_numpy(column)
    if kind in (pa.string(), pa.binary()) or pa.types.is_decimal128(kind):
        return _by_numpy(column)
    if pa.types.is_timestamp(kind) and kind.unit == "us" and _within(column, pa.int64(), MICROSECONDS):
        return _moments(column)
    values: list[Any] = column.to_pylist()
    return values


def has_map(kind: pa.DataType) -> bool:
    """Whether a type is a map or has one inside."""
    return pa.types.is_map(kind) or any(has_map(kind.field(at).type) for at in range(kind.num_fields))


# --- maps, and what they stand in ---


def _nested(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    if isinstance(column, pa.ChunkedArray):
        return list(chain.from_iterable(map(_nested, column.chunks)))
    values = _by_kind(column)
    for at in _null_positions(column):
        values[at] = None
    return values


def _by_kind(column: pa.Array) -> list[Any]:
    kind = column.type
    if pa.types.is_struct(kind) and len({field.name for field in kind}) == kind.num_fields:
        return _structs(column)
    if pa.types.is_map(kind):
        return _maps(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items, bounds = _items(column, column.values)
        return [items[start:stop] for start, stop in bounds]
    values: list[Any] = column.to_pylist()
    return values


def _structs(column: pa.Array) -> list[Any]:
    names = [field.name for field in column.type]
    if not names:
        return [{} for _ in range(len(column))]
    fields = [python_values(field) for field in column.flatten()]  # a field of a struct that is null is null
    return [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)]


def _maps(column: pa.Array) -> list[Any]:
    keys, bounds = _items(column, column.keys)
    items, _ = _items(column, column.items)
    if pa.types.is_nested(column.type.key_type):
        keys = list(map(_unchanging, keys))
    return [dict(zip(keys[start:stop], items[start:stop], strict=True)) for start, stop in bounds]


def _items(column: pa.Array, inner: pa.Array) -> tuple[list[Any], Iterable[tuple[int, int]]]:
    """All items as Python objects, and where those of every row begin and end among them."""
    if not len(column):
        return [], ()
    offsets = column.offsets.to_numpy()
    first = int(offsets[0])
    return python_values(inner.slice(first, int(offsets[-1]) - first)), pairwise((offsets - first).tolist())


def _unchanging(value: Any) -> Any:
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list):
        return value
    return tuple(map(_unchanging, value))


# --- flat values ---


def _numbers(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    values = _by_numpy(column.fill_null(0) if column.null_count else column)
    for at in _null_positions(column):
        values[at] = None
    return values


def _by_numpy(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    array = (
        column.to_numpy() if isinstance(column, pa.ChunkedArray) else column.to_numpy(zero_copy_only=False)
    )
    values: list[Any] = array.tolist()
    return values


def _within(column: pa.Array | pa.ChunkedArray, number: pa.DataType, calendar: tuple[int, int]) -> bool:
    """Whether Python can hold all moments; beyond the years 1 to 9999 Arrow raises, and NumPy would give bare numbers."""
    bounds = pc.min_max(column.cast(number)).as_py()
    return bounds["min"] is None or calendar[0] <= bounds["min"] <= bounds["max"] <= calendar[1]


def _moments(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    zone_name = column.type.tz
    zone: tzinfo | None = None if zone_name is None else pa.lib.string_to_tzinfo(zone_name)
    if zone_name is None or zone_name in _UTC_NAMES:
        moments = _since(datetime(1970, 1, 1, tzinfo=zone), column)
    else:
        moments = [moment.astimezone(zone) for moment in _since(datetime(1970, 1, 1, tzinfo=UTC), column)]
    for at in _null_positions(column):
        moments[at] = None
    return moments


def _since(epoch: datetime, column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Adding to an epoch that has the time zone costs a tenth of giving every moment its zone; nulls are the epoch."""
    durations = column.cast(pa.int64()).fill_null(0).to_numpy().astype("timedelta64[us]")
    return list(map(epoch.__add__, durations.tolist()))


def _null_positions(column: pa.Array | pa.ChunkedArray) -> list[int]:
    if not column.null_count:
        return []
    nulls = column.is_null()
    flags = nulls.to_numpy() if isinstance(nulls, pa.ChunkedArray) else nulls.to_numpy(zero_copy_only=False)
    positions: list[int] = np.flatnonzero(flags).tolist()
    return positions


class Unreadable:
    """Takes the place of a value that Python cannot hold."""

    __slots__ = ("_column", "_why")

    def __init__(self, column: str, why: Exception) -> None:
        self._column = column
        self._why = why

    def error(self) -> BadRecordError:
        """The error to raise when user code reads the value."""
        return BadRecordError(
            f"column {self._column!r} holds a value that Python cannot read: {self._why}. Filter such rows with is_valid_utf8() or by "
            "their range, or repair them, before key_by",
            column=self._column,
        )


class CheckedValues(list[Any]):
    """A list of values; reading an `Unreadable` among them raises."""

    @overload
    def __getitem__(self, item: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        for one in found if isinstance(item, slice) else (found,):
            if type(one) is Unreadable:
                raise one.error()
        return found


def readable(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """The values as Python objects; where some have none, in a list that refuses only those."""
    try:
        return python_values(column)
    except UNREADABLE:
        return CheckedValues(_marked(column, name))


def _marked(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """Halve the column, until those that cannot be read stand alone."""
    try:
        return python_values(column)
    except UNREADABLE as error:
        if len(column) == 1:
            return [Unreadable(name, _in_python(column[0]) or error)]
    middle = len(column) // 2
    return _marked(column.slice(0, middle), name) + _marked(column.slice(middle), name)


def _in_python(scalar: pa.Scalar) -> Exception | None:
    """Python's own error about the value, which is clearer than Arrow's."""
    try:
        scalar.as_py()
    except UNREADABLE as error:
        return error
    return None
