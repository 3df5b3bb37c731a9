"""Which types of stored values may become which others without losing a value, and how it is done. Driver (asked) and executors (done).

One function decides, and what it returns does just that: so what was allowed at the start is what happens in the tasks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}
"""Numbers that have all values of the narrower ones. A float has 24 bits for them and a double 53: neither has every long."""


class Conversion(ABC):
    """Makes a column of one type a column of another."""

    @abstractmethod
    def __call__(self, column: pa.Array) -> pa.Array:
        """The same values."""


@dataclass(frozen=True)
class Kept(Conversion):
    """The type is the same."""

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        return column


@dataclass(frozen=True)
class Wider(Conversion):
    """A number becomes a wider one."""

    to: pa.DataType

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        return pc.cast(column, self.to)


@dataclass(frozen=True)
class OfStruct(Conversion):
    """Fields are found by their names; one that is new is null."""

    to: pa.DataType
    fields: tuple[tuple[int, Conversion] | None, ...]
    """For each field of the new type the place of the stored one, None where there was none."""

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        children = [
            pa.nulls(len(column), field.type) if found is None else found[1](column.field(found[0]))
            for field, found in zip(self.to, self.fields, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(self.to), mask=column.is_null())


@dataclass(frozen=True)
class OfItems(Conversion):
    """Each item of an array."""

    to: pa.DataType
    item: Conversion

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        return _with_children(column, self.to, self.item(column.values))


@dataclass(frozen=True)
class OfEntries(Conversion):
    """Each key and each value of a map that is a value itself."""

    to: pa.DataType
    key: Conversion
    item: Conversion

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        parts = [self.key(column.keys), self.item(column.items)]
        entries = pa.StructArray.from_arrays(parts, fields=[self.to.key_field, self.to.item_field])
        return _with_children(column, self.to, entries)


def conversion(stored: pa.DataType, wanted: pa.DataType) -> Conversion | None:
    """How values of one type become values of another; None where one could be lost, or might be null where none may be."""
    if stored == wanted:
        return Kept()
    if wanted in _WIDER.get(stored, ()) or _has_more_digits(stored, wanted):
        return Wider(wanted)
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        return _of_struct(stored, wanted)
    if pa.types.is_list(stored) and pa.types.is_list(wanted):
        item = _of_field(stored.value_field, wanted.value_field)
        return None if item is None else OfItems(wanted, item)
    if pa.types.is_map(stored) and pa.types.is_map(wanted):
        key, value = (
            _of_field(stored.key_field, wanted.key_field),
            _of_field(stored.item_field, wanted.item_field),
        )
        return None if key is None or value is None else OfEntries(wanted, key, value)
    return None


def _has_more_digits(stored: pa.DataType, wanted: pa.DataType) -> bool:
    both = pa.types.is_decimal128(stored) and pa.types.is_decimal128(wanted)
    return bool(both and stored.scale == wanted.scale and stored.precision < wanted.precision)


def _of_struct(stored: pa.DataType, wanted: pa.DataType) -> Conversion | None:
    places = {field.name: place for place, field in enumerate(stored)}
    if set(places) - {field.name for field in wanted}:
        return None  # a field would be lost
    found: list[tuple[int, Conversion] | None] = []
    for field in wanted:
        place = places.get(field.name)
        how = None if place is None else _of_field(stored.field(place), field)
        if how is None and (place is not None or not field.nullable):
            return None
        found.append(None if place is None or how is None else (place, how))
    return OfStruct(wanted, tuple(found))


def _of_field(stored: pa.Field, wanted: pa.Field) -> Conversion | None:
    return None if stored.nullable and not wanted.nullable else conversion(stored.type, wanted.type)


def _with_children(column: pa.Array, to: pa.DataType, child: pa.Array) -> pa.Array:
    """The same arrays or maps with other items; which items are whose stays as it is."""
    validity, offsets = column.buffers()[:2]
    children: Sequence[pa.Array] = [child]
    return pa.Array.from_buffers(
        to, len(column), [validity, offsets], offset=column.offset, children=children
    )
