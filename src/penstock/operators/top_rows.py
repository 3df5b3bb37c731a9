"""The first rows of each key in an order, for `top`. Executors.

In the plain case every row counts, and only the first `n` rows of a key are kept: no other can come back. Of rows that are equal in the
order the one that came first stays; its place says so, a number that only grows.

With `of`, each value of some columns counts once, with its newest row. All rows that count are kept, and the first ones in a table of
their own, so that a batch touches only what it changes. The rows of a batch and the first ones so far are all that can be first now, unless
one of the first ones fell: every other row came after the last of the first ones, so none has moved up as long as `n` rows come before that
place. Only where fewer do is the key read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.columns import as_batch
from penstock.operators.grouping import Grouped
from penstock.operators.state.table_rows import (
    KEY_INDEX,
    PieceRows,
    Portion,
    RowIds,
    how_many_before,
    last_of_each,
)
from penstock.operators.values.row_order import Numbers, Order, comes_before, order_keys, sorted_by
from penstock.state.handle import GENERATION_SHIFT
from penstock.state.keys import Flags, rows_equal
from penstock.state.sizes import in_batches, one_batch

if TYPE_CHECKING:
    from penstock.operators.top import TopSpec


NEW_BYTES = 256 << 20
"""Bytes of a key's new rows that are ranked at once."""
PLACE = pa.field("__penstock_place", pa.int64())
ROWS_AT_ONCE = 1 << 14
"""Rows that are compared with stored ones at once: the stored ones may be much larger."""
WHOLE_BYTES = 256 << 20
"""Bytes that are ranked at once, of a key that is read as a whole."""


