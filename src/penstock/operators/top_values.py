"""The first rows of each key in an order, where each value of some columns counts once, with its newest row. Executors.

All rows that count are kept, and the first ones beside, so that a batch touches only what it changes. The rows of a batch and the first
ones so far are all that can be first now, unless one of these fell: any other came behind the last of the first ones, so that none
has moved up as long as `n` rows come before that place. Only where fewer do, the key is read as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.row_order import Numbers, Order, comes_before, order_keys, sorted_by
from penstock.operators.table_rows import KEY_INDEX, PieceRows, RowIds, last_of_each
from penstock.operators.top_rows import KeyedRows, Ranked, TopSpec, one_chunk
from penstock.state.backends.equality import Flags, rows_equal


def update_top_of_values(spec: TopSpec, every: PieceRows, first: PieceRows, new: KeyedRows) -> Ranked:
    """Take the rows of a batch in, and write what has changed; the first rows of those keys for which they are others now.

    `every` has all rows that count, `first` the first ones.
    """
    update = _Update(spec, every, first)
    newest = update.newest(new)
    every.put(update.ids(newest), one_chunk(newest.table)[len(spec.of) :])
    old = update.stored(first)
    now, came = update.ranked(old, newest)
    changed = update.changed(old, now.rows)
    shown = changed[now.rows.key_index]
    update.write_first(old, now.rows, gone_from=changed, came=came & shown)
    every.write()
    first.write()
    return Ranked(now.rows.take(np.flatnonzero(shown)), now.rank[shown])


@dataclass(frozen=True)
class _Update:
    spec: TopSpec
    every: PieceRows
    first: PieceRows

    def ids(self, rows: KeyedRows) -> RowIds:
        columns = one_chunk(rows.table.select(list(self.spec.of)))
        return RowIds.of(rows.key_index, pa.RecordBatch.from_arrays(columns, schema=self.every.sub))

    def stored(self, rows: PieceRows, wanted: Flags | None = None) -> KeyedRows:
        found = rows.rows(wanted)
        return KeyedRows(found.column(KEY_INDEX).to_numpy(), found.select(self.spec.kept.names))

    # ── which row of a value counts ────────────────────────────────────────────────────────────

    def newest(self, new: KeyedRows) -> KeyedRows:
        """Of each value the row that counts, if it is one of these; that which came last, or is the last in the order that is given."""
        order = self.spec.newest
        if order:
            new = new.take(sorted_by(order_keys(new.table, order)))
        new = self._as_stored(new.take(last_of_each(self.ids(new))))
        if not order:
            return new
        values, found = self.every.get(self.ids(new))
        subs = new.table.select(list(self.spec.of))
        stored = KeyedRows(new.key_index, pa.table([*subs.columns, *values.columns], schema=self.spec.kept))
        keys = order_keys(new.then(stored).table, order)
        own = np.arange(len(new))
        return new.take(np.flatnonzero(~found | ~comes_before(keys, own, own + len(new))))

    def _as_stored(self, rows: KeyedRows) -> KeyedRows:
        """With one zero and one NaN among its values."""
        subs = self.ids(rows).subs.columns
        others = rows.table.columns[len(subs) :]
        return KeyedRows(rows.key_index, pa.table([*subs, *others], schema=self.spec.kept))

    # ── which rows are first ───────────────────────────────────────────────────────────────────

    def ranked(self, old: KeyedRows, newest: KeyedRows) -> tuple[Ranked, Flags]:
        """The first rows now, and which of them are not as they were."""
        both = old.then(newest)
        live = np.zeros(len(both), dtype=np.bool_)
        live[last_of_each(self.ids(both))] = True
        was = np.arange(len(both)) < len(old)
        order = sorted_by([both.key_index, *self._order(both), (~live).astype(np.int64)])
        unsure = self._unsure(both.key_index[order], live[order], was[order])
        order = order[live[order] & ~unsure[both.key_index[order]]]
        rows, came = both.take(order), ~was[order]
        if unsure.any():
            whole = self.stored(self.every, unsure)
            whole = whole.take(whole.ranked(self._order(whole))[0])
            rows, came = rows.then(whole), np.append(came, np.ones(len(whole), dtype=np.bool_))
        order, rank = rows.ranked([])
        top = rank < self.spec.n
        return Ranked(rows.take(order[top]), rank[top]), came[order[top]]

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
            same = rows_equal(one_chunk(left.table), one_chunk(right.table))
            changed[left.key_index[~same]] = True
        return changed

    def write_first(self, old: KeyedRows, now: KeyedRows, *, gone_from: Flags, came: Flags) -> None:
        """Write which rows are first in keys where these are others now."""
        named = last_of_each(self.ids(old.then(now)))
        went = named[named < len(old)]
        self.first.delete(self.ids(old.take(went[gone_from[old.key_index[went]]])))
        taken = now.take(np.flatnonzero(came))
        self.first.put(self.ids(taken), one_chunk(taken.table)[len(self.spec.of) :])
