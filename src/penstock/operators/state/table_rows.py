"""The rows that the keys of a piece have in one table, all at once in columns, and what the piece changes of them. Executors.

What is changed lies in memory above what is stored, the newest first, as files of state lie above each other: with the position of a key
in the piece in place of its sort key. It is written once, when all is done: a table is read before it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.columns import Positions
from penstock.operators.state.ttl import TouchTimes
from penstock.state.backends.base import OpenTable, TableLayout
from penstock.state.backends.sorted_lookup import lookup, no_columns
from penstock.state.backends.sorted_rows import Ownership, SortedBatch, SortedTable, merge_piece, merge_tables
from penstock.state.keys import Flags, KeyBatch, SortKeys, order_numbers
from penstock.state.sizes import one_batch

FEW_ROWS = 1024
"""Keys with at most this number of rows are read together; others one by one, in parts."""
KEY_INDEX = "__penstock_key_index"
"""In what is read: the position of the row's key in the piece."""
KEYS_AT_ONCE = 2048
"""The number of keys that are read together."""
PORTION_BYTES = 64 << 20
"""The bytes of stored rows that are handled at once, unless they are of one key."""
_MANY_LAYERS = 8
_EVERYTHING = Ownership(0, 1)
_GONE = pa.field("__penstock_gone", pa.bool_())


def stored_rows(
    table: OpenTable,
    keys: KeyBatch,
    wanted: Positions,
    *,
    keys_at_once: int,
    max_bytes: int,
    few_rows: int | None = None,
) -> Iterator[tuple[Positions, pa.RecordBatch]]:
    """The rows of the wanted keys, ordered by key: for each row the position of its key, and identity columns and values.

    About `max_bytes` at a time. The rows of a key may come in several parts, in their order.
    """
    while len(wanted):
        found = table.rows_of(keys.take(wanted[:keys_at_once]), few_rows or FEW_ROWS, max_bytes)
        at, wanted = wanted[: len(found)], wanted[len(found) :]
        key_index = np.repeat(at, np.diff(found.starts))
        done = 0
        for large in np.flatnonzero(found.left_out).tolist():
            stop = int(found.starts[large])
            yield key_index[done:stop], found.rows.slice(done, stop - done)
            done = stop
            for part in table.one_key(keys.slice(int(at[large]), int(at[large]) + 1)).scan():
                yield np.full(part.num_rows, at[large], dtype=np.int64), part
        yield key_index[done:], found.rows.slice(done)


@dataclass(frozen=True)
class RowIds:
    """Which rows: the positions of their keys, and the columns that tell the rows of a key apart."""

    key_index: Positions
    subs: pa.RecordBatch
    orders: SortKeys

    @classmethod
    def of(cls, key_index: Positions, subs: pa.RecordBatch) -> RowIds:
        """The ids in stored form: all NaNs are one, and -0.0 is 0.0."""
        columns = [_one_zero_and_nan(column) for column in subs.columns]
        return cls(key_index, pa.RecordBatch.from_arrays(columns, schema=subs.schema), sub_orders(columns))

    def __len__(self) -> int:
        return len(self.key_index)

    def take(self, rows: Positions) -> RowIds:
        """The rows at these positions."""
        return RowIds(self.key_index[rows], self.subs.take(pa.array(rows)), self.orders[rows])


@dataclass(frozen=True)
class Portion:
    """The rows of the keys from `first` up to `end`."""

    first: int
    end: int
    rows: pa.Table


