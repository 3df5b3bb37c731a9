"""The first rows of each key in an order, in the plain case, in which every row counts. Executors.

Only the first `n` rows of a key are kept: no other can come back. Of rows that are equal in the order the one that came first stays,
which its place says, a number that only grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.grouping import Grouped
from penstock.operators.row_order import Numbers, order_keys, sorted_by
from penstock.operators.table_rows import (
    KEY_INDEX,
    PieceRows,
    Portion,
    RowIds,
    how_many_before,
)
from penstock.operators.wide_columns import as_batch
from penstock.state.handle import GENERATION_SHIFT
from penstock.state.keys import Flags
from penstock.state.sizes import in_batches

if TYPE_CHECKING:
    from penstock.operators.top import TopSpec

NEW_BYTES = 256 << 20
"""So many bytes of a key's new rows are looked at at once."""
PLACE = pa.field("__penstock_place", pa.int64())


@dataclass(frozen=True)
class KeyedRows:
    """Rows with the positions of their keys in the piece."""

    key_index: Numbers
    table: pa.Table

    def __len__(self) -> int:
        return len(self.key_index)

    def take(self, rows: Numbers) -> KeyedRows:
        """Those at these positions."""
        return KeyedRows(self.key_index[rows], self.table.take(pa.array(rows)))

    def of(self, keys: Flags) -> KeyedRows:
        """Those of these keys."""
        return self.take(np.flatnonzero(keys[self.key_index]))

    def then(self, others: KeyedRows) -> KeyedRows:
        """These, and others behind them."""
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
class NewRows:
    """The rows of a piece. One key may have more than fit into an array, so they come in parts."""

    spec: TopSpec
    piece: Grouped

    def of_keys(self, keys: Portion) -> Iterator[KeyedRows]:
        """Those of these keys, in the order they came in."""
        starts = self.piece.starts
        start, stop = int(starts[keys.first]), int(starts[keys.behind])
        counts = np.diff(starts[keys.first : keys.behind + 1])
        key_index = np.repeat(np.arange(keys.first, keys.behind), counts)
        kept = self.spec.kept
        done = 0
        for part in in_batches(self.piece.table.select(kept.names).slice(start, stop - start), NEW_BYTES):
            table = pa.Table.from_batches([as_batch(part, kept)])
            yield KeyedRows(key_index[done : done + part.num_rows], table)
            done += part.num_rows


def update_top(spec: TopSpec, rows: PieceRows, new: NewRows, generation: int) -> Iterator[Ranked]:
    """Take the rows of a batch in, and write what has changed; the first rows of those keys for which they are others now."""
    for portion in rows.portions():
        yield _update(spec, rows, portion.rows, _first_ones(spec, new.of_keys(portion)), generation)
    rows.write()


def _first_ones(spec: TopSpec, parts: Iterator[KeyedRows]) -> KeyedRows:
    """Of several parts the rows that may be first, those that came first before their equals."""
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

    rows.put(ids(came), one_chunk(both.take(came).table))
    rows.delete(ids(went))


def one_chunk(table: pa.Table) -> list[pa.Array]:
    """The columns, each as one array."""
    return [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
        for column in table.columns
    ]
