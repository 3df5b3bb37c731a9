"""The timers of the current key, for `ctx.set_timer` while an operator runs key by key. Executors."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.errors import UserCodeError
from penstock.operators.state.cells import Cell
from penstock.operators.state.task_time import DueTimers, Timers
from penstock.operators.state.timers import (
    CLOCK,
    EVENT_TIME,
    KINDS,
    MOMENTS,
    Timer,
    checked_kind,
    microseconds,
    moment,
    no_event_time,
)
from penstock.operators.values.python_values import python_values
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US

MOST_IN_A_ROW = 1_000_000
"""Timers that `on_timer` may set for one key in one batch without advancing time, and that fire at once: more look like a loop."""

_Due = tuple[int, int, Timer]
"""The position of its kind in `KINDS`, its moment, and what user code sees: timers of a key fire in the order of the first two."""
_Alive = set[tuple[int, int]]
"""Timers by kind and moment."""
_Change = tuple[int, int, bool | None]
"""Of which kind and moment, and what was there before: of what is written that, or None for nothing; of what is due whether it was."""


class TimersCell(Cell):
    """The timers of the current key. Those that are due in this batch are only remembered; others are written when the piece is over.

    What most keys do costs little: set one timer, or have one that fires.
    """

    __slots__ = (
        "_alive",
        "_call",
        "_changed",
        "_due",
        "_heap",
        "_in_a_row",
        "_is_firing",
        "_journal",
        "_key",
        "_keys",
        "_limits",
        "_newest",
        "_operator",
        "_starts",
        "_timers",
        "fired_us",
    )

    members = "timers are set and deleted by ctx.set_timer() and ctx.delete_timer()"

    def __init__(self, timers: Timers, operator: str) -> None:
        super().__init__("timers")
        self._timers, self._operator = timers, operator
        self._limits = timers.limits_us
        self._call = {name: f"operator {operator}: {name}()" for name in ("set_timer", "delete_timer")}
        self._changed: tuple[dict[int, dict[int, bool]], ...] = ({}, {})
        """By kind and key: the moments to be written. False for what is to be deleted."""
        self._journal: list[_Change] | None = None
        """What calls of the current key have changed; kept only where one of them may have to be undone."""
        self._key = -1
        """Whose timers are in the heap."""
        self.fired_us = 0
        """The event time at which the last timer fired: that of a timer by the clock is where the watermark has come to."""

    def load(self, keys: KeyBatch, due: DueTimers) -> None:
        """The keys that come next, and which of their timers are due."""
        self._keys = keys
        kinds, at_us = due.kind.tolist(), due.at_us.tolist()
        moments = python_values(pa.array(due.at_us).view(MOMENTS))
        timers = map(Timer, moments, [KINDS[kind] for kind in kinds])
        self._starts: list[int] = due.starts.tolist()
        self._due: list[_Due] = list(zip(kinds, at_us, timers, strict=True))
        self._changed = ({}, {})
        self._journal, self._key, self.at = None, -1, 0

    def _turn(self) -> None:
        """The turn has come to another key."""
        at = self._key = self.at
        self._heap: list[_Due] = self._due[self._starts[at] : self._starts[at + 1]]  # in order, as a heap is
        self._alive: _Alive | None = None
        """Those in the heap that have not been deleted; None while these are all."""
        self._journal = None
        self._is_firing = False
        self._in_a_row = 0
        self._newest = [LONG_AGO_US, LONG_AGO_US]
        """By kind the newest moment for which a timer of the key has fired."""

    # ── what user code does ────────────────────────────────────────────────────────────────────

    def set(self, at: Any, by: Any) -> None:
        """Set a timer of the current key; once more is none."""
        kind = self._kind("set_timer", by)
        us = microseconds(at, self._call["set_timer"])
        if us > self._limits[kind]:
            changed = self._changed[kind]
            if self._journal is None and self.at not in changed:  # what most keys do
                changed[self.at] = {us: True}
            else:
                self._change(kind, us, is_set=True)
        elif (kind, us) not in (alive := self._due_now()):
            self._check_end(kind, us)
            self._note(kind, us, before=False)
            alive.add((kind, us))
            heappush(self._heap, (kind, us, Timer(moment(us), KINDS[kind])))

    def delete(self, at: Any, by: Any) -> None:
        """Delete a timer of the current key, if there is such a one."""
        kind = self._kind("delete_timer", by)
        us = microseconds(at, self._call["delete_timer"])
        if us > self._limits[kind]:
            self._change(kind, us, is_set=False)
        elif (kind, us) in (alive := self._due_now()):
            self._note(kind, us, before=True)
            alive.discard((kind, us))

    def _kind(self, call: str, by: Any) -> int:
        if by == CLOCK:
            return 1
        if by != EVENT_TIME:
            checked_kind(by, self._call[call])
        if not self._timers.has_event_time:
            raise no_event_time(self._operator, f"{call}()")
        return 0

    def _change(self, kind: int, us: int, *, is_set: bool) -> None:
        changed = self._changed[kind]
        changes = changed.get(self.at)
        if changes is None:
            changes = changed[self.at] = {}
        if self._journal is not None:
            self._note(kind, us, before=changes.get(us))
        changes[us] = is_set

    def _note(self, kind: int, us: int, *, before: bool | None) -> None:
        if self._journal is not None:
            self._journal.append((kind, us, before))

    def _due_now(self) -> _Alive:
        if self._key != self.at:
            self._turn()
        if self._alive is None:
            self._alive = {(kind, us) for kind, us, _ in self._heap}
        return self._alive

    def _check_end(self, kind: int, us: int) -> None:
        """Refuse an endless chain. Timers that are later than all that fired end at the time of the batch, unless time has ended."""
        if not self._is_firing or (us > self._newest[kind] and self._limits[kind] < FAR_AWAY_US):
            return
        self._in_a_row += 1
        if self._in_a_row > MOST_IN_A_ROW:
            raise UserCodeError(
                f"operator {self._operator}: on_timer() of one key has set {MOST_IN_A_ROW:,} timers in one batch for moments that have "
                "passed, and each fired at once: this may never end. When a drained input has ended, every moment has passed and "
                "ctx.watermark is datetime.max: set no further timer then",
                operator=self._operator,
            )

    # ── firing ─────────────────────────────────────────────────────────────────────────────────

    def is_due(self) -> bool:
        """Whether a timer of the current key fires next."""
        if self._key != self.at:
            return self._starts[self.at] < self._starts[self.at + 1]
        return bool(self._heap if self._alive is None else self._alive)

    def next_due(self) -> Timer | None:
        """The next timer of the current key that fires; it is gone then, also if its call fails."""
        if self._key != self.at:
            if self._starts[self.at] == self._starts[self.at + 1]:
                return None
            self._turn()
        while self._heap:
            kind, us, timer = heappop(self._heap)
            if self._alive is not None:
                if (kind, us) not in self._alive:
                    continue
                self._alive.discard((kind, us))
            self._is_firing = True
            self._newest[kind] = max(self._newest[kind], us)
            self._timers.fired += 1
            self.fired_us = us if kind == 0 else self._timers.touched_us
            return timer
        return None

    # ── a call that counts for nothing ─────────────────────────────────────────────────────────

    @override
    def undo(self, index: int) -> None:
        """Forgets the changes of a key; its stored timers stay due."""
        for changed in self._changed:
            changed.pop(index, None)
        if index == self._key:
            self._key = -1

    @override
    def memo(self) -> int:
        if self._key != self.at:
            self._turn()
        if self._journal is None:
            self._journal = []
        return len(self._journal)

    @override
    def back_to(self, memo: Any) -> None:
        journal = self._journal or []
        while len(journal) > memo:
            kind, us, before = journal.pop()
            if us <= self._limits[kind]:
                alive = self._due_now()
                (alive.add if before else alive.discard)((kind, us))
            elif before is None:
                del self._changed[kind][self.at][us]
            else:
                self._changed[kind][self.at][us] = before

    # ── what is written ────────────────────────────────────────────────────────────────────────

    def write(self) -> None:
        """Write what was set and deleted; called once, when all calls for the keys are over."""
        for kind, changed in enumerate(self._changed):
            counts = np.fromiter(map(len, changed.values()), dtype=np.int64, count=len(changed))
            keys = np.fromiter(changed, dtype=np.int64, count=len(changed))
            total = int(counts.sum())
            at_us = np.fromiter(chain.from_iterable(changed.values()), dtype=np.int64, count=total)
            every = chain.from_iterable(changes.values() for changes in changed.values())
            is_set = np.fromiter(every, dtype=np.bool_, count=total)
            self._timers.write(self._keys, kind, np.repeat(keys, counts), at_us, ~is_set)