class PieceRows:
    """One table, for the keys of one piece. Reads see what was changed here before."""

    def __init__(
        self,
        table: OpenTable,
        layout: TableLayout,
        keys: KeyBatch,
        *,
        touches: TouchTimes | None = None,
        renews: bool = False,
    ) -> None:
        self._table, self._layout, self._keys = table, layout, keys
        self._touches, self._renews = touches or TouchTimes(), renews
        self.sub = pa.schema(list(layout.identity)[len(keys.columns.schema) :])
        """The columns that tell the rows of a key apart."""
        self.value = layout.visible
        """Without the stamps of what expires."""
        self._layers: list[SortedTable] = []
        self._cleared: Flags = np.zeros(len(keys), dtype=np.bool_)

    def __len__(self) -> int:
        """The number of keys in the piece."""
        return len(self._keys)

    # ── reading ────────────────────────────────────────────────────────────────────────────────

    def get(self, ids: RowIds) -> tuple[pa.RecordBatch, Flags]:
        """The values of these rows, in this order, nulls where there is none, and which of them there are. Some may be asked for twice."""
        order = np.lexsort((ids.orders, ids.key_index))
        values, found = self._get_in_order(ids.take(order))
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return (values.take(pa.array(back)) if len(self.value) else values), found[back]

    def _get_in_order(self, ids: RowIds) -> tuple[pa.RecordBatch, Flags]:
        asked = KeyBatch(ids.key_index, ids.subs, ids.orders)
        changed, known = lookup(self._layers, asked, pa.schema([_GONE, *self.value]))
        gone = changed.column(0).fill_null(fill_value=False).to_numpy(zero_copy_only=False)
        open_ = np.flatnonzero(~known & ~self._cleared[ids.key_index])
        stored, there = self._read(ids.take(open_))
        if self._renews:
            self._renew(*self._batch(ids.take(open_[there]), stored.filter(pa.array(there)).columns))
        found = known & ~gone
        found[open_] = there
        if not len(self.value):
            return no_columns(len(ids)), found
        at = np.arange(len(ids))
        at[open_] = len(ids) + np.arange(len(open_))
        both = pa.Table.from_batches([changed.select(self.value.names), stored]).take(pa.array(at))
        return one_batch(both), found

    def _read(self, ids: RowIds) -> tuple[pa.RecordBatch, Flags]:
        if not len(ids):
            return _empty(self.value), np.zeros(0, dtype=np.bool_)
        stored, found = self._table.read(self._stored_ids(ids))
        return stored.select(self.value.names) if self._layout.lifetimes else stored, found

    def _stored_ids(self, ids: RowIds) -> KeyBatch:
        keys = self._keys.columns.take(pa.array(ids.key_index))
        identity = pa.RecordBatch.from_arrays(
            [*keys.columns, *ids.subs.columns], schema=self._layout.identity
        )
        return KeyBatch(self._keys.sort_keys[ids.key_index], identity, ids.orders)

    def rows(self, wanted: Flags | None = None) -> pa.Table:
        """All rows of the wanted keys, by default of all: `key_index`, what tells them apart, the values. Ordered by key."""
        flags = np.ones(len(self._keys), dtype=np.bool_) if wanted is None else wanted
        return self._together(flags, list(self._stored_rows(flags & ~self._cleared)))

    def portions(self, wanted: Flags | None = None) -> Iterator[Portion]:
        """The rows of as many keys at a time as have about `PORTION_BYTES`.

        Meanwhile rows of keys that had it may be changed. A table may have more bytes than fit into an array, if one key has that many.
        """
        flags = np.ones(len(self._keys), dtype=np.bool_) if wanted is None else wanted
        waiting: list[SortedBatch] = []
        first = size = 0
        for batch in self._stored_rows(flags & ~self._cleared):
            size += batch.nbytes
            start = int(batch.sort_keys[0])
            if waiting and size > PORTION_BYTES and start > waiting[-1].sort_keys[-1]:
                yield self._portion(flags, first, start, waiting)
                waiting, first, size = [], start, batch.nbytes
            waiting.append(batch)
        yield self._portion(flags, first, len(self), waiting)

    def _portion(self, wanted: Flags, first: int, end: int, stored: list[SortedBatch]) -> Portion:
        flags = np.zeros_like(wanted)
        flags[first:end] = wanted[first:end]
        return Portion(first, end, self._together(flags, stored))

    def _together(self, flags: Flags, stored: list[SortedBatch]) -> pa.Table:
        """The stored rows of these keys together with the changes."""
        layers = [tuple(_without(_as_tombstones(batch), ~flags) for batch in layer) for layer in self._layers]
        if self._renews:
            self._renew(*stored)
        if not layers:
            parts = [[part.sort_keys, *part.keys, *part.values] for part in stored]
        else:
            merged = merge_tables([*layers, tuple(stored)], ownership=_EVERYTHING, keep_tombstones=False)
            parts = [[part.sort_keys, *part.keys, *part.values] for part in merged]
        schema = pa.schema([(KEY_INDEX, pa.int64()), *self.sub, *self.value])
        return pa.Table.from_batches(
            [pa.RecordBatch.from_arrays([pa.array(part[0]), *part[1:]], schema=schema) for part in parts],
            schema,
        )

    def _stored_rows(self, wanted: Flags) -> Iterator[SortedBatch]:
        parts = stored_rows(
            self._table,
            self._keys,
            np.flatnonzero(wanted),
            keys_at_once=KEYS_AT_ONCE,
            max_bytes=PORTION_BYTES,
            few_rows=FEW_ROWS,
        )
        for key_index, rows in parts:
            yield from self._stored_batch(key_index, rows)

    def _stored_batch(self, key_index: Positions, rows: pa.RecordBatch) -> Iterator[SortedBatch]:
        first, end = len(self._layout.identity) - len(self.sub), len(self._layout.identity)
        subs = pa.RecordBatch.from_arrays(rows.columns[first:end], schema=self.sub)
        ids = RowIds(key_index, subs, sub_orders(subs.columns))
        return self._batch(ids, rows.columns[end : end + len(self.value)])

    def _batch(self, ids: RowIds, values: Sequence[pa.Array]) -> Iterator[SortedBatch]:
        if len(ids):
            yield SortedBatch(ids.key_index, None, tuple(ids.subs.columns), tuple(values), ids.orders)

    # ── changing ───────────────────────────────────────────────────────────────────────────────

    def put(self, ids: RowIds, values: Sequence[pa.Array]) -> None:
        """Set rows; of those that are named twice the last counts."""
        self._change(ids, np.zeros(len(ids), dtype=np.bool_), values)

    def delete(self, ids: RowIds) -> None:
        """Forget rows, whether there are such or not."""
        nothing = [pa.nulls(len(ids), field.type) for field in self.value]
        self._change(ids, np.ones(len(ids), dtype=np.bool_), nothing)

    def _change(self, ids: RowIds, gone: Flags, values: Sequence[pa.Array]) -> None:
        if not len(ids):
            return
        batch = SortedBatch(
            ids.key_index, None, tuple(ids.subs.columns), (pa.array(gone), *values), ids.orders
        )
        self._layers.insert(0, (_last_ones(batch),))
        self._join_layers()

    def _join_layers(self) -> None:
        if len(self._layers) > _MANY_LAYERS:
            self._layers = [tuple(merge_tables(self._layers, ownership=_EVERYTHING, keep_tombstones=True))]

    def _renew(self, *read: SortedBatch) -> None:
        """Rows that were read count as written, below all changes."""
        for batch in read:
            alive = pa.array(np.zeros(len(batch), dtype=np.bool_))
            renewed = replace(batch, values=(alive, *batch.values))
            self._layers.append((merge_piece([renewed], _EVERYTHING, keep_tombstones=True),))
        self._join_layers()

    def clear(self, wanted: Flags) -> None:
        """Forget all rows of these keys. What is set later counts."""
        self._cleared |= wanted
        layers = [
            tuple(left for batch in layer if len(left := _without(batch, wanted))) for layer in self._layers
        ]
        self._layers = [layer for layer in layers if layer]

    def write(self) -> None:
        """Write what was changed. Called once, after all reading."""
        forgotten = tuple(self._tombstone(batch) for batch in self._stored_rows(self._cleared))
        layers = [tuple(map(_as_tombstones, layer)) for layer in self._layers]
        changes = merge_tables([*layers, forgotten], ownership=_EVERYTHING, keep_tombstones=True)
        for batch in changes:
            subs = pa.RecordBatch.from_arrays(list(batch.keys), schema=self.sub)
            orders = batch.orders if batch.orders is not None else sub_orders(subs.columns)
            values = (
                pa.RecordBatch.from_arrays(list(batch.values), schema=self.value)
                if len(self.value)
                else no_columns(len(batch))
            )
            gone = None if batch.deleted is None else batch.deleted.to_numpy(zero_copy_only=False)
            rows = self._stored_ids(RowIds(batch.sort_keys, subs, orders))
            self._table.write(rows, self._stamped(values, batch.sort_keys, rows), gone)

    def _stamped(self, values: pa.RecordBatch, key_index: Positions, rows: KeyBatch) -> pa.RecordBatch:
        """Add the stamps: all rows that are written are touched now."""
        if not self._layout.lifetimes:
            return values
        stamps = self._touches.of_rows(self._layout.lifetimes, key_index, self._table, rows)
        return pa.RecordBatch.from_arrays([*values.columns, *stamps], schema=self._layout.value)

    def _tombstone(self, batch: SortedBatch) -> SortedBatch:
        nothing = tuple(pa.nulls(len(batch), field.type) for field in self.value)
        return replace(batch, deleted=pa.array(np.ones(len(batch), dtype=np.bool_)), values=nothing)