@dataclass(frozen=True)
class KeyedRows:
    """Rows with the positions of their keys in the piece."""

    key_index: Numbers
    table: pa.Table

    def __len__(self) -> int:
        return len(self.key_index)

    def take(self, rows: Numbers) -> KeyedRows:
        """The rows at these positions."""
        return KeyedRows(self.key_index[rows], self.table.take(pa.array(rows)))

    def of(self, keys: Flags) -> KeyedRows:
        """The rows of the flagged keys."""
        return self.take(np.flatnonzero(keys[self.key_index]))

    def then(self, others: KeyedRows) -> KeyedRows:
        """These rows, then the others."""
        together = pa.concat_tables([self.table, others.table]).combine_chunks()
        return KeyedRows(np.concatenate([self.key_index, others.key_index]), together)

    def ranked(self, keys: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
        """The positions in the order of keys and then of these numbers, and the rank within its key of each, from 0 on."""
        order = sorted_by([self.key_index, *keys])
        ordered = self.key_index[order]
        return order, np.arange(len(order)) - np.searchsorted(ordered, ordered)


@dataclass(frozen=True)
class Ranked:
    """The first rows of keys, by key and rank. Ranks begin with 0."""

    rows: KeyedRows
    rank: Numbers


@dataclass(frozen=True)
class ArrivedRows:
    """The rows of a piece. One key may have more than fit into an array, so they come in parts."""

    spec: TopSpec
    piece: Grouped

    def of_keys(self, keys: Portion) -> Iterator[KeyedRows]:
        """The rows of these keys, in the order they came in."""
        starts = self.piece.starts
        start, stop = int(starts[keys.first]), int(starts[keys.end])
        counts = np.diff(starts[keys.first : keys.end + 1])
        key_index = np.repeat(np.arange(keys.first, keys.end), counts)
        kept = self.spec.kept
        done = 0
        for part in in_batches(self.piece.table.select(kept.names).slice(start, stop - start), NEW_BYTES):
            table = pa.Table.from_batches([as_batch(part, kept)])
            yield KeyedRows(key_index[done : done + part.num_rows], table)
            done += part.num_rows


def update_top(spec: TopSpec, rows: PieceRows, new: ArrivedRows, generation: int) -> Iterator[Ranked]:
    """Take the rows of a batch in, and write what has changed; the first rows of those keys for which they are others now."""
    for portion in rows.portions():
        yield _update(spec, rows, portion.rows, _first_ones(spec, new.of_keys(portion)), generation)
    rows.write()


def _first_ones(spec: TopSpec, parts: Iterator[KeyedRows]) -> KeyedRows:
    """The rows of several parts that may be first. Among equals, those that came first stay."""
    rows = next(parts)
    for part in parts:
        both = rows.then(part)
        order, rank = both.ranked(order_keys(both.table, spec.own_order))
        rows = both.take(order[rank < spec.n])
    return rows


def _update(spec: TopSpec, rows: PieceRows, found: pa.Table, new: KeyedRows, generation: int) -> Ranked:
    old = KeyedRows(found.column(KEY_INDEX).to_numpy(), found.select(spec.kept.names))
    places = np.concatenate(
        [
            found.column(PLACE.name).to_numpy(),
            (generation << GENERATION_SHIFT) + how_many_before(new.key_index),
        ]
    )
    both = old.then(new)
    order, rank = both.ranked([*order_keys(both.table, spec.own_order), places])
    top, rank = order[rank < spec.n], rank[rank < spec.n]
    came = top[top >= len(old)]
    stays = np.zeros(len(both), dtype=np.bool_)
    stays[top] = True
    _write(rows, both, places, came=came, went=np.flatnonzero(~stays[: len(old)]))
    changed = np.zeros(len(rows), dtype=np.bool_)
    changed[both.key_index[came]] = True
    shown = changed[both.key_index[top]]
    return Ranked(both.take(top[shown]), rank[shown])


def _write(rows: PieceRows, both: KeyedRows, places: Numbers, *, came: Numbers, went: Numbers) -> None:
    def ids(at: Numbers) -> RowIds:
        place = pa.RecordBatch.from_arrays([pa.array(places[at])], schema=rows.sub)
        return RowIds.of(both.key_index[at], place)

    rows.put(ids(came), one_batch(both.take(came).table).columns)
    rows.delete(ids(went))


def update_top_of_values(
    spec: TopSpec, every: PieceRows, first: PieceRows, new: ArrivedRows
) -> Iterator[Ranked]:
    """Take the rows of a batch in, and write what has changed; the first rows of those keys for which they are others now.

    `every` has all rows that count, `first` the first ones.
    """
    update = _Update(spec, every, first)
    for portion in first.portions():
        yield from update.portion(update.keyed(portion.rows), new.of_keys(portion))
    every.write()
    first.write()


@dataclass(frozen=True)
class _Update:
    spec: TopSpec
    every: PieceRows
    first: PieceRows

    def ids(self, rows: KeyedRows) -> RowIds:
        columns = one_batch(rows.table.select(list(self.spec.of))).columns
        return RowIds.of(rows.key_index, pa.RecordBatch.from_arrays(columns, schema=self.every.sub))

    def portion(self, old: KeyedRows, parts: Iterator[KeyedRows]) -> Iterator[Ranked]:
        """Take all new rows of some keys in. A key that has to be read as a whole is read once, when all of them are known."""
        now, came = old, np.zeros(len(old), dtype=np.bool_)
        unsure = np.zeros(len(self.every), dtype=np.bool_)
        for part in parts:
            newest = self.newest(part)
            self.every.put(self.ids(newest), one_batch(newest.table).columns[len(self.spec.of) :])
            now, came, now_unsure = self.ranked(now, came, newest)
            unsure |= now_unsure
        sure = ~unsure[now.key_index]
        yield self.finished(old.of(~unsure), now.take(np.flatnonzero(sure)), came[sure])
        if not unsure.any():
            return
        for whole in self.every.portions(unsure):
            now = self.first_ones(whole.rows)
            keys = np.zeros_like(unsure)
            keys[whole.first : whole.end] = unsure[whole.first : whole.end]
            yield self.finished(old.of(keys), now, np.ones(len(now), dtype=np.bool_))

    def finished(self, old: KeyedRows, now: KeyedRows, came: Flags) -> Ranked:
        """Write which rows of some keys are first now; those of keys for which they are others. `came` are not as they were."""
        changed = self.changed(old, now)
        shown = changed[now.key_index]
        self.write_first(old, now, gone_from=changed, came=came & shown)
        _, rank = now.ranked([])
        return Ranked(now.take(np.flatnonzero(shown)), rank[shown])

    def keyed(self, found: pa.Table) -> KeyedRows:
        return KeyedRows(found.column(KEY_INDEX).to_numpy(), found.select(self.spec.kept.names))

    # ── which row of a value counts ────────────────────────────────────────────────────────────

    def newest(self, new: KeyedRows) -> KeyedRows:
        """The row that counts for each value, if it is one of these: the one that came last, or is last in `order_by`."""
        order = self.spec.newest
        if order:
            new = new.take(sorted_by(order_keys(new.table, order)))
        new = self._as_stored(new.take(last_of_each(self.ids(new))))
        if not order:
            return new
        counts = [
            self._counts(new.take(np.arange(start, min(start + ROWS_AT_ONCE, len(new)))))
            for start in range(0, len(new), ROWS_AT_ONCE)
        ]
        return new.take(np.flatnonzero(np.concatenate(counts)))

    def _counts(self, new: KeyedRows) -> Flags:
        """Which rows are not older than what is stored in their place."""
        values, found = self.every.get(self.ids(new))
        subs = new.table.select(list(self.spec.of))
        stored = KeyedRows(new.key_index, pa.table([*subs.columns, *values.columns], schema=self.spec.kept))
        keys = order_keys(new.then(stored).table, self.spec.newest)
        own = np.arange(len(new))
        counts: Flags = ~found | ~comes_before(keys, own, own + len(new))
        return counts

    def _as_stored(self, rows: KeyedRows) -> KeyedRows:
        """With one zero and one NaN among its values."""
        subs = self.ids(rows).subs.columns
        others = rows.table.columns[len(subs) :]
        return KeyedRows(rows.key_index, pa.table([*subs, *others], schema=self.spec.kept))

    # ── which rows are first ───────────────────────────────────────────────────────────────────

    def ranked(self, old: KeyedRows, came: Flags, newest: KeyedRows) -> tuple[KeyedRows, Flags, Flags]:
        """The first rows now, which of them came in this batch (of the old ones `came`), and the keys in which others may be first."""
        both = old.then(newest)
        live = np.zeros(len(both), dtype=np.bool_)
        live[last_of_each(self.ids(both))] = True
        was = np.arange(len(both)) < len(old)
        order = sorted_by([both.key_index, *self._order(both), (~live).astype(np.int64)])
        unsure = self._unsure(both.key_index[order], live[order], was[order])
        order = order[live[order]]
        ordered = both.key_index[order]
        top = order[np.arange(len(order)) - np.searchsorted(ordered, ordered) < self.spec.n]
        return both.take(top), np.append(came, np.ones(len(newest), dtype=np.bool_))[top], unsure

    def first_ones(self, found: pa.Table) -> KeyedRows:
        """The first of all rows of some keys; there may be more than fit into an array."""
        first = self.keyed(found.slice(0, 0))
        for part in in_batches(found, WHOLE_BYTES):
            both = first.then(self.keyed(pa.Table.from_batches([part])))
            order, rank = both.ranked(self._order(both))
            first = both.take(order[rank < self.spec.n])
        return first

    def _order(self, rows: KeyedRows) -> list[Numbers]:
        """By what was asked for, and rows that are equal in it by their values: so the order does not depend on what came when."""
        values = [Order(name) for name in self.spec.of]
        return order_keys(rows.table, [*self.spec.own_order, *values])

    def _unsure(self, keys: Numbers, live: Flags, was: Flags) -> Flags:
        """The keys in which another row than these may be among the first now.

        The rows are in their order. `live` are rows that count, `was` those that were first; a key that had fewer than `n` has no others.
        """
        full = np.bincount(keys[was], minlength=len(self.every)) >= self.spec.n
        last = np.full(len(self.every), -1)
        last[keys[was]] = np.flatnonzero(was)  # of several the last counts
        before = np.concatenate(([0], np.cumsum(live)))
        start = np.searchsorted(keys, np.arange(len(self.every)))
        unsure: Flags = full & (before[last + 1] - before[start] < self.spec.n)
        return unsure

    # ── what has changed ───────────────────────────────────────────────────────────────────────

    def changed(self, old: KeyedRows, now: KeyedRows) -> Flags:
        """The keys whose first rows are not what they were."""
        order, _ = old.ranked(self._order(old))
        before = old.take(order)
        counts = [np.bincount(rows.key_index, minlength=len(self.every)) for rows in (before, now)]
        changed: Flags = counts[0] != counts[1]
        left = before.take(np.flatnonzero(~changed[before.key_index]))
        right = now.take(np.flatnonzero(~changed[now.key_index]))
        if len(left):
            same = rows_equal(one_batch(left.table).columns, one_batch(right.table).columns)
            changed[left.key_index[~same]] = True
        return changed

    def write_first(self, old: KeyedRows, now: KeyedRows, *, gone_from: Flags, came: Flags) -> None:
        """Write which rows are first in keys where these are others now."""
        named = last_of_each(self.ids(old.then(now)))
        went = named[named < len(old)]
        self.first.delete(self.ids(old.take(went[gone_from[old.key_index[went]]])))
        taken = now.take(np.flatnonzero(came))
        self.first.put(self.ids(taken), one_batch(taken.table).columns[len(self.spec.of) :])
