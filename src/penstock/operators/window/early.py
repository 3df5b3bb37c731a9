"""Results of windows that are still open: of those that have changed, not more often than so by the clock. Executors.

When a window changes for which none is awaited, an early result is due so long after. It says so beside its aggregates, and a row in a
table by the time of the clock finds it then. A row of that table is read once, and is gone in the next batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from penstock.operators.event_time import OperatorClock
from penstock.operators.window.kinds import Numbers
from penstock.state.backends.base import OpenState, TableLayout, with_stamps
from penstock.state.backends.equality import Flags
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, Lifetime, Measure

AWAITED = "__penstock_awaited"
"""Beside the aggregates of a window: when its next early result is due, by the clock. What is past means nothing."""
_DUE = "__penstock_due"
EARLY = "early results"
"""The name of the table."""
_STAMP = "__penstock_due_at"


def early_table(identity: pa.Schema) -> TableLayout:
    """Which windows, by what tells them apart, are to give an early result when."""
    lifetime = Lifetime((), _STAMP, 0, Measure.FIRED)
    return TableLayout(
        EARLY,
        pa.schema([*identity, (_DUE, pa.int64())]),
        with_stamps(pa.schema([]), (lifetime,)),
        by_time=True,
        lifetimes=(lifetime,),
    )


class EarlyResults:
    """One subtask in one batch."""

    def __init__(self, identity: pa.Schema, every_us: int, state: OpenState, clock: OperatorClock) -> None:
        self._identity, self._every_us, self._clock = identity, every_us, clock
        self._layout = early_table(identity)
        self._table = state.table(EARLY)
        self._waits_for = FAR_AWAY_US

    def changed(self, windows: KeyBatch, awaited: Numbers, open_: Flags) -> tuple[Numbers, Flags]:
        """Windows that have rows in this batch: when their next results are due now, and which give one in this batch.

        `awaited` says when they were due so far, 0 for windows that are new.
        """
        due = open_ & (awaited > self._clock.fired_us) & (awaited <= self._clock.now_us)
        begins = open_ & ~due & (awaited <= self._clock.now_us)
        now_awaited = np.where(begins, self._clock.now_us + self._every_us, awaited)
        self._write(windows.take(np.flatnonzero(begins)), now_awaited[begins])
        return now_awaited, due

    def _write(self, windows: KeyBatch, due: Numbers) -> None:
        if not len(windows):
            return
        columns = pa.RecordBatch.from_arrays(
            [*windows.columns.columns, pa.array(due)], schema=self._layout.identity
        )
        stamps = pa.RecordBatch.from_arrays([pa.array(due)], schema=self._layout.value)
        self._table.write(KeyBatch(windows.sort_keys, columns, due), stamps)
        self._waits_for = min(self._waits_for, int(due.min()))

    def due(self) -> Iterator[tuple[KeyBatch, Numbers]]:
        """Windows for which an early result was to be given up to now, in no order, and when. They may have closed, or be others now."""
        for rows in self._table.until(self._clock.now_us, after=self._clock.fired_us):
            identity = rows.select(self._identity.names)
            yield KeyBatch(rows.column(SORT_KEY).to_numpy(), identity), rows.column(_DUE).to_numpy()

    @property
    def waits_for(self) -> int | None:
        """When the next early result is due, after this batch."""
        stored = next(self._table.until(FAR_AWAY_US, after=self._clock.now_us), None)
        first = FAR_AWAY_US if stored is None else int(stored.column(_DUE)[0].as_py())
        found = min(first, self._waits_for)
        return None if found >= FAR_AWAY_US else found
