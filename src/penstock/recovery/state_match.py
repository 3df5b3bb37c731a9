"""What becomes of stored state whose form is not the job's: what goes along, what begins empty, what would be lost. Pure; driver.

One function decides. What it returns is what tasks perform (`recovery/state_migration.py`) and what a refusal shows: both tell the same.

What goes along is what keeps its name and loses no value. Rows are found by their key and by the keys of maps: these must stay as they
are. A state that would be lost, and an aggregate that would have nothing of what came before, have to be allowed by name.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from penstock.errors import IncompatibleStateError
from penstock.state.backends.base import VALUES, OnRescale, Parts, StateLayout, TableLayout
from penstock.state.ddl import spark_type
from penstock.state.rewriting import Conversion, Kept, StateChange, TableChange, conversion
from penstock.wording import start_option

Form = tuple[object, ...]


class Compatibility(enum.Enum):
    """What may be done about a difference."""

    FINE = "fine"
    LOSES = "loses"
    """Only if it is allowed by name."""
    IMPOSSIBLE = "impossible"
    """Only without the state of the whole operator."""


@dataclass(frozen=True)
class Difference:
    """How one state of an operator is stored, and how the job wants it."""

    name: str
    stored: str
    wanted: str
    """In Spark's names of types; empty where there is none."""
    verdict: Compatibility
    what_follows: str

    def __str__(self) -> str:
        types = " -> ".join(kind for kind in (self.stored, self.wanted) if kind)
        return f"{self.name}: {types}{' ' if types else ''}({self.what_follows})"


@dataclass(frozen=True)
class StateMatch:
    """The differences of an operator's state, and how they are overcome."""

    change: StateChange
    differences: tuple[Difference, ...]
    is_other_form: bool
    """Whether the stored state has to be rewritten, if only because columns have another order."""

    @property
    def fits(self) -> bool:
        """Whether only state would be lost that may be lost."""
        return not self._refused

    @property
    def _refused(self) -> list[Difference]:
        return [one for one in self.differences if one.verdict is not Compatibility.FINE]

    def check(self, uid: str, checkpoint: int) -> None:
        """Refuse what would lose something, with all differences; raises `IncompatibleStateError`."""
        refused = self._refused
        if not refused:
            return
        lost = [f"{uid}.{one.name}" for one in refused]
        by_name = all(one.verdict is Compatibility.LOSES for one in refused)
        allowing = start_option(drop_state=tuple(lost) if by_name else (uid,))
        lines = "".join(f"\n    {one}" for one in self.differences)
        raise IncompatibleStateError(
            f"operator {uid!r}: its state in checkpoint {checkpoint} does not fit the job; nothing was changed:{lines}\n"
            f"change the job back, give the operator another uid, or allow the loss with {allowing}",
            operator=uid,
            states=[one.name for one in refused],
        )


def match_state(stored: StateLayout, wanted: StateLayout, allowed: Collection[str] = ()) -> StateMatch:
    """What becomes of the state of one operator; `allowed` are the names of states that may be lost."""
    return _Comparison(stored, wanted, allowed).result()


def states_of(layout: StateLayout, parts: Parts) -> set[str]:
    """The names by which states of an operator may be allowed to be lost."""
    return set(_by_state(layout, parts)) if parts.divisible else set()


Member: TypeAlias = "pa.Field | TableLayout"
"""A column of the row that a key has, or a table with rows of its own."""
_Members = Mapping[tuple[bool, str], Member]
"""By whether it is a table, and its name."""


def _by_state(layout: StateLayout, parts: Parts) -> dict[str, dict[tuple[bool, str], Member]]:
    """By the user's name of each state: its stored columns and tables."""
    columns = list(layout.by_name[VALUES].visible)
    found: dict[str, dict[tuple[bool, str], Member]] = {}
    for column in columns:
        found.setdefault(parts.of_column(column.name), {})[False, column.name] = column
    for table in layout.tables:
        found.setdefault(parts.of_table(table.name), {})[True, table.name] = table
    return found


