"""The shape of the simulated job: up to three counting operators, in parallel or one after another, each with its sinks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from penstock.operators.state.declarations import state_layout
from penstock.state.backends.base import StateLayout
from penstock.testing.simulation.counting import (
    KEY,
    LAYOUT,
    Counting,
    CountingInEveryKind,
    CountingMore,
    CountingWithTimers,
    first_sight,
)
from penstock.testing.simulation.workload import Fault, Item, Record, SinkKind, fault_of

FIRST = "first"
OPERATORS = (FIRST, "second", "third")
_KINDS = ("key", "group", "half")
_GROUPS = (3, 2)
"""How many keys an operator has at most; the first has those of the source."""
EVERY_KIND = state_layout(CountingInEveryKind(random.Random(0), once=False), KEY)  # noqa: S311 - never drawn from
MORE = state_layout(CountingMore(random.Random(0), once=False), KEY)  # noqa: S311 - never drawn from
WITH_TIMERS = state_layout(CountingWithTimers(random.Random(0), once=False), KEY)  # noqa: S311 - never drawn from


def letters_of(operator: str) -> str:
    """The uid of the sink for what an operator and its sinks could not take."""
    return f"{operator}-letters"


def echoes_of(operator: str) -> str:
    """The uid of the sink for an operator's side output."""
    return f"{operator}-echoes"


def sink_of(operator: str, kind: SinkKind = SinkKind.TRANSACTIONS) -> str:
    """The uid of the sink of an operator."""
    return f"{operator}-{kind.value}"


@dataclass(frozen=True)
class Topology:
    """The operators, what each of them counts, and its properties."""

    number: int
    in_sequence: bool
    """Each operator counts what the one before it emits; otherwise all read the source."""
    emits_once: bool
    faults: float = 0.0
    """How likely a record is one that cannot be taken."""
    every_kind: bool = False
    """They count in every kind of state."""
    timers: bool = False
    """They set timers."""
    keeps_more: bool = False
    """The other version of a job that changes."""

    @property
    def counting(self) -> type[Counting]:
        """The code of each operator."""
        if self.timers:
            return CountingWithTimers
        if self.keeps_more:
            return CountingMore
        return CountingInEveryKind if self.every_kind else Counting

    @property
    def layout(self) -> StateLayout:
        """The state of each operator."""
        if self.timers:
            return WITH_TIMERS
        if self.keeps_more:
            return MORE
        return EVERY_KIND if self.every_kind else LAYOUT

    @property
    def operators(self) -> tuple[str, ...]:
        """The uids of the operators in order."""
        return OPERATORS[: self.number]

    @property
    def may_be_lost(self) -> tuple[str, ...]:
        """The states that only some versions have."""
        return tuple(f"{uid}.{state}" for uid in self.operators for state in ("aside", "passed"))

    def of_run(self, run: int, *, changes: bool) -> Topology:
        """The version of a run, from 0."""
        return replace(self, keeps_more=changes and run % 2 == 1)

    @property
    def upstream(self) -> dict[str, tuple[str, ...]]:
        """The upstream operators of each operator."""
        return {uid: self.operators[:at] if self.in_sequence else () for at, uid in enumerate(self.operators)}

    def input_of(self, uid: str, records: Iterable[Record], emitted: Iterable[Item]) -> list[Item]:
        """The input of an operator in a batch: `emitted` is the output of the previous operator."""
        at = OPERATORS.index(uid)
        if at and self.in_sequence:
            return [Item(_next_key(item.key or ""), item.records) for item in emitted]
        return [Item(self._key(at, record), (record.id,)) for record in records]

    def _key(self, at: int, record: Record) -> str | None:
        return None if fault_of(record.id, self.faults) is Fault.NO_KEY else _key(at, record)

    def counts(self, uid: str, records: Iterable[Record]) -> Counter[str]:
        """The truth: what an operator has counted per key when these records are in."""
        at = OPERATORS.index(uid)
        if at and self.in_sequence and self.emits_once:
            before = {_key(at - 1, record) for record in records}
            return Counter(_next_key(key) for key in before)
        return Counter(_key(at, record) for record in records)

    def output(self, uid: str, records: Iterable[Record]) -> Counter[str]:
        """The truth: the records that these leave in a sink of an operator."""
        at = OPERATORS.index(uid)
        if self.emits_once:
            return Counter({first_sight(_key(at, record)) for record in records})
        return Counter(record.id for record in records)


def _key(at: int, record: Record) -> str:
    number = record.number
    for groups in _GROUPS[:at]:
        number %= groups
    return f"{_KINDS[at]}-{number}"


def _next_key(key: str) -> str:
    """The key of the next operator for a result under this one."""
    kind, _, number = key.partition("-")
    at = _KINDS.index(kind)
    return f"{_KINDS[at + 1]}-{int(number) % _GROUPS[at]}"
