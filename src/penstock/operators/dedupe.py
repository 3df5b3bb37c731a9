"""`dedupe`: let the first row of each value pass, and none that comes within some time of it.

Rows are taken in the order in which they come. A row passes if no row of its value has passed whose event time is less than `within` away
from its own, before it or after it. Rows in time can be near to a row that passed at time p as long as the watermark is below p + within,
so p is kept so long. Without late rows, the watermark and the cutting of rows into batches do not change the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa

from penstock.config import Duration, duration_us, seconds
from penstock.errors import ConfigError
from penstock.operators.base import LEFT, EventTimeNeed, Node, Operator, Spec, Task, TaskContext
from penstock.operators.columns import as_batch
from penstock.operators.event_time import OperatorClock, TimeColumn, Timed, in_range, judged_by_time
from penstock.operators.grouping import PieceLimits, group_rows, pieces
from penstock.operators.inputs import TaskRows
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.state.table_rows import stored_rows
from penstock.operators.values.row_order import Numbers
from penstock.operators.views import StoredTable, TableView, TimestampColumn
from penstock.state.backends.base import OpenState, StateLayout, TableLayout
from penstock.state.keys import SORT_KEY, Flags, KeyBatch
from penstock.state.lifetimes import Lifetime, Measure, stamp_name
from penstock.state.sizes import PART_BYTES, in_batches
from penstock.wording import exactly

PASSED = "passed"
KEYS_AT_ONCE = 1 << 18
PIECE_ROWS = 1 << 20
ROUNDS = 64
"""In a round, the first remaining row of each value passes. Rows that remain after this number of rounds are judged one by one."""
_TIME = pa.field("__penstock_time", pa.int64())
_ROW = "__penstock_row"


@dataclass(frozen=True, eq=False)
class Dedupe(Operator):
    """The first row of each value of the key; none that comes so near to it in event time."""

    within_us: int
    event_time: str | None = None
    """The column that the user named; None for that of the stream."""

    late_inputs: ClassVar[tuple[str, ...]] = (LEFT,)
    judges_by_time = True

    @classmethod
    def checked(
        cls, uid: str, upstream: Node, *, on: str | Sequence[str], within: Duration, event_time: str | None
    ) -> Dedupe:
        """Check the arguments; raises a `ConfigError` that says what is wrong."""
        keys = (on,) if isinstance(on, str) else tuple(on)
        if not keys or not all(isinstance(key, str) and key for key in keys) or len(set(keys)) < len(keys):
            raise ConfigError(
                f"dedupe {uid!r}: on={on!r}: it takes the names of one or more columns, each once", uid=uid
            )
        if event_time is not None and not (isinstance(event_time, str) and event_time):
            raise ConfigError(
                f"dedupe {uid!r}: event_time={event_time!r}: it takes the name of a column, such as 'at'",
                uid=uid,
            )
        within_us = duration_us("within", within, seconds("within", within, exclusive=True))
        if within_us < 1:
            raise ConfigError(
                f"within={within!r} is too short: it must be at least a microsecond", within=within
            )
        return cls(uid, upstream, keys, within_us, event_time)

    def describe(self) -> str:
        """How far apart rows have to be, to pass both."""
        return f"dedupe within {exactly(self.within_us)}"

    def needs_event_time(self) -> EventTimeNeed | None:
        """Event time decides how long values are remembered."""
        return EventTimeNeed("keeps rows as long as event time says", "they would be kept for ever")


@dataclass(frozen=True)
class DedupeSpec(Spec):
    """The options of `dedupe`, and the columns of the stream; `time` is the column with the event time."""

    columns: pa.Schema
    keys: tuple[str, ...]
    time: TimeColumn
    within_us: int

    def layout(self) -> StateLayout:
        """For each value, the moments at which a row has passed, as long as a row may be near to them."""
        key = pa.schema([self.columns.field(name) for name in self.keys])
        lifetime = Lifetime((), stamp_name(PASSED, Measure.WATERMARK), self.within_us, Measure.WATERMARK)
        passed = TableLayout(
            PASSED, pa.schema([*key, _TIME]), pa.schema([lifetime.stamp_field]), lifetimes=(lifetime,)
        )
        return StateLayout(key, pa.schema([]), (passed,))

    @property
    def output(self) -> pa.Schema:
        """The columns of the stream."""
        return self.columns

    @classmethod
    def shown(cls, table: StoredTable) -> TableView | None:
        """For each value the moments at which a row has passed."""
        if table.names != [_TIME.name]:
            return None
        return TableView(table.name, "moments", (TimestampColumn("at", _TIME.name),))

    def task(self, context: TaskContext) -> Task:
        """The work of one subtask."""
        return DedupeTask(context, self)


@dataclass
class DedupeTask(Task):
    """Lets first rows pass. Time only removes moments from its state, so it waits for nothing."""

    spec: DedupeSpec

    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        """The rows that pass; late ones are put aside."""
        given = run_dedupe(self.spec, rows.own, state, self.context.clock, operator=self.context.uid)
        self.context.late.add(given.late)
        return {RESULTS: given.passed}


@dataclass(frozen=True)
class Deduplicated:
    """The rows of a batch that pass, and those that are late."""

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
    """Which of the open rows pass: those not too near to an earlier row of their key that passed. Rows are by key, then as they came."""
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
    """Judge the remaining rows, none of which is near to a row that passed in a round.

    Of a stretch of time as long as `within_us` at most one row passes, and only it and those of the two stretches beside it can be near. So
    a value with millions of rows costs no more than as many values, in any order.
    """
    key = None
    moments: dict[int, int] = {}
    for at, row_key, time in zip(
        left.tolist(), rows.key_index[left].tolist(), rows.times[left].tolist(), strict=True
    ):
        if row_key != key:
            key, moments = row_key, {}
        stretch = time // within_us
        before, after = moments.get(stretch - 1), moments.get(stretch + 1)
        if (
            stretch not in moments
            and (before is None or time - before >= within_us)
            and (after is None or after - time >= within_us)
        ):
            moments[stretch] = time
            passed[at] = True
