"""The counting operator once more, in every kind of state: what each of them holds follows from the count alone."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.operators.folded_state import AggregateFunction, AggregatingState, ReducingState
from penstock.operators.list_state import ListState
from penstock.operators.map_state import MapState
from penstock.operators.process.keyed import Context
from penstock.operators.raw_state import RawState
from penstock.operators.rows import Rows
from penstock.state.backends.base import OpenState
from penstock.testing.simulation.counting import Counting
from penstock.testing.simulation.lifeline import Violation

MARKS = 4
LAST = 3


class CountingFunction(AggregateFunction):
    """Counts what is added."""

    def create(self) -> dict[str, int]:
        """See `AggregateFunction.create`."""
        return {"n": 0}

    def add(self, accumulator: Any, value: int) -> Any:
        """See `AggregateFunction.add`."""
        accumulator["n"] += value
        return accumulator

    def merge(self, accumulator: Any, other: Any) -> Any:
        """See `AggregateFunction.merge`."""
        return self.add(accumulator, other["n"])

    def result(self, accumulator: Any) -> int:
        """See `AggregateFunction.result`."""
        return int(accumulator["n"])


def _written(number: int) -> bytes:
    return str(number).encode()


class CountingInEveryKind(Counting):
    """Changes all of them in the call that counts: entries and elements come and go."""

    added = ReducingState("long", operator.add)
    tally = AggregatingState("struct<n:long>", CountingFunction)
    raw = RawState(encode=_written, decode=int)
    marks = MapState("long", "long")
    last = ListState("long")

    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        """See `KeyedProcess.process`."""
        for at in range(self.n.value or 0, (self.n.value or 0) + sum(len(row.records) for row in rows)):
            self.added.add(1)
            self.tally.add(1)
            self.raw.value = at + 1
            self.marks[at] = at * at
            self.marks.pop(at - MARKS, None)
            self.last.append(at)
        del self.last[:-LAST]
        yield from super().process(key, rows, ctx)


class CountingMore(Counting):
    """The next version of the operator, which keeps more; the one after it does not."""

    aside = ReducingState("long", operator.add)
    passed = MapState("long", "long")

    def process(self, key: str, rows: Rows, ctx: Context) -> Iterator[tuple[object, ...]]:
        """See `KeyedProcess.process`."""
        before, passed = self.n.value or 0, dict(self.passed.items())
        if max(passed, default=-1) >= before or sum(passed.values()) != (self.aside.value or 0):
            raise Violation(f"{key} has counted to {before}, passed {passed}, and {self.aside.value} aside")
        self.passed[before] = self.passed.get(before, 0) + 1
        self.aside.add(1)
        yield from super().process(key, rows, ctx)


def check_kinds(state: OpenState, counts: Mapping[str, int]) -> None:
    """Every kind of state says what the counts say; raises `Violation`."""
    found: dict[str, dict[str, Any]] = defaultdict(lambda: {"marks": {}, "last": []})
    for batch in state.scan():
        for row in batch.to_pylist():
            found[row["key"]] |= {name: row[name] for name in ("added", "tally", "raw")}
    for batch in state.table("marks").scan():
        for row in batch.to_pylist():
            found[row["key"]]["marks"][row["marks_key"]] = row["marks"]
    for batch in state.table("last").scan():
        for row in batch.to_pylist():
            found[row["key"]]["last"].append(row["last"])
    expected = {key: _expected(count) for key, count in counts.items()}
    if dict(found) != expected:
        raise Violation(f"the kinds of state say {dict(found)}, the counts {expected}")


def _expected(count: int) -> dict[str, Any]:
    return {
        "added": count,
        "tally": {"n": count},
        "raw": _written(count),
        "marks": {at: at * at for at in range(max(0, count - MARKS), count)},
        "last": list(range(max(0, count - LAST), count)),
    }