@dataclass
class _Comparison:
    stored: StateLayout
    wanted: StateLayout
    allowed: Collection[str]
    key: dict[str, Conversion] = field(default_factory=dict)
    columns: dict[str, Conversion] = field(default_factory=dict)
    """Of values, those that go along."""
    tables: dict[str, dict[str, Conversion]] = field(default_factory=dict)
    """Those that go along, with all their columns."""
    differences: list[Difference] = field(default_factory=list)

    def result(self) -> StateMatch:
        """Compare all states, and return the match."""
        self._compare_keys()
        parts = self.wanted.parts
        stored, wanted = _by_state(self.stored, parts), _by_state(self.wanted, parts)
        for name in sorted(stored.keys() | wanted.keys()):
            self._compare(name, stored.get(name, {}), wanted.get(name, {}))
        change = StateChange(self.stored, self.wanted, dict(self._changes()))
        return StateMatch(change, tuple(self.differences), _form(self.stored) != _form(self.wanted))

    # ── what goes along ────────────────────────────────────────────────────────────────────────

    def _compare_keys(self) -> None:
        found = _identities(self.stored.key, self.wanted.key)
        if found is None:
            stored, wanted = _fields(self.stored.key), _fields(self.wanted.key)
            self._add("key", stored, wanted, Compatibility.IMPOSSIBLE, "rows are found by it")
        self.key = found or {}

    def _compare(self, name: str, stored: _Members, wanted: _Members) -> None:
        before, now = (_described(name, members, self.wanted.parts) for members in (stored, wanted))
        if stored.keys() == wanted.keys() and self._goes_along(stored, wanted):
            if before != now:
                self._add(name, before, now, Compatibility.FINE, "goes along")
        elif not self.wanted.parts.divisible:
            self._add(name, before, now, Compatibility.IMPOSSIBLE, _what_is_wrong(before, now))
        elif self.wanted.parts.may_begin_empty and not stored:
            self._add(name, before, now, Compatibility.FINE, "new, begins empty")
        elif name in self.allowed:
            self._add(name, before, now, Compatibility.FINE, "begins anew" if wanted else "dropped")
        else:
            self._add(name, before, now, Compatibility.LOSES, _what_is_wrong(before, now))

    def _add(self, name: str, stored: str, wanted: str, verdict: Compatibility, what_follows: str) -> None:
        self.differences.append(Difference(name, stored, wanted, verdict, what_follows))

    def _goes_along(self, stored: _Members, wanted: _Members) -> bool:
        """Whether all that a state consists of can become what it is to be; then it is noted how."""
        columns: dict[str, Conversion] = {}
        tables: dict[str, dict[str, Conversion]] = {}
        for (is_table, name), before in stored.items():
            now = wanted[is_table, name]
            if isinstance(before, TableLayout) or isinstance(now, TableLayout):
                of_table = self._of_table(before, now)
                if of_table is None:
                    return False
                tables[name] = of_table
            else:
                of_column = conversion(before.type, now.type)
                if of_column is None:
                    return False
                columns[name] = of_column
        self.columns |= columns
        self.tables |= tables
        return True

    def _of_table(self, stored: TableLayout, wanted: TableLayout) -> dict[str, Conversion] | None:
        if (stored.ordered, stored.by_time) != (wanted.ordered, wanted.by_time):
            return None
        of_keys = wanted.on_rescale is OnRescale.BY_KEY
        skipped = (len(self.stored.key), len(self.wanted.key)) if of_keys else (0, 0)
        identity = _identities(
            pa.schema(list(stored.identity)[skipped[0] :]), pa.schema(list(wanted.identity)[skipped[1] :])
        )
        if identity is None or set(stored.visible.names) != set(wanted.visible.names):
            return None
        values = {one.name: conversion(stored.value.field(one.name).type, one.type) for one in wanted.visible}
        known = {name: how for name, how in values.items() if how is not None}
        return {**identity, **known} if len(known) == len(values) else None

    # ── conversion ─────────────────────────────────────────────────────────────────────────

    def _changes(self) -> Iterator[tuple[str, TableChange]]:
        stored, wanted = self.stored.by_name, self.wanted.by_name
        before, now = stored[VALUES], wanted[VALUES]
        if self.columns or not (before.visible.names or now.visible.names):
            yield (
                VALUES,
                TableChange(
                    now,
                    {**self.key, **self.columns, **_stamps(before, now, self.columns)},
                    _first_values(now, self.columns, self.wanted.parts),
                    loses_columns=bool(set(before.visible.names) - set(self.columns)),
                ),
            )
        for name, columns in self.tables.items():
            key = self.key if wanted[name].on_rescale is OnRescale.BY_KEY else {}
            stamps = _stamps(stored[name], wanted[name], columns)
            yield name, TableChange(wanted[name], {**key, **columns, **stamps})


