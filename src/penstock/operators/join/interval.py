"""Join the rows of two inputs over a batch: columns in, columns out. Executors.

`run_join` needs no Spark and no task: two Arrow tables, whose column `__sort_key` has the sort key of each row's key, an open state with
the layout of the spec, and a clock:

    left = InputColumns(left_schema, ("k",), TimeColumn("at"))
    right = InputColumns(right_schema, ("id",), TimeColumn("paid_at"))
    spec = JoinSpec.by_interval(left, right, lower_us, upper_us, How.LEFT)
    joined = run_join(spec, left_rows, right_rows, state, OperatorClock(before_us, watermark_us), operator="join")

New left rows are matched with right rows of the state and of the batch, new right rows with left rows of the state. Then time passes: rows
of an outer input that have no partner, and cannot find one any more, are emitted alone.

The state of an input is its rows by key and moment, and a table of the rows that wait for a partner, by moment. A row is written with its
moment as the stamp, and expires when no later row can match it, so nothing is deleted. Where a row would be emitted alone otherwise, it is
written again when it finds its first partner.

What a join keeps of one input: its rows by key and moment, and which of them wait for a partner, by moment. Executors.

A row is written with its moment as the stamp, and is gone when no later row can match it: nothing is deleted. A row that finds its first
partner is written again, as one that has, where it would come out alone otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.operators.base import LEFT, RIGHT
from penstock.operators.columns import rows_at
from penstock.operators.event_time import OperatorClock, Ranges, Timed, in_range
from penstock.operators.grouping import Grouped, PieceLimits, pieces
from penstock.operators.join.input_rows import (
    PLACE,
    ROW,
    Arriving,
    InputRows,
    JoinInput,
    PickedRows,
    grouped_inputs,
    in_output_columns,
)
from penstock.operators.state.table_rows import stored_rows
from penstock.operators.values.row_order import Numbers
from penstock.state.backends.base import OpenState, OpenTable
from penstock.state.backends.sorted_lookup import lookup
from penstock.state.backends.sorted_rows import SortedBatch, concat_batches, sorting_positions
from penstock.state.handle import GENERATION_SHIFT, Due
from penstock.state.keys import SORT_KEY, Flags, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US
from penstock.state.sizes import PART_BYTES, cut

if TYPE_CHECKING:
    from penstock.operators.join.spec import JoinSpec


KEYS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Stored:
    """Stored rows with their identities, and which of them had a partner before this batch."""

    rows: InputRows
    identity: pa.RecordBatch
    sort_keys: Numbers
    had_matched: Flags


class JoinTables:
    """The stored rows of one input in one batch."""

    def __init__(self, given: JoinInput, key: pa.Schema, state: OpenState, clock: OperatorClock) -> None:
        self._given, self._clock = given, clock
        self._key_width = len(key)
        self._identity_schema = pa.schema([*key, PLACE])
        self._rows = state.table(given.rows)
        waits = given.outer and given.ends_us is not None
        self._waiting: OpenTable | None = state.table(given.waiting) if waits else None
        self._place = state.generation << GENERATION_SHIFT
        self._over = given.cannot_match_from(clock.watermark_us)
        """After this batch, rows with a moment up to this one cannot match any more."""
        self._matched_last: list[SortedBatch] = []
        """Rows that found their first partner in the last batch in which they can match: this is not written to the state."""
        self._first_waiting: int | None = None

    def stored(self, keys: KeyBatch, wanted: Numbers) -> Iterator[Stored]:
        """The stored rows of the wanted keys, in parts."""
        width = self._key_width + 1
        for key_index, found in stored_rows(
            self._rows, keys, wanted, keys_at_once=KEYS_AT_ONCE, max_bytes=PART_BYTES
        ):
            if not found.num_rows:
                continue
            kept = found.columns[width : width + len(self._given.kept)]
            rows = InputRows.of(Timed(key_index, found.columns[-1].to_numpy()), kept)
            had = np.zeros(len(rows), dtype=np.bool_)
            if self._given.outer:
                had = found.columns[-2].to_numpy(zero_copy_only=False)
            yield Stored(rows, found.select(range(width)), keys.sort_keys[key_index], had)

    def write_new(self, keys: KeyBatch, rows: InputRows) -> Flags:
        """Write the rows that may still find a partner; returns which cannot."""
        gone: Flags = rows.timed.times <= self._over
        stay = np.flatnonzero(~gone)
        if len(stay):
            owners = keys.take(rows.timed.key_index[stay])
            places = pa.array(self._place + np.arange(len(stay), dtype=np.int64))
            self._place += len(stay)
            identity = [*owners.columns.columns, places]
            at = pa.array(stay)
            moments, matched = rows.timed.times[stay], rows.matched[stay]
            self._write(
                owners.sort_keys, identity, [column.take(at) for column in rows.columns], matched, moments
            )
            self._wait(owners.sort_keys, identity, moments, ~matched)
        return gone

    def _write(
        self,
        sort_keys: Numbers,
        identity: Sequence[pa.Array],
        kept: Sequence[pa.Array],
        matched: Flags,
        moments: Numbers,
    ) -> None:
        flags = [pa.array(matched)] if self._given.outer else []
        values = pa.RecordBatch.from_arrays([*kept, *flags, pa.array(moments)], schema=self._given.stored)
        self._rows.write(KeyBatch(sort_keys, self._identity(identity), moments), values)

    def _wait(self, sort_keys: Numbers, identity: Sequence[pa.Array], moments: Numbers, waits: Flags) -> None:
        if self._waiting is None or not waits.any():
            return
        at = pa.array(np.flatnonzero(waits))
        own = self._identity([column.take(at) for column in identity])
        moments = moments[waits]
        stamps = pa.RecordBatch.from_arrays([pa.array(moments)], names=[f"{self._given.stamp}_waiting"])
        self._waiting.write(KeyBatch(sort_keys[waits], own, moments), stamps)
        self._note_waiting(int(moments.min()))

    def _identity(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(list(columns), schema=self._identity_schema)

    def _note_waiting(self, moment_us: int) -> None:
        first = self._first_waiting
        self._first_waiting = moment_us if first is None else min(first, moment_us)

    def write_matched(self, stored: Stored) -> None:
        """Write which stored rows have found their first partner in this batch."""
        if self._waiting is None:
            return
        first = stored.rows.matched & ~stored.had_matched
        over = stored.rows.timed.times <= self._over
        stay, last = np.flatnonzero(first & ~over), np.flatnonzero(first & over)
        if len(stay):
            at = pa.array(stay)
            self._write(
                stored.sort_keys[stay],
                stored.identity.take(at).columns,
                [column.take(at) for column in stored.rows.columns],
                np.ones(len(stay), dtype=np.bool_),
                stored.rows.timed.times[stay],
            )
        if len(last):
            identity = stored.identity.take(pa.array(last)).columns
            moments = stored.rows.timed.times[last]
            self._matched_last.append(SortedBatch(stored.sort_keys[last], None, tuple(identity), (), moments))

    def waited_in_vain(self) -> Iterator[tuple[KeyBatch, InputRows]]:
        """The rows without a partner that cannot match any more after this batch, each with its own key."""
        if self._waiting is None:
            return
        before = self._given.cannot_match_from(self._clock.before_us)
        found_last = _in_order(self._matched_last)
        for batch in self._waiting.until(self._over, after=before):
            asked = _ordered(batch)
            values, found = self._rows.read(asked)
            # At least once, a checkpoint may have state of a later batch than its watermark: a merge may have dropped the row, which had
            # come out alone by then, while the note that it waits lies in a file that was not merged.
            flags = values.column(len(self._given.kept))
            matched = flags.fill_null(fill_value=False).to_numpy(zero_copy_only=False)
            alone = found & ~matched
            if found_last is not None:
                alone = alone & ~lookup([(found_last,)], asked, pa.schema([]))[1]
            at = np.flatnonzero(alone)
            if len(at):
                own = asked.take(at)
                keys = KeyBatch(own.sort_keys, own.columns.select(range(self._key_width)))
                values = values.take(pa.array(at))
                timed = Timed(np.arange(len(at)), values.columns[-1].to_numpy())
                yield keys, InputRows.of(timed, values.columns[: len(self._given.kept)])

    def next_due_us(self) -> int | None:
        """When the first waiting row cannot match any more. It may have found a partner since."""
        if self._waiting is None or self._given.ends_us is None or self._over >= FAR_AWAY_US:
            return None
        for batch in self._waiting.until(FAR_AWAY_US, after=self._over):
            self._note_waiting(int(batch.columns[-1][0].as_py()))
            break
        return None if self._first_waiting is None else self._first_waiting + self._given.ends_us


def _ordered(batch: pa.RecordBatch) -> KeyBatch:
    """Rows of a table by time, in the order of a table by key."""
    sort_keys, moments = batch.column(SORT_KEY).to_numpy(), batch.columns[-1].to_numpy()
    identity = pa.RecordBatch.from_arrays(batch.columns[1:-1], schema=pa.schema(list(batch.schema)[1:-1]))
    return KeyBatch(sort_keys, identity, moments).take(np.lexsort((moments, sort_keys)))


def _in_order(batches: Sequence[SortedBatch]) -> SortedBatch | None:
    if not batches:
        return None
    rows = concat_batches(batches)
    return rows.take(sorting_positions(rows))


PIECE_BYTES = 256 << 20
PAIRS_AT_ONCE = 1 << 20


@dataclass
class Joined:
    """The results of a batch, the late rows of each input, and the next moment at which the state changes."""

    late_left: pa.Table
    late_right: pa.Table
    results: list[pa.RecordBatch] = field(default_factory=list)
    due: Due = field(default_factory=Due)


def run_join(
    spec: JoinSpec, left: pa.Table, right: pa.Table, state: OpenState, clock: OperatorClock, *, operator: str
) -> Joined:
    """Join the rows of a batch, then let time pass. It is also called without rows, when something may be due."""
    given = [
        spec.arriving(one, rows, clock, operator=operator)
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
    """The work of one subtask in one batch."""

    def __init__(
        self, spec: JoinSpec, state: OpenState, clock: OperatorClock, results: list[pa.RecordBatch]
    ) -> None:
        self._spec = spec
        self._tables = {one.name: JoinTables(one, spec.key, state, clock) for one in (spec.left, spec.right)}
        self._results = results

    def take(self, left: Arriving, right: Arriving) -> None:
        """Match the new rows in pieces of whole keys, and write those that later rows may match."""
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
        """Match new rows with stored rows of the other input."""
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
        """Emit all pairs. `asks` is the input whose rows look up those of the other."""
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
        """Emit rows of an outer input without a key: null equals nothing, so they never match."""
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
        """Emit the rows that cannot find a partner any more; returns when the next such row is due."""
        moments = []
        for name, tables in self._tables.items():
            for keys, rows in tables.waited_in_vain():
                self._give_alone(name, keys, rows, np.ones(len(rows), dtype=np.bool_))
            moments.append(tables.next_due_us())
        return Due(event_us=min((moment for moment in moments if moment is not None), default=None))


def _parts(given: JoinInput, rows: Arriving, at: Numbers, key_index: Numbers) -> list[InputRows]:
    """The new rows of a piece, ordered by key and moment, in parts whose columns fit into arrays. Nothing is copied yet."""
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
    """Mark the rows that have a partner."""
    asking.matched |= ranges.counts > 0
    asked.matched |= ranges.found(len(asked))