def how_many_before(groups: Positions) -> Positions:
    """For every row how many rows before it are of the same group."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    first = np.searchsorted(ordered, ordered)
    before = np.empty_like(groups)
    before[order] = np.arange(len(groups)) - first
    return before


def last_of_each(ids: RowIds) -> Positions:
    """Which rows are the last ones that are named so."""
    batch = SortedBatch(
        ids.key_index, None, tuple(ids.subs.columns), (pa.array(np.arange(len(ids))),), ids.orders
    )
    positions: Positions = np.sort(_last_ones(batch).values[0].to_numpy())
    return positions


def _last_ones(batch: SortedBatch) -> SortedBatch:
    """In order, and of rows that are named twice the last; a merge takes them for the newest if they come first."""
    newest_first = batch.take(np.arange(len(batch))[::-1])
    return merge_piece([newest_first], _EVERYTHING, keep_tombstones=True) if len(batch) else batch


def _as_tombstones(batch: SortedBatch) -> SortedBatch:
    """The batch with its deleted rows as tombstones, as state files have them."""
    gone, *values = batch.values
    return replace(batch, deleted=gone if gone.true_count else None, values=tuple(values))


def _without(batch: SortedBatch, unwanted: Flags) -> SortedBatch:
    drop = unwanted[batch.sort_keys]
    return batch.take(np.flatnonzero(~drop)) if drop.any() else batch


def sub_orders(subs: Sequence[pa.Array]) -> SortKeys:
    """The second sort number, a function of the values alone: that of a null is 0."""
    if not len(subs[0]):
        return np.zeros(0, dtype=np.int64)
    if len(subs) > 1:
        names = [str(at) for at in range(len(subs))]
        return order_numbers(pa.StructArray.from_arrays(list(subs), names=names))
    (sub,) = subs
    if not sub.null_count:
        return order_numbers(sub)
    known = sub.is_valid().to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(sub), dtype=np.int64)
    numbers[known] = order_numbers(sub.filter(pa.array(known)))
    return numbers


def _one_zero_and_nan(column: pa.Array) -> pa.Array:
    if not pa.types.is_floating(column.type):
        return column
    zero, nan = (pa.scalar(number, column.type) for number in (0.0, float("nan")))
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero))


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.array([], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else no_columns(0)