def _identities(stored: pa.Schema, wanted: pa.Schema) -> dict[str, Conversion] | None:
    """How the columns that rows are found by go along: as they are. At most what Spark says about nulls may differ."""
    if _fields(stored) != _fields(wanted):
        return None
    found = {one.name: conversion(stored.field(one.name).type, one.type) for one in wanted}
    known = {name: how for name, how in found.items() if how is not None}
    return known if len(known) == len(found) else None


def _stamps(stored: TableLayout, wanted: TableLayout, carried: Collection[str]) -> dict[str, Conversion]:
    """The stamps that are carried over: those of columns that are carried over."""
    known = {one.stamp: one for one in stored.lifetimes}
    return {
        one.stamp: Kept()
        for one in wanted.lifetimes
        if one.stamp in known
        and (not known[one.stamp].columns or set(known[one.stamp].columns) & set(carried))
    }


def _first_values(values: TableLayout, carried: Collection[str], parts: Parts) -> dict[str, object]:
    """The values that stored keys get in new columns."""
    found = {name: parts.first_value(name) for name in values.visible.names if name not in carried}
    return {name: value for name, value in found.items() if value is not None}


def _form(layout: StateLayout) -> Form:
    """What has to be the same for stored state to be read as it is."""
    return tuple(
        (table.name, *map(_exactly, (table.identity, table.visible)), table.ordered, table.by_time)
        for table in layout.by_name.values()
    )


def _exactly(schema: pa.Schema) -> Form:
    return tuple((one.name, one.type) for one in schema)


# ── descriptions ─────────────────────────────────────────────────────────────────────────────


def _what_is_wrong(stored: str, wanted: str) -> str:
    if not stored:
        return "new, it would have nothing of what came before"
    return "its values cannot become these" if wanted else "gone"


def _described(state: str, members: _Members, parts: Parts) -> str:
    return ", ".join(_member(state, one, parts, alone=len(members) == 1) for one in members.values())


def _member(state: str, member: Member, parts: Parts, *, alone: bool) -> str:
    if isinstance(member, TableLayout):
        return parts.table_words(member.name) or _table(state, member)
    words, kind = parts.column_words(member.name), spark_type(member.type)
    return kind if alone or not words else f"{words} {kind}"


def _table(state: str, table: TableLayout) -> str:
    last, values = table.identity.field(-1), [spark_type(one.type) for one in table.visible]
    if len(values) == 1 and last.name == f"{state}_key":
        return f"map<{spark_type(last.type)},{values[0]}>"
    if len(values) == 1 and last.name == f"{state}_position":
        return f"list<{values[0]}>"
    return f"rows ({_fields(table.identity)}) with ({_fields(table.visible)})"


def _fields(schema: Iterable[pa.Field]) -> str:
    return ", ".join(f"{one.name} {spark_type(one.type)}" for one in schema)
