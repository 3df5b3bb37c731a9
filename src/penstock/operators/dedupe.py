"""Let the first row of each value pass, and none that comes within some time of it. Executors.

Rows are taken in the order in which they come. A row passes if no row of its value has passed whose event time is less than `within` away
from its own, before it or behind it. What has passed at time p is asked for by rows that are in time as long as the watermark is below
p + within: so it is kept so long, and without late rows the watermark, and how rows are cut into batches, changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.operators.clock import OperatorClock
from penstock.operators.grouping import group_rows
from penstock.operators.pieces import PieceLimits, pieces
from penstock.operators.stored_rows import stored_rows
from penstock.operators.time_column import TimeColumn
from penstock.operators.time_ranges import Numbers, Timed, in_range
from penstock.operators.times_of_rows import judged_by_time
from penstock.operators.wide_columns import as_batch
from penstock.state.backends.base import OpenState, StateLayout, TableLayout
from penstock.state.backends.equality import Flags
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.lifetimes import Lifetime, Measure, stamp_name
from penstock.state.sizes import PART_BYTES, in_batches

PASSED = "passed"
KEYS_AT_ONCE = 1 << 18
PIECE_ROWS = 1 << 20
ROUNDS = 64
"""In a round the first row that is left of each value passes. What is left after so many is looked at row by row."""
_TIME = pa.field("__penstock_time", pa.int64())
_ROW = "__penstock_row"


@dataclass(frozen=True)
class DedupeSpec:
    """What `dedupe` was asked for, and the columns of the stream; `time` is the column with the event time."""

    columns: pa.Schema
    keys: tuple[str, ...]
    time: TimeColumn
    within_us: int

    def layout(self) -> StateLayout:
        """What is kept: for each value the moments at which a row has passed, as long as somebody may ask."""
        key = pa.schema([self.columns.field(name) for name in self.keys])
        lifetime = Lifetime((), stamp_name(PASSED, Measure.WATERMARK), self.within_us, Measure.WATERMARK)
        passed = TableLayout(
            PASSED, pa.schema([*key, _TIME]), pa.schema([lifetime.stamp_field]), lifetimes=(lifetime,)
        )
        return StateLayout(key, pa.schema([]), (passed,))


@dataclass(frozen=True)
class Deduplicated:
    """What came of the rows of a batch: those that pass, and those that were late."""

    passed: list[pa.RecordBatch]
    late: pa.Table


def run_dedupe(
    spec: DedupeSpec, table: pa.Table, state: OpenState, clock: OperatorClock, *, operator: str
) -> Deduplicated:
    """Take the rows of a batch in: columns in, columns out."""
    judged = judged_by_time(table, spec.time, clock, operator=operator)
    rows = judged.rows
    if not rows.num_rows:
        return Deduplicated([], judged.late)
    numbers = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    asked = rows.select([SORT_KEY, *spec.keys]).append_column(_ROW, numbers)
    passed = np.zeros(rows.num_rows, dtype=np.bool_)
    for piece in pieces(group_rows(asked, list(spec.keys)), PieceLimits(PART_BYTES, PIECE_ROWS)):
        at = piece.table.column(_ROW).to_numpy()
        key_index = np.repeat(np.arange(len(piece.keys)), np.diff(piece.starts))
        passed[at] = _first_ones(spec, state, piece.keys, Timed(key_index, judged.times[at]))
    results = rows.filter(pa.array(passed)).select(spec.columns.names)
    return Deduplicated([as_batch(part, spec.columns) for part in in_batches(results)], judged.late)


def _first_ones(spec: DedupeSpec, state: OpenState, keys: KeyBatch, rows: Timed) -> Flags:
    """Which rows pass; they are written."""
    table = state.table(PASSED)
    open_ = np.ones(len(rows), dtype=np.bool_)
    everyone = np.arange(len(keys))
    for key_index, stored in stored_rows(
        table, keys, everyone, keys_at_once=KEYS_AT_ONCE, max_bytes=PART_BYTES
    ):
        known = Timed(key_index, stored.column(_TIME.name).to_numpy())
        near = in_range(
            known, rows.key_index, rows.times - (spec.within_us - 1), rows.times + (spec.within_us - 1)
        )
        open_ &= near.counts == 0
    passed = first_apart(rows, open_, spec.within_us)
    times = pa.array(rows.times[passed])
    owners = keys.take(rows.key_index[passed])
    identity = pa.RecordBatch.from_arrays(
        [*owners.columns.columns, times], schema=pa.schema([*owners.columns.schema, _TIME])
    )
    stamps = pa.RecordBatch.from_arrays([times], names=[stamp_name(PASSED, Measure.WATERMARK)])
    table.write(KeyBatch(owners.sort_keys, identity, rows.times[passed]), stamps)
    return passed


def first_apart(rows: Timed, open_: Flags, within_us: int) -> Flags:
    """Of the open rows, by key and then as they came, those that are not too near to one of their key that has passed before."""
    passed = np.zeros(len(rows), dtype=np.bool_)
    left: Numbers = np.flatnonzero(open_)
    for _ in range(ROUNDS):
        if not len(left):
            return passed
        keys = rows.key_index[left]
        new_key = np.concatenate(([True], keys[1:] != keys[:-1]))
        leaders = left[new_key]
        passed[leaders] = True
        own_leader = leaders[np.cumsum(new_key) - 1]
        left = left[np.abs(rows.times[left] - rows.times[own_leader]) >= within_us]
    _one_by_one(rows, left, within_us, passed)
    return passed


def _one_by_one(rows: Timed, left: Numbers, within_us: int, passed: Flags) -> None:
    """What is left, none of which is near to a row of the rounds.

    Of a stretch of time as long as `within_us` at most one row passes, and only it and those of the two stretches beside it can be near: so
    a value with millions of rows costs no more than as many values, in whatever order they come.
    """
    key = None
    moments: dict[int, int] = {}
    for at, row_key, time in zip(
        left.tolist(), rows.key_index[left].tolist(), rows.times[left].tolist(), strict=True
    ):
        if row_key != key:
            key, moments = row_key, {}
        stretch = time // within_us
        before, behind = moments.get(stretch - 1), moments.get(stretch + 1)
        if (
            stretch not in moments
            and (before is None or time - before >= within_us)
            and (behind is None or behind - time >= within_us)
        ):
            moments[stretch] = time
            passed[at] = True
