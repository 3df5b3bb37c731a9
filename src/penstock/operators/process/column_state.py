"""State and timers of many keys as columns: what `process_batch` and `on_timers` read and set, and what is written. Executors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadRecordError, UserCodeError
from penstock.operators.columns import Positions
from penstock.operators.process.user_code import Context
from penstock.operators.state.batch_tables import BatchTable, as_flags, key_positions
from penstock.operators.state.declarations import ColumnState
from penstock.operators.state.task_time import DueTimers, Timers
from penstock.operators.state.timers import EVENT_TIME, KINDS, MOMENTS, checked_kind, no_event_time
from penstock.operators.state.ttl import ColumnStamps
from penstock.operators.values.array_like import as_array
from penstock.state.keys import Flags, KeyBatch, rows_equal
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US
from penstock.wording import counted

MOST_ROUNDS = 10_000
"""So often `on_timers` may be called in one batch for what does not bring time on: more look like a circle without an end."""


@dataclass(frozen=True)
class FiringTimers:
    """Timers that fire together: whose, of which kind and for which moment. Ordered by key, kind and moment."""

    key: Positions
    """The position in the piece."""
    kind: Positions
    at_us: Positions

    def table(self) -> pa.Table:
        """The timers as columns for user code."""
        by = pa.DictionaryArray.from_arrays(pa.array(self.kind), pa.array(KINDS)).dictionary_decode()
        return pa.table({"at": pa.array(self.at_us).view(MOMENTS), "by": by})


class ColumnTimers:
    """The timers that the calls of a piece set and delete, in their order: of several changes to one timer the last counts."""

    def __init__(self, timers: Timers, keys: KeyBatch, due: DueTimers, operator: str) -> None:
        self._timers, self._keys, self._operator = timers, keys, operator
        self._limits = np.array(timers.limits_us, dtype=np.int64)
        whose = np.repeat(np.arange(len(keys), dtype=np.int64), np.diff(due.starts))
        self._due = [_Done.of(whose, due.kind, due.at_us, is_set=True)] if len(whose) else []
        """Done to timers that are due in this batch, and have not fired."""
        self._later: list[_Done] = []
        self._first = np.full((len(KINDS), len(keys)), LONG_AGO_US, dtype=np.int64)
        """By kind and key the first moment of the last round in which a timer fired."""

    # ── what user code does ────────────────────────────────────────────────────────────────────

    def change(
        self, at: Any, key_index: Any, by: Any, positions: Positions, call: str, *, is_set: bool
    ) -> None:
        """Set or delete timers; null is none. `positions`: which keys of the piece the call sees; `key_index`: which of those, or None."""
        what = f"operator {self._operator}: {call}"
        kind = KINDS.index(checked_kind(by, what))
        if KINDS[kind] == EVENT_TIME and not self._timers.has_event_time:
            raise no_event_time(self._operator, call)
        moments = as_array(at, pa.field("at", MOMENTS), f"{what} set")
        whose = positions
        if key_index is not None:
            whose = positions[key_positions(key_index, len(positions), what, {"operator": self._operator})]
        if len(whose) != len(moments):
            keys = "key" if key_index is None else "value"
            of = "" if key_index is None else " of key_index"
            raise BadRecordError(
                f"{what} set 'at' to {counted(len(moments), 'value')} for {counted(len(whose), keys)}{of}; one for each, null for none",
                operator=self._operator,
            )
        known = np.flatnonzero(moments.is_valid().to_numpy(zero_copy_only=False))
        at_us = moments.view(pa.int64()).take(pa.array(known)).to_numpy()
        done = _Done.of(whose[known], np.full(len(known), kind, dtype=np.int64), at_us, is_set=is_set)
        is_due = at_us <= self._limits[kind]
        for into, which in ((self._due, is_due), (self._later, ~is_due)):
            if which.any():
                into.append(done.only(which))

    # ── firing ─────────────────────────────────────────────────────────────────────────────────

    def firing(self) -> Iterator[FiringTimers]:
        """The timers that fire, round by round: timers that a round sets for moments that have passed fire in the next."""
        rounds = 0
        while self._due and rounds < MOST_ROUNDS:
            done, self._due = _last_of_each(self._due), []
            fires = done.only(done.is_set)
            if len(fires.key):
                rounds += not self._bring_time_on(fires)
                self._timers.fired += len(fires.key)
                yield FiringTimers(fires.key, fires.kind, fires.at_us)
        if self._due:
            raise self._circle()

    def _bring_time_on(self, fires: _Done) -> bool:
        """Whether each key and kind begins later than in its last round, and time does not go on for ever: that ends.

        One round fires all that is due, also moments far ahead of what the next round has.
        """
        whose = fires.kind, fires.key
        before, self._first[whose] = self._first[whose], fires.at_us
        np.minimum.at(self._first, whose, fires.at_us)
        later = self._first[whose] > before
        return bool((later & (self._limits[fires.kind] < FAR_AWAY_US)).all())

    def _circle(self) -> UserCodeError:
        return UserCodeError(
            f"operator {self._operator}: on_timers() has set timers for moments that have passed, and each fired at once, "
            f"{counted(MOST_ROUNDS, 'time')} in a row: this may never end. When a drained input has ended, every moment has "
            "passed and state.context.watermark is datetime.max: set no further timers then",
            operator=self._operator,
        )

    def write(self) -> None:
        """Write what was set and deleted; called once, when all calls for the keys are over."""
        if not self._later:
            return
        done = _last_of_each(self._later)
        for kind in range(len(KINDS)):
            mine = done.only(done.kind == kind)
            self._timers.write(self._keys, kind, mine.key, mine.at_us, ~mine.is_set)


@dataclass(frozen=True)
class _Done:
    """Changes of timers: set or deleted."""

    key: Positions
    kind: Positions
    at_us: Positions
    is_set: Flags
    """Or deleted."""

    @classmethod
    def of(cls, key: Positions, kind: Positions, at_us: Positions, *, is_set: bool) -> _Done:
        return cls(key, kind, at_us, np.full(len(key), is_set, dtype=np.bool_))

    def only(self, which: Any) -> _Done:
        """The changes that are flagged, or at these positions."""
        return _Done(self.key[which], self.kind[which], self.at_us[which], self.is_set[which])


def _last_of_each(done: list[_Done]) -> _Done:
    """The last change of every timer, ordered by key, kind and moment. The sort is stable, so of equal ones the last was made last."""
    both = _Done(
        np.concatenate([one.key for one in done]),
        np.concatenate([one.kind for one in done]),
        np.concatenate([one.at_us for one in done]),
        np.concatenate([one.is_set for one in done]),
    )
    both = both.only(np.lexsort((both.at_us, both.kind, both.key)))
    differs = np.zeros(len(both.key), dtype=np.bool_)
    for column in (both.key, both.kind, both.at_us):
        differs[:-1] |= column[1:] != column[:-1]
    differs[-1:] = True
    return both.only(differs)


# ── state ──────────────────────────────────────────────────────────────────────────────────────────


class BatchState:
    """One value per key and state: `state["count"]` is an Arrow array in the order of `keys`, `state["count"] = ...` replaces it.

    `state["by_shop"]` of a map or list has the rows of all keys: see `BatchMap` and `BatchList`.
    What is assigned or deleted is written when `process_batch` has returned, except for keys whose values are what they were.
    `context` says where the call happens.
    """

    def __init__(
        self,
        declared: dict[str, ColumnState],
        stored: pa.RecordBatch,
        context: Context,
        tables: Mapping[str, BatchTable],
        *,
        values: Mapping[str, pa.Array],
        expiring: Mapping[str, ColumnStamps],
        positions: Positions,
        timers: ColumnTimers | None,
        call: str,
    ) -> None:
        self._declared = declared
        self._tables = tables
        self._stored: dict[str, pa.Array] = {name: stored.column(name) for name in declared}
        self._renewed: set[str] = set()
        self._expiring = expiring
        self.values = dict(values)
        """The columns as they are now, by name; an earlier call of the batch may have changed them already."""
        self._assigned: set[str] = set()
        self._keys: int = stored.num_rows
        self.positions = positions
        """Which keys of the piece these are."""
        self._timers = timers
        self._call = call
        self.context = context

    def __len__(self) -> int:
        return self._keys

    def __getitem__(self, name: str) -> Any:
        """The values of all keys; the default where there is none, null where there is no default. Of a map or list its rows."""
        if name in self._tables:
            return self._tables[name]
        values, default = self.values[self._known(name)], self._declared[name].default
        if name in self._expiring and self._expiring[name].renews:
            self._renewed.add(name)
        if default is None or not values.null_count:
            return values
        filled = pa.concat_arrays([values, pa.array([default], type=values.type)])
        at = np.arange(len(values), dtype=np.int64)
        at[as_flags(values.is_null())] = len(values)
        return filled.take(pa.array(at))

    def __setitem__(self, name: str, values: Any) -> None:
        if name in self._tables:
            raise BadRecordError(
                f"operator {self.context.operator}: {self._call} set the state {name!r}, which {self._tables[name].members}; "
                "it cannot be replaced as a whole",
                operator=self.context.operator,
                state=name,
            )
        field = pa.field(self._known(name), self._declared[name].arrow_type)
        what = f"operator {self.context.operator}: {self._call} set the state"
        self.values[name] = self._checked_length(as_array(values, field, what), f"{what} {name!r} to")
        self._assigned.add(name)

    def delete(self, mask: Any) -> None:
        """Forget all that is kept for the keys where the mask is true (null counts as false). What is assigned later counts."""
        what = f"operator {self.context.operator}: {self._call} called delete(): it set"
        gone = as_array(mask, pa.field("mask", pa.bool_()), what)
        gone = as_flags(self._checked_length(gone, f"{what} 'mask' to").fill_null(fill_value=False))
        kept = pa.array(np.arange(self._keys, dtype=np.int64), mask=gone)
        self.values = {name: values.take(kept) for name, values in self.values.items()}
        for table in self._tables.values():
            table.clear(gone)

    def set_timers(self, at: Any, key_index: Any = None, by: str = EVENT_TIME) -> None:
        """Have `on_timers` called when event time has come to these moments, or with `by="clock"` the driver's clock.

        One moment for each of `keys`, null for none; or with `key_index` any number, as `batch.key_index` says whose they are. A key has
        one timer for each moment and kind. Those for moments that have passed fire at once, in the same batch.
        """
        self._own_timers("set_timers").change(
            at, key_index, by, self.positions, f"{self._call} called set_timers()", is_set=True
        )

    def delete_timers(self, at: Any, key_index: Any = None, by: str = EVENT_TIME) -> None:
        """Forget the timers for these moments, whether there are such or not."""
        self._own_timers("delete_timers").change(
            at, key_index, by, self.positions, f"{self._call} called delete_timers()", is_set=False
        )

    def _own_timers(self, call: str) -> ColumnTimers:
        if self._timers is None:
            raise UserCodeError(
                f"operator {self.context.operator}: {self._call} called {call}(), but its class does not say what to do when timers fire; "
                "write def on_timers(self, keys, timers, state)",
                operator=self.context.operator,
                is_wrong_name=True,
            )
        return self._timers

    def touched(self, name: str) -> Flags:
        """The keys whose value must be written: it changed, or it has a time to live and was assigned, or read if reading renews it."""
        values, stored = self.values[name], self._stored[name]
        touched = np.zeros(self._keys, dtype=np.bool_)
        if name in self._renewed:
            touched |= as_flags(stored.is_valid())
        if values is stored:
            return touched
        if name in self._assigned and (name in self._expiring or pa.types.is_nested(values.type)):
            # where nothing expires comparing may cost more than writing
            return touched | as_flags(values.is_valid()) | as_flags(stored.is_valid())
        if pa.types.is_nested(values.type):
            different: Flags = as_flags(values.is_null()) != as_flags(stored.is_null())
        else:
            different = ~rows_equal([values], [stored])
        return touched | different

    def _known(self, name: str) -> str:
        if name not in self._declared:
            declared = ", ".join(sorted([*self._declared, *self._tables])) or "none"
            raise BadRecordError(
                f"operator {self.context.operator}: {self._call} used the state {name!r}; declared are: {declared}"
            )
        return name

    def _checked_length(self, values: pa.Array, what: str) -> pa.Array:
        if len(values) != self._keys:
            raise BadRecordError(
                f"{what} {counted(len(values), 'value')} for {counted(self._keys, 'key')}; give one value for each of `keys`, in that order"
            )
        return values
