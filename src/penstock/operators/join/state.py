"""What a join keeps of one input: its rows by key and moment, and which of them wait for a partner, by moment. Executors.

A row is written with its moment as the stamp, and is gone when no later row can match it: nothing is deleted. A row that finds its first
partner is written again, as one that has, where it would come out alone otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.event_time import Numbers, OperatorClock, Timed
from penstock.operators.join.inputs import PLACE, JoinInput
from penstock.operators.join.pairs import InputRows
from penstock.operators.state.table_rows import stored_rows
from penstock.state.backends.base import OpenState, OpenTable
from penstock.state.backends.equality import Flags
from penstock.state.backends.lookup import lookup
from penstock.state.backends.sorted_rows import SortedBatch, concat_batches, sorting_positions
from penstock.state.handle import GENERATION_SHIFT
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US
from penstock.state.sizes import PART_BYTES

KEYS_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Stored:
    """Rows of the state, with what identifies them, and which had found a partner before."""

    rows: InputRows
    identity: pa.RecordBatch
    sort_keys: Numbers
    had_matched: Flags


class JoinTables:
    """The tables of one input, in one batch."""

    def __init__(self, given: JoinInput, key: pa.Schema, state: OpenState, clock: OperatorClock) -> None:
        self._given, self._clock = given, clock
        self._key_width = len(key)
        self._identity_schema = pa.schema([*key, PLACE])
        self._rows = state.table(given.rows)
        waits = given.outer and given.ends_us is not None
        self._waiting: OpenTable | None = state.table(given.waiting) if waits else None
        self._place = state.generation << GENERATION_SHIFT
        self._over = given.cannot_match_from(clock.watermark_us)
        """No row with a moment up to this one can match after this batch."""
        self._matched_last: list[SortedBatch] = []
        """Rows that have found their first partner in their last batch: the state does not know it."""
        self._first_waiting: int | None = None

    def stored(self, keys: KeyBatch, wanted: Numbers) -> Iterator[Stored]:
        """The rows of the wanted keys, in parts."""
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
        """Keep the rows that may still find a partner; says which cannot."""
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
        """Note which stored rows have found their first partner now."""
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
        """The rows that cannot match any more from this batch on, and have not; each has its own key."""
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
        """When the first row that waits cannot match any more; it may have found a partner since."""
        if self._waiting is None or self._given.ends_us is None or self._over >= FAR_AWAY_US:
            return None
        for batch in self._waiting.until(FAR_AWAY_US, after=self._over):
            self._note_waiting(int(batch.columns[-1][0].as_py()))
            break
        return None if self._first_waiting is None else self._first_waiting + self._given.ends_us


def _ordered(batch: pa.RecordBatch) -> KeyBatch:
    """Rows of a table by time as those of one by key are asked for."""
    sort_keys, moments = batch.column(SORT_KEY).to_numpy(), batch.columns[-1].to_numpy()
    identity = pa.RecordBatch.from_arrays(batch.columns[1:-1], schema=pa.schema(list(batch.schema)[1:-1]))
    return KeyBatch(sort_keys, identity, moments).take(np.lexsort((moments, sort_keys)))


def _in_order(batches: Sequence[SortedBatch]) -> SortedBatch | None:
    if not batches:
        return None
    rows = concat_batches(batches)
    return rows.take(sorting_positions(rows))
