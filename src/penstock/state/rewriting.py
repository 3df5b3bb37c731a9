"""Rewrite rows of state: for another backend, or with other columns and types. Executors; the driver asks `conversion` what is allowed.

Rows carry their sort numbers, so that writing sorts and does not hash. They are written in portions, each frozen and stored by itself, so
that only a portion has to fit into memory.

`conversion` decides whether a stored type may become another one without losing a value. The object that it returns does the conversion,
so the driver's check and the tasks' work cannot disagree.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.state.backends.base import VALUES, StateBackend, StateLayout, TableLayout, Workplace
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.handle import StateHandle
from penstock.state.keys import ORDER, SORT_KEY, KeyBatch

_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
}
"""The types that can represent all values of a narrower one. A float has 24 bits and a double 53: neither can represent every long."""


class Conversion(ABC):
    """Makes a column of one type a column of another."""

    @abstractmethod
    def __call__(self, column: pa.Array) -> pa.Array:
        """The same values in the new type."""


@dataclass(frozen=True)
class Kept(Conversion):
    """Leaves a column as it is, because the type is the same."""

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        return column


@dataclass(frozen=True)
class Wider(Conversion):
    """Casts numbers to a wider type."""

    to: pa.DataType

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        return pc.cast(column, self.to)


@dataclass(frozen=True)
class OfStruct(Conversion):
    """Converts structs: fields are matched by name, and new fields are null."""

    to: pa.DataType
    fields: tuple[tuple[int, Conversion] | None, ...]
    """For each field of the new type, the position of the stored field and its conversion; None for a new field."""

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        children = [
            pa.nulls(len(column), one.type) if found is None else found[1](column.field(found[0]))
            for one, found in zip(self.to, self.fields, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(self.to), mask=column.is_null())


@dataclass(frozen=True)
class OfItems(Conversion):
    """Converts each item of an array."""

    to: pa.DataType
    item: Conversion

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        return _with_children(column, self.to, self.item(column.values))


@dataclass(frozen=True)
class OfEntries(Conversion):
    """Converts each key and each value of a map."""

    to: pa.DataType
    key: Conversion
    item: Conversion

    @override
    def __call__(self, column: pa.Array) -> pa.Array:
        parts = [self.key(column.keys), self.item(column.items)]
        entries = pa.StructArray.from_arrays(parts, fields=[self.to.key_field, self.to.item_field])
        return _with_children(column, self.to, entries)


def conversion(stored: pa.DataType, wanted: pa.DataType) -> Conversion | None:
    """The conversion from one type to another; None if it could lose a value, or a null is not allowed in the new type."""
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
    places = {one.name: place for place, one in enumerate(stored)}
    if set(places) - {one.name for one in wanted}:
        return None  # a field would be lost
    found: list[tuple[int, Conversion] | None] = []
    for one in wanted:
        place = places.get(one.name)
        how = None if place is None else _of_field(stored.field(place), one)
        if how is None and (place is not None or not one.nullable):
            return None
        found.append(None if place is None or how is None else (place, how))
    return OfStruct(wanted, tuple(found))


def _of_field(stored: pa.Field, wanted: pa.Field) -> Conversion | None:
    return None if stored.nullable and not wanted.nullable else conversion(stored.type, wanted.type)


def _with_children(column: pa.Array, to: pa.DataType, child: pa.Array) -> pa.Array:
    """The same arrays or maps with other items and unchanged offsets."""
    validity, offsets = column.buffers()[:2]
    children: Sequence[pa.Array] = [child]
    return pa.Array.from_buffers(
        to, len(column), [validity, offsets], offset=column.offset, children=children
    )


PORTION_ROWS = 2_000_000
PORTION_BYTES = 256 << 20
"""So much is written before it is frozen as files of its own."""

Portion = dict[str, list[pa.RecordBatch]]
"""Rows by table."""


@dataclass(frozen=True)
class TableChange:
    """How the rows of a stored table become rows of the job's."""

    wanted: TableLayout
    carried: Mapping[str, Conversion]
    """The conversion of each column that is kept, including the identity columns."""
    begins_with: Mapping[str, object] = field(default_factory=dict)
    """The initial value of each new column that does not begin with null."""
    loses_columns: bool = False
    """Whether a row may be left without any value: then there is none any more."""

    def applied(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Rows in the new form. They have their sort numbers or not, as before."""
        if self.loses_columns:
            rows = self._with_a_value(rows)
        numbers = [name for name in (SORT_KEY, ORDER) if name in rows.schema.names]
        fields = [one for one in numbered_schema(self.wanted) if one.name in numbers]
        fields += [*self.wanted.identity, *self.wanted.value]
        columns = [
            rows.column(one.name) if one.name in numbers else self._column(rows, one) for one in fields
        ]
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))

    def _column(self, rows: pa.RecordBatch, wanted: pa.Field) -> pa.Array:
        how = self.carried.get(wanted.name)
        if how is not None:
            return how(rows.column(wanted.name))
        value = pa.scalar(self.begins_with.get(wanted.name), wanted.type)
        return pa.repeat(value, rows.num_rows)

    def _with_a_value(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        left = np.zeros(rows.num_rows, dtype=np.bool_)
        for name in self.wanted.visible.names:
            if name in self.carried:
                left |= rows.column(name).is_valid().to_numpy(zero_copy_only=False)
        return rows if left.all() else rows.filter(pa.array(left))


@dataclass(frozen=True)
class StateChange:
    """The form that an operator's state has in the checkpoint, the one that the job wants, and how the one becomes the other."""

    stored: StateLayout
    wanted: StateLayout
    tables: Mapping[str, TableChange]
    """Those whose rows go along."""


def write_rows(
    rows: Iterable[tuple[str, pa.RecordBatch]],
    layout: StateLayout,
    backend: StateBackend,
    workplace: Workplace,
) -> StateHandle | None:
    """Write rows, each with the name of its table, to state that is empty, and store it; None where there is no row.

    Rows of one table come one after the other, in any order; of two with the same identity there must be one.
    """
    stored: StateHandle | None = None
    for number, portion in enumerate(_portions(rows)):
        place = replace(workplace, stem=f"{workplace.stem}-{number}")
        with closing(backend.open(place, layout, stored)) as state:
            for name, batches in portion.items():
                table = pa.Table.from_batches(batches).combine_chunks()
                for keys, values in _in_order(table, layout.by_name[name]):
                    (state if name == VALUES else state.table(name)).write(keys, values)
            stored = upload_new(place, state.freeze(), stored)
    return stored


def upload_new(place: Workplace, frozen: StateHandle, before: StateHandle | None) -> StateHandle:
    """Store the files that the state before did not have."""
    for name in sorted(frozen.files - (before.files if before else frozenset())):
        place.storage.upload(place.local_path(name), name)
    return frozen


def _portions(rows: Iterable[tuple[str, pa.RecordBatch]]) -> Iterator[Portion]:
    portion: Portion = {}
    count = size = 0
    for name, batch in rows:
        if not batch.num_rows:
            continue
        portion.setdefault(name, []).append(batch)
        count, size = count + batch.num_rows, size + batch.nbytes
        if count >= PORTION_ROWS or size >= PORTION_BYTES:
            yield portion
            portion, count, size = {}, 0, 0
    if portion:
        yield portion


def _in_order(rows: pa.Table, table: TableLayout) -> Iterator[tuple[KeyBatch, pa.RecordBatch]]:
    """The rows as a backend takes them: by their sort numbers, and no more at once than an array can hold."""
    sort_keys = rows.column(SORT_KEY).to_numpy()
    orders = rows.column(ORDER).to_numpy() if table.ordered else None
    positions = np.argsort(sort_keys, kind="stable") if orders is None else np.lexsort((orders, sort_keys))
    if (positions[1:] > positions[:-1]).all():
        sorted_rows = rows
    else:
        sorted_rows = rows.take(pa.array(positions))
        sort_keys, orders = sort_keys[positions], None if orders is None else orders[positions]
    at = 0
    for batch in sorted_rows.to_batches(max_chunksize=256 * 1024):
        behind = at + batch.num_rows
        identity, values = batch.select(table.identity.names), batch.select(table.value.names)
        yield (
            KeyBatch(sort_keys[at:behind], identity, None if orders is None else orders[at:behind]),
            values,
        )
        at = behind
