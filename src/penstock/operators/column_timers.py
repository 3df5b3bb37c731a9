"""The timers of all keys of a piece in columns: what `state.set_timers` acts on, and what `on_timers` is given. Executors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError, UserCodeError
from penstock.operators.array_like import as_array
from penstock.operators.state.timers import EVENT_TIME, KINDS, MOMENTS, checked_kind, no_event_time
from penstock.operators.task_time import DueTimers, Timers
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US
from penstock.wording import counted

Positions = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

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
        """As user code sees them."""
        by = pa.DictionaryArray.from_arrays(pa.array(self.kind), pa.array(KINDS)).dictionary_decode()
        return pa.table({"at": pa.array(self.at_us).view(MOMENTS), "by": by})


class ColumnTimers:
    """What the calls of a piece do to timers, in their order: of what is done to one timer the last counts."""

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
        whose = positions if key_index is None else positions[self._checked(key_index, positions, what)]
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

    def _checked(self, key_index: Any, positions: Positions, what: str) -> Positions:
        column = as_array(key_index, pa.field("key_index", pa.int64()), f"{what} set")
        numbers: Positions = column.fill_null(-1).to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero((numbers < 0) | (numbers >= len(positions)))
        if len(wrong):
            raise BadRecordError(
                f"{what}: key_index[{wrong[0]}] is {column[int(wrong[0])].as_py()}, which is no position in `keys`, of which there are "
                f"{len(positions)}",
                operator=self._operator,
            )
        return numbers

    # ── firing ─────────────────────────────────────────────────────────────────────────────────

    def firing(self) -> Iterator[FiringTimers]:
        """What fires, round by round: what one round sets for moments that have passed fires in the next."""
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
    """What was done to timers."""

    key: Positions
    kind: Positions
    at_us: Positions
    is_set: Flags
    """Or deleted."""

    @classmethod
    def of(cls, key: Positions, kind: Positions, at_us: Positions, *, is_set: bool) -> _Done:
        return cls(key, kind, at_us, np.full(len(key), is_set, dtype=np.bool_))

    def only(self, which: Any) -> _Done:
        """Some of it."""
        return _Done(self.key[which], self.kind[which], self.at_us[which], self.is_set[which])


def _last_of_each(done: list[_Done]) -> _Done:
    """What counts for every timer, ordered by key, kind and moment. The sort is stable: the last of equal ones was done last."""
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
