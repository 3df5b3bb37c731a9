"""Join the rows of two inputs over a batch: columns in, columns out. Executors.

`run_join` needs no Spark and no task: two Arrow tables, whose column `__sort_key` has the sort key of each row's key, an open state with
the layout of the spec, and a clock:

    left = InputColumns(left_schema, ("k",), TimeColumn("at"))
    right = InputColumns(right_schema, ("id",), TimeColumn("paid_at"))
    spec = JoinSpec.by_interval(left, right, lower_us, upper_us, How.LEFT)
    joined = run_join(spec, left_rows, right_rows, state, OperatorClock(before_us, watermark_us), operator="join")

New left rows meet the right rows of the state and those of the batch, new right rows those of the state. Then time goes on: rows of an
outer input that cannot match any more, and have not, come out alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.base import LEFT, RIGHT
from penstock.operators.columns import rows_at
from penstock.operators.event_time import Numbers, OperatorClock, Ranges, Timed, in_range
from penstock.operators.grouping import Grouped, PieceLimits, pieces
from penstock.operators.join.inputs import ROW, Arriving, JoinInput, arriving, grouped_inputs
from penstock.operators.join.pairs import InputRows, PickedRows, in_output_columns
from penstock.operators.join.state import JoinTables
from penstock.state.backends.base import OpenState
from penstock.state.backends.equality import Flags
from penstock.state.handle import Due
from penstock.state.keys import KeyBatch
from penstock.state.sizes import PART_BYTES, cut

if TYPE_CHECKING:
    from penstock.operators.join.spec import JoinSpec

PIECE_BYTES = 256 << 20
PAIRS_AT_ONCE = 1 << 20


@dataclass
class Joined:
    """What came of a batch: results, the late rows of each input, and for what the state waits."""

    late_left: pa.Table
    late_right: pa.Table
    results: list[pa.RecordBatch] = field(default_factory=list)
    due: Due = field(default_factory=Due)


def run_join(
    spec: JoinSpec, left: pa.Table, right: pa.Table, state: OpenState, clock: OperatorClock, *, operator: str
) -> Joined:
    """Take the rows of a batch in, and let time go on; also without rows, when something may be due."""
    given = [
        arriving(one, rows, spec.windows, clock, operator=operator)
        for one, rows in ((spec.left, left), (spec.right, right))
    ]
    joined = Joined(given[0].late, given[1].late)
    batch = _Batch(spec, state, clock, joined.results)
    keyed = []
    for one, rows in zip((spec.left, spec.right), given, strict=True):
        with_key, without = rows.parted_by_key(one.keys)
        keyed.append(with_key)
        batch.give_rows_without_key(one, without)
    batch.take(*keyed)
    joined.due = batch.let_time_go_on()
    return joined


class _Batch:
    """The work of one batch."""

    def __init__(
        self, spec: JoinSpec, state: OpenState, clock: OperatorClock, results: list[pa.RecordBatch]
    ) -> None:
        self._spec = spec
        self._tables = {one.name: JoinTables(one, spec.key, state, clock) for one in (spec.left, spec.right)}
        self._results = results

    def take(self, left: Arriving, right: Arriving) -> None:
        """Match the new rows, piece by piece of whole keys, and write what later ones may match."""
        if not left.rows.num_rows + right.rows.num_rows:
            return
        spec = self._spec
        grouped = grouped_inputs(spec.key, (left.rows, spec.left.keys), (right.rows, spec.right.keys))
        sizes = np.concatenate([one.sizes * one.counts for one in (left, right)])
        rows = grouped.table.column(ROW).to_numpy()
        for piece in pieces(grouped, PieceLimits(PIECE_BYTES), sizes[rows]):
            self._take_piece(piece, left, right)

    def _take_piece(self, piece: Grouped, left: Arriving, right: Arriving) -> None:
        at = piece.table.column(ROW).to_numpy()
        key_index = np.repeat(np.arange(len(piece.keys)), np.diff(piece.starts))
        is_left = at < left.rows.num_rows
        lefts = _parts(self._spec.left, left, at[is_left], key_index[is_left])
        behind = ~is_left
        rights = _parts(self._spec.right, right, at[behind] - left.rows.num_rows, key_index[behind])
        for new in lefts:
            for other in rights:
                self._match(piece.keys, new, other, asks=LEFT)
        self._match_stored(piece.keys, lefts, RIGHT)
        self._match_stored(piece.keys, rights, LEFT)
        for name, parts in ((LEFT, lefts), (RIGHT, rights)):
            for part in parts:
                gone = self._tables[name].write_new(piece.keys, part)
                self._give_alone(name, piece.keys, part, gone & ~part.matched)

    def _match_stored(self, keys: KeyBatch, new: list[InputRows], name: str) -> None:
        """Match new rows with what is stored of the other input."""
        if not new:
            return
        tables = self._tables[name]
        wanted = np.zeros(len(keys), dtype=np.bool_)
        for part in new:
            wanted[part.timed.key_index] = True
        for stored in tables.stored(keys, np.flatnonzero(wanted)):
            for part in new:
                pair = (part, stored.rows) if name == RIGHT else (stored.rows, part)
                self._match(keys, *pair, asks=LEFT if name == RIGHT else RIGHT)
            tables.write_matched(stored)

    def _match(self, keys: KeyBatch, left: InputRows, right: InputRows, *, asks: str) -> None:
        """Give all pairs; `asks` says whose rows look for those of the other."""
        spec, results = self._spec, self._results
        if asks == LEFT:
            moments = left.timed.times
            ranges = in_range(
                right.timed, left.timed.key_index, moments + spec.lower_us, moments + spec.upper_us
            )
            _note(left, right, ranges)
            for lefts, rights in ranges.pairs(PAIRS_AT_ONCE):
                results += self._pairs(keys, PickedRows(left, lefts), PickedRows(right, rights))
            return
        moments = right.timed.times
        ranges = in_range(left.timed, right.timed.key_index, moments - spec.upper_us, moments - spec.lower_us)
        _note(right, left, ranges)
        for rights, lefts in ranges.pairs(PAIRS_AT_ONCE):
            results += self._pairs(keys, PickedRows(left, lefts), PickedRows(right, rights))

    def _pairs(self, keys: KeyBatch, left: PickedRows, right: PickedRows) -> Iterator[pa.RecordBatch]:
        times = None if self._spec.at is None else np.maximum(left.moments, right.moments)
        return in_output_columns(self._spec, keys, left, right, times=times)

    def give_rows_without_key(self, given: JoinInput, rows: Arriving) -> None:
        """A null equals nothing: such rows match no other, whatever comes."""
        if not given.outer or not rows.rows.num_rows:
            return
        which, moments = rows.with_moments(np.arange(rows.rows.num_rows))
        schema = pa.schema([*(given.columns.field(name) for name in given.keys), *given.kept])
        for start, stop in cut(rows.sizes[which], PART_BYTES):
            batch = rows_at(rows.rows, which[start:stop], schema)
            key = pa.RecordBatch.from_arrays(batch.columns[: len(given.keys)], schema=self._spec.key)
            everyone = np.arange(batch.num_rows)
            alone = InputRows.of(Timed(everyone, moments[start:stop]), batch.columns[len(given.keys) :])
            whole = np.ones(len(alone), dtype=np.bool_)
            self._give_alone(given.name, KeyBatch(everyone, key), alone, whole, has_key=False)

    def _give_alone(
        self, name: str, keys: KeyBatch, rows: InputRows, which: Flags, *, has_key: bool = True
    ) -> None:
        given = self._spec.left if name == LEFT else self._spec.right
        if not given.outer or not which.any():
            return
        output = PickedRows(rows, np.flatnonzero(which))
        left, right = (output, None) if name == LEFT else (None, output)
        times = output.moments + max(given.ends_us or 0, 0) if has_key else output.moments
        self._results += in_output_columns(self._spec, keys, left, right, times=times)

    def let_time_go_on(self) -> Due:
        """Give the rows that have waited in vain; says for which moment others wait."""
        moments = []
        for name, tables in self._tables.items():
            for keys, rows in tables.waited_in_vain():
                self._give_alone(name, keys, rows, np.ones(len(rows), dtype=np.bool_))
            moments.append(tables.next_due_us())
        return Due(event_us=min((moment for moment in moments if moment is not None), default=None))


def _parts(given: JoinInput, rows: Arriving, at: Numbers, key_index: Numbers) -> list[InputRows]:
    """The new rows of a piece, ordered by key and moment, in parts whose columns fit into arrays. None is copied yet."""
    which, moments = rows.with_moments(at)
    at, key_index = at[which], key_index[which]
    if not ((key_index[1:] > key_index[:-1]) | (moments[1:] >= moments[:-1])).all():
        order = np.lexsort((moments, key_index))  # of keys with one row there is nothing to sort
        at, key_index, moments = at[order], key_index[order], moments[order]
    sizes = rows.sizes[at]
    return [
        InputRows.at_positions(
            Timed(key_index[start:stop], moments[start:stop]),
            rows.rows,
            given.kept,
            at[start:stop],
            sizes[start:stop],
        )
        for start, stop in cut(sizes, PART_BYTES)
    ]


def _note(asking: InputRows, asked: InputRows, ranges: Ranges) -> None:
    """Remember who has found a partner."""
    asking.matched |= ranges.counts > 0
    asked.matched |= ranges.found(len(asked))
