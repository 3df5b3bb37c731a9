"""Python values as Arrow columns of the declared type, unchanged, or a refusal that names the value. Executors.

Arrow refuses most values of another kind by itself, but it cuts 1.5 to the integer 1, drops fields that a struct does not have, takes a
number for a moment. So the kinds of the values are looked at too: one pass over their types, and only values of an unusual kind one by one.

A value that comes back from state has its stored form: a struct is a dictionary, a moment has a zone. What user code sets is given this
form at once. Otherwise code would see a tuple in the batch that stored it, and a dictionary in the next one: whether it works would depend
on where a batch ends.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import BadRecordError
from penstock.operators.state.cells import Cell, shown
from penstock.operators.values.python_values import has_map, python_values
from penstock.state.ddl import spark_type
from penstock.state.sizes import cut

STEP = 64
CHUNK_BYTES = 1 << 30

CANNOT_ENCODE = (pa.ArrowException, TypeError, ValueError, ArithmeticError)

_INTEGERS = frozenset({int, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64})
_DOUBLES = _INTEGERS | {float, np.float64, np.float32, np.float16}
_PLAIN = {
    pa.int64(): _INTEGERS | {NoneType},
    pa.int32(): _INTEGERS | {NoneType},
    pa.int16(): _INTEGERS | {NoneType},
    pa.int8(): _INTEGERS | {NoneType},
    pa.float64(): _DOUBLES | {NoneType},
    pa.string(): frozenset({str, NoneType}),
    pa.binary(): frozenset({bytes, bytearray, NoneType}),
    pa.date32(): frozenset({date, NoneType}),
    pa.timestamp("us", tz="UTC"): frozenset({datetime, NoneType}),
}
"""Types of values that need no second look, by the declared type; the types of a million values are looked at in 20 ms."""
_USUAL: dict[pa.DataType, frozenset[type]] = {
    **dict.fromkeys((pa.int64(), pa.int32(), pa.int16(), pa.int8()), frozenset({int})),
    pa.float64(): frozenset({float}),
    pa.timestamp("us"): frozenset({datetime}),
    pa.string(): frozenset({str}),
    pa.binary(): frozenset({bytes}),
    pa.bool_(): frozenset({bool}),
    pa.date32(): frozenset({date}),
}
_CONTAINERS = frozenset({dict, list, tuple})
_TEXTS = (str, bytes, bytearray, memoryview)
"""Sequences, which Arrow takes for lists of their letters."""
_MIDNIGHT = time()
_FLOAT = struct.Struct("f")


class _ChangedValueError(ValueError):
    """Arrow would take the value and make another of it."""


def usual_types(kind: pa.DataType) -> frozenset[type]:
    """The types of values that look the same when they come back from state of this type; of others `encoded` says whether they fit.

    The type alone does not decide what fits: a number may be too large. A `float` has none, because it rounds, nor has a `timestamp`, which
    gives a zone to moments that have none.
    """
    if pa.types.is_nested(kind):
        return frozenset({dict} if pa.types.is_struct(kind) or pa.types.is_map(kind) else {list})
    if pa.types.is_decimal(kind):
        return frozenset({Decimal})
    return _USUAL.get(kind, frozenset())


def to_array(values: Sequence[Any], field: pa.Field, what: str) -> pa.Array | pa.ChunkedArray:
    """Encode a column, or name the first value that does not fit. In chunks when it is more than one Arrow array can hold."""
    try:
        return encoded(values, field.type)
    except CANNOT_ENCODE as error:
        for value in values:
            _encode_one(value, field, what)
        raise BadRecordError(
            f"{what} for {field.name!r} what is not of type {spark_type(field.type)}: {error}"
        ) from error


def encoded(values: Sequence[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """The values as a column of this type; raises one of `CANNOT_ENCODE` when a value does not fit or would be changed."""
    if has_map(kind):
        _check(values, kind)  # first: Arrow ends the process where None stands for a pair of a map
        return _in_steps(values, kind)
    column = pa.array(values, type=kind)
    _check(values, kind)
    return column


def _in_steps(values: Sequence[Any], kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Arrow begins a new chunk where an array is full, but ends the process where that happens inside of a map."""
    steps = [pa.array(values[at : at + STEP], type=kind) for at in range(0, max(1, len(values)), STEP)]
    if len(steps) == 1:
        return steps[0]
    sizes = np.array([step.nbytes for step in steps])
    return pa.chunked_array([pa.concat_arrays(steps[start:stop]) for start, stop in cut(sizes, CHUNK_BYTES)])


def _encode_one(value: Any, field: pa.Field, what: str) -> None:
    try:
        encoded([value], field.type)
    except CANNOT_ENCODE as error:
        raise BadRecordError(
            f"{what} {shown(value)} for {field.name!r}, which is not of type {spark_type(field.type)}: {shown(error)}"
        ) from error


# --- what Arrow takes, and changes ---


def _check(values: Sequence[Any], kind: pa.DataType) -> None:
    """Refuse values that Arrow has taken, but not as they are."""
    if pa.types.is_nested(kind):
        _check_nested(values, kind)
        return
    if _plain(map(type, values), kind):
        return
    for is_kind, usual, check in _FLAT:
        if is_kind(kind):
            for value in _unusual(values, usual):
                check(value)
            break
    if pa.types.is_float32(kind):
        _check_range(values)
    if pa.types.is_timestamp(kind) and kind.tz is None:
        _check_no_zone(values)


def _unusual(values: Sequence[Any], usual: frozenset[type]) -> Iterable[Any]:
    return (value for value in values if value is not None and type(value) not in usual)


def _check_whole(value: Any) -> None:
    if not isinstance(value, int | pa.Scalar) and (isinstance(value, np.bool_) or int(value) != value):
        raise _ChangedValueError(f"{value!r} is not a whole number")


def _check_number(value: Any) -> None:
    if isinstance(value, bool | np.bool_):
        raise _ChangedValueError(f"{value!r} is not a number")
    if not isinstance(value, pa.Scalar) and float(value) != value and value == value:  # noqa: PLR0124 - NaN is not
        raise _ChangedValueError(f"{value!r} has more digits than a double")


def _check_text(value: Any) -> None:
    if not isinstance(value, str | pa.Scalar):
        raise _ChangedValueError(f"{value!r} is not text; decode bytes yourself")


def _check_bytes(value: Any) -> None:
    if isinstance(value, str):
        raise _ChangedValueError(f"{value!r} is text; encode it yourself")


def _check_date(value: Any) -> None:
    if isinstance(value, datetime):
        if value.timetz() != _MIDNIGHT or _nanoseconds(value):
            raise _ChangedValueError(f"{value!r} is a moment, not a date; take its .date()")
    elif not isinstance(value, date | pa.Scalar):
        raise _ChangedValueError(f"{value!r} is not a date")


def _check_moment(value: Any) -> None:
    if not isinstance(value, datetime | np.datetime64 | pa.Scalar):
        raise _ChangedValueError(f"{value!r} is not a datetime")
    if _nanoseconds(value):
        raise _ChangedValueError(f"{value!r} has nanoseconds, a timestamp has microseconds")


def _nanoseconds(value: Any) -> int:
    """The nanoseconds of a pandas moment, which Arrow drops."""
    return getattr(value, "nanosecond", 0)


def _check_range(values: Sequence[Any]) -> None:
    infinite = pc.is_inf(pa.array(values, type=pa.float32()))
    for at in np.flatnonzero(infinite.fill_null(fill_value=False).to_numpy(zero_copy_only=False)).tolist():
        if not math.isinf(values[at]):
            raise _ChangedValueError(f"{values[at]!r} is too large for a float")


def _check_no_zone(values: Sequence[Any]) -> None:
    moments = (
        values if set(map(type, values)) == {datetime} else [v for v in values if isinstance(v, datetime)]
    )
    if set(map(attrgetter("tzinfo"), moments)) - {None}:
        zoned = next(moment for moment in moments if moment.tzinfo is not None)
        raise _ChangedValueError(f"{zoned!r} has a time zone, timestamp_ntz has none")


_FLAT: tuple[tuple[Callable[[pa.DataType], bool], frozenset[type], Callable[[Any], None]], ...] = (
    (pa.types.is_integer, _INTEGERS, _check_whole),
    (pa.types.is_floating, _DOUBLES, _check_number),
    (pa.types.is_string, frozenset({str}), _check_text),
    (pa.types.is_binary, frozenset({bytes, bytearray}), _check_bytes),
    (pa.types.is_date, frozenset({date}), _check_date),
    (pa.types.is_timestamp, frozenset({datetime}), _check_moment),
)


# --- what is inside of values ---


def _check_nested(values: Sequence[Any], kind: pa.DataType) -> None:
    types = set(map(type, values))
    if not types <= _CONTAINERS:
        _check_no_state(values)
        values = [v.as_py() if isinstance(v, pa.Scalar) else v for v in values if v is not None]
        types = set(map(type, values))
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        _check_structs(values if types == {dict} else [_by_name(value, names) for value in values], kind)
    elif pa.types.is_map(kind):
        _check_maps(values, kind, only_dicts=types == {dict})
    else:
        _check_lists(values, types)
        _check_items(values, kind.value_type)


def _check_no_state(values: Sequence[Any]) -> None:
    """Values are encoded for many keys at a time: by then a state is that of another key."""
    for value in values:
        if isinstance(value, Cell):
            copied = "dict(...)" if isinstance(value, Mapping) else "list(...)"
            raise _ChangedValueError(f"{value!r} is a state, not a value; take a copy of it with {copied}")


def _check_maps(values: Sequence[Any], kind: pa.MapType, *, only_dicts: bool) -> None:
    if only_dicts:
        _check_items(values, kind.key_type)
        _check_items(list(map(dict.values, values)), kind.item_type)
    else:
        pairs = [_pair(entry, kind) for value in values for entry in _entries(value)]
        _check([key for key, _ in pairs], kind.key_type)
        _check([item for _, item in pairs], kind.item_type)


def _entries(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, Mapping) else value


def _pair(entry: Any, kind: pa.MapType) -> tuple[Any, Any]:
    """An entry of a map may be a tuple, or a dictionary with the names that Arrow gives to the two."""
    names = (kind.key_field.name, kind.item_field.name)
    if isinstance(entry, Mapping) and set(entry) == set(names):
        return entry[names[0]], entry[names[1]]
    if isinstance(entry, tuple) and len(entry) == len(names):
        return entry
    raise _ChangedValueError(f"{entry!r} is not a key and its value: give a map as a dictionary")


def _check_lists(values: Sequence[Any], types: set[type]) -> None:
    if any(issubclass(kind, _TEXTS) for kind in types):
        text = next(value for value in values if isinstance(value, _TEXTS))
        raise _ChangedValueError(
            f"{text!r} is not an array; put it into a list, or take it apart with list()"
        )


def _check_items(values: Sequence[Any], kind: pa.DataType) -> None:
    if not _plain(map(type, chain.from_iterable(values)), kind):
        _check(list(chain.from_iterable(values)), kind)


def _plain(types: Iterable[type], kind: pa.DataType) -> bool:
    """Whether Arrow's own look at values of these types is enough."""
    usual = _PLAIN.get(kind)
    return usual is not None and set(types) <= usual


def _check_structs(values: Sequence[Mapping[str, Any]], kind: pa.StructType) -> None:
    unknown = set(chain.from_iterable(values)).difference(field.name for field in kind)
    if unknown:
        raise _ChangedValueError(f"the struct has no field {', '.join(sorted(map(repr, unknown)))}")
    for field in kind:
        _check([value.get(field.name) for value in values], field.type)


def _by_name(value: Any, names: list[str]) -> Mapping[str, Any]:
    """A struct may be a dictionary, a tuple of its values, or a list of pairs."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, tuple):
        return dict(zip(names, value, strict=True))
    fields = dict(value)
    if len(fields) < len(value):
        raise _ChangedValueError(f"{value!r} names a field twice")
    return fields


class StoredForm:
    """The stored form of one type. Values whose type is in `usual` already have it."""

    __slots__ = ("_fields", "_kind", "usual")

    def __init__(self, kind: pa.DataType) -> None:
        self._kind = kind
        self._fields = [field.name for field in kind] if pa.types.is_struct(kind) else []
        self.usual = usual_types(kind) | {NoneType}

    def of(self, value: Any) -> Any:
        """The value in this form. One that does not fit stays as it is: it is refused, with its name, when it is encoded."""
        kind = self._kind
        if (
            type(value) is datetime
            and pa.types.is_timestamp(kind)
            and (value.tzinfo is None) == (kind.tz is None)
        ):
            return value
        if type(value) is tuple and self._fields and len(value) == len(self._fields):
            return dict(zip(self._fields, value, strict=True))
        try:
            if type(value) is float and pa.types.is_float32(kind):
                return _FLOAT.unpack(_FLOAT.pack(value))[0]
            return python_values(encoded([value], kind))[0]
        except (*CANNOT_ENCODE, struct.error):
            return value
