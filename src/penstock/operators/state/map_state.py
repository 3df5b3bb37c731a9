"""`MapState`: many entries for a key, each a row of its own. Driver (declared) and executors (run)."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from datetime import date
from typing import TYPE_CHECKING, Any, Self, overload

import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError, ConfigError
from penstock.operators.state.batch_tables import BatchMap
from penstock.operators.state.cells import deep_copy, may_be_changed, safe_copy, stored_equal
from penstock.operators.state.declarations import TableState
from penstock.operators.state.table_cells import Changes, RowChange, TableCell
from penstock.operators.state.ttl import TTL, TimeToLive
from penstock.operators.values.encoding import CANNOT_ENCODE, encoded
from penstock.operators.values.python_values import python_values
from penstock.state.backends.base import TableLayout, with_stamps
from penstock.state.ddl import arrow_type, type_ddl

if TYPE_CHECKING:
    from penstock.state.ddl import Type


class _Gone:
    """Stands for an entry that was deleted."""


_GONE = _Gone()
_Entries = dict[Any, Any]
_NOTHING: _Entries = {}


class MapCell(TableCell, MutableMapping[Any, Any]):
    """The map of the current key. Acts as a dictionary does."""

    __slots__ = ("_changed", "_cleared", "_floating", "_gone", "_looked", "_notes_looks", "_quick", "_seen")

    members = "a map has what a dictionary has: [...], get(), items(), pop(), clear() and so on"
    instead = "[...] = ..."
    declared_as = "MapState"

    def __init__(self, name: str, sub: pa.Field, value: pa.Field, ttl: TimeToLive | None = None) -> None:
        self._changed: dict[int, _Entries] = {}
        self._cleared: set[int] = set()
        self._gone: set[int] = set()
        """The keys of which an entry was deleted."""
        self._looked: _Entries = {}
        self._seen: dict[int, _Entries] = {}
        """Of keys with few entries: what is seen of those that are stored."""
        super().__init__(name, sub, value, ttl)
        self._quick = _quick_type(sub.type)
        self._floating = pa.types.is_floating(sub.type)
        self.ends = may_be_changed(value.type)
        self._notes_looks = pa.types.is_nested(value.type) or self._renews
        """Whether a look at a value may change it, or renews it."""

    def _forget(self) -> None:
        super()._forget()
        self._changed, self._cleared, self._gone = {}, set(), set()
        self._looked, self._seen = {}, {}

    # ── as a dictionary ────────────────────────────────────────────────────────────────────────

    def __getitem__(self, key: Any) -> Any:
        found, value = self._find(self._canonical(key))
        if not found:
            raise KeyError(key)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of an entry, or the default. What is asked most often goes the shortest way."""
        if type(key) is not self._quick:
            key = self._canonical(key)
        if not self._notes_looks:
            changes = self._changed.get(self.at)
            if changes is not None and key in changes:
                value = changes[key]
                return default if value is _GONE else value
            entries = self._seen.get(self.at)
            if entries is not None:
                return entries.get(key, default)
        found, value = self._find(key)
        return value if found else default

    def __contains__(self, key: object) -> bool:
        return self._find(self._canonical(key))[0]

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) is not self._quick:
            key = self._canonical(key)
        self._changes_of_key()[key] = value if type(value) in self._usual else self._form.of(value)
        if self._looked:
            self._looked.pop(key, None)

    def __delitem__(self, key: Any) -> None:
        wanted = self._canonical(key)
        if not self._find(wanted)[0]:
            raise KeyError(key)
        self._changes_of_key()[wanted] = _GONE
        self._gone.add(self.at)
        self._looked.pop(wanted, None)

    def __iter__(self) -> Iterator[Any]:
        return (key for key, _ in self.pairs())

    def __len__(self) -> int:
        return sum(1 for _ in self.pairs(looks=False))

    def __bool__(self) -> bool:
        return next(self.pairs(looks=False), None) is not None

    def items(self) -> ItemsView[Any, Any]:
        """The entries, as pairs of key and value."""
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """The values of all entries."""
        return _Values(self)

    def clear(self) -> None:
        """Forget all entries of the key."""
        self._cleared.add(self.at)
        self._changed[self.at] = {}
        self._seen.pop(self.at, None)
        self._looked = {}

    def copy(self) -> dict[Any, Any]:
        """Its entries as a Python dictionary."""
        return dict(self.pairs())

    def __or__(self, other: Any) -> dict[Any, Any]:
        return self.copy() | dict(other) if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Any) -> dict[Any, Any]:
        return dict(other) | self.copy() if isinstance(other, Mapping) else NotImplemented

    def __ior__(self, other: Any) -> Self:
        self.update(other)
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    # ── beside what is stored ──────────────────────────────────────────────────────────────────

    def _changes_of_key(self) -> _Entries:
        changes = self._changed.get(self.at)
        if changes is None:
            changes = self._changed[self.at] = {}
        return changes

    def _find(self, key: Any) -> tuple[bool, Any]:
        changes = self._changed.get(self.at)
        if changes is not None and key in changes:
            value = changes[key]
            return (False, None) if value is _GONE else (True, value)
        entries = self._seen.get(self.at)
        if entries is None:
            entries = self._see()
        found, value = self._get(key) if entries is None else (key in entries, entries.get(key))
        return found, self._looked_at(key, value) if found and self._notes_looks else value

    def _looked_at(self, key: Any, stored: Any) -> Any:
        """A value that can be changed where it is, and so may count as changed."""
        value = self._changes_of_key()[key] = self._own_copy(stored)
        if self._lifetimes and not self._renews:
            self._looked[key] = stored
        return value

    def _see(self) -> _Entries | None:
        """The stored entries that the current key still has; None if it has many."""
        if self.at in self._cleared:
            return _NOTHING
        few = self._stored()
        if few is None:
            return None
        entries = self._seen[self.at] = dict(few)
        return entries

    def _read_ahead(self) -> None:
        super()._read_ahead()
        self._seen = {}  # of keys whose turn is over

    def _subs_and_values(self, rows: pa.RecordBatch) -> tuple[list[Any], list[Any]]:
        keys, values = super()._subs_and_values(rows)
        return (list(map(_one_nan, keys)) if self._floating else keys), values

    def pairs(self, *, looks: bool = True) -> Iterator[tuple[Any, Any]]:
        """All entries: those that are stored, then the new ones. Each as it is when its turn comes, as in a dictionary.

        `looks`: whether that is a look at their values, which may renew them.
        """
        index = self.at
        new = dict.fromkeys(self._changed.get(index, ()))
        if index not in self._cleared:
            for key, stored in self._scanned():
                new.pop(key, None)
                unchanged = _GONE if index in self._cleared else stored
                value = self._changed.get(index, _NOTHING).get(key, unchanged)
                if value is not _GONE:
                    # a copy: the key's next look may change it, and its call may be undone
                    if looks and self._renews:
                        self._changed.setdefault(index, {}).setdefault(key, self._own_copy(value))
                    yield key, self._own_copy(value)
        for key in new:
            value = self._changed.get(index, _NOTHING).get(key, _GONE)
            if value is not _GONE:
                yield key, self._own_copy(value)

    def _canonical(self, key: Any) -> Any:
        """A key as it comes back from the state, so that `2` and `2.0` are one entry of a map of numbers."""
        if type(key) is self._quick:
            return key
        try:
            column = encoded([key], self._sub.type)
        except CANNOT_ENCODE as error:
            raise BadRecordError(
                f"operator {self._operator}: state {self.name!r} is asked for the key {key!r}: {error}",
                state=self.name,
            ) from error
        (stored,) = python_values(column)
        return _one_nan(stored + 0.0) if isinstance(stored, float) else stored  # -0.0 becomes 0.0

    # ── what is written ────────────────────────────────────────────────────────────────────────

    @override
    def end_call(self) -> None:
        changes = self._changed.get(self.at, _NOTHING)
        for key, stored in self._looked.items():
            if stored_equal(changes[key], stored):
                del changes[key]
        self._looked = {}
        for key, value in changes.items():
            changes[key] = value if value is _GONE else safe_copy(value)

    @override
    def undo(self, index: int) -> None:
        self._changed.pop(index, None)
        self._cleared.discard(index)
        self._gone.discard(index)
        self._looked = {}

    @override
    def memo(self) -> Any:
        changes = self._changed.get(self.at)
        copied = None if changes is None else {key: _kept_change(value) for key, value in changes.items()}
        return copied, self.at in self._cleared, self.at in self._gone

    @override
    def back_to(self, memo: Any) -> None:
        changes, is_cleared, has_gone = memo
        self.undo(self.at)
        self._seen.pop(self.at, None)
        if changes is not None:
            self._changed[self.at] = changes
        if is_cleared:
            self._cleared.add(self.at)
        if has_gone:
            self._gone.add(self.at)

    @override
    def touched(self) -> Iterable[int]:
        return self._changed.keys() | self._cleared

    @override
    def collect(self, index: int, into: Changes) -> None:
        """Most keys only have new values."""
        if index in self._cleared or index in self._gone:
            super().collect(index, into)
            return
        changed, before = self._changed.get(index, _NOTHING), len(into.subs)
        into.subs.extend(changed)
        into.values.extend(changed.values())
        into.counted(index, before)

    @override
    def changes(self, index: int) -> Iterable[RowChange]:
        changed = self._changed.get(index, {})
        for key, value in changed.items():
            yield RowChange(key, gone=True) if value is _GONE else RowChange(key, value)
        if index in self._cleared:
            self.at = index
            yield from (RowChange(key, gone=True) for key, _ in self._scanned() if key not in changed)


class _Items(ItemsView[Any, Any]):
    def __init__(self, cell: MapCell) -> None:
        super().__init__(cell)
        self._cell = cell

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return self._cell.pairs()


class _Values(ValuesView[Any]):
    def __init__(self, cell: MapCell) -> None:
        super().__init__(cell)
        self._cell = cell

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._cell.pairs())


def _kept_change(value: Any) -> Any:
    return value if value is _GONE else deep_copy(value)


def _one_nan(key: float) -> float:
    """To a dictionary two NaN are two keys, unless they are the same object."""
    return math.nan if math.isnan(key) else key


def _quick_type(kind: pa.DataType) -> type | None:
    """The type of keys that are taken as they are."""
    for is_kind, python in (
        (pa.types.is_string, str),
        (pa.types.is_int64, int),
        (pa.types.is_boolean, bool),
        (pa.types.is_binary, bytes),
        (pa.types.is_date32, date),
    ):
        if is_kind(kind):
            return python
    return None


class MapState(TableState):
    """A dictionary per key, declared as a class attribute: `by_shop = MapState("string", "long")`, used as `self.by_shop["x"] = 1`.

    Each entry is kept for itself: to touch one of a million costs what one costs. Entries whose keys are numbers (decimals up to 18
    digits), dates or moments come in the order of these, others in no promised order. A list that stands in an entry may be changed
    where it is, if it was looked up by its key: `self.seen[day].append(user)`.
    A time to live holds for each entry by itself.
    The classic mistake: `len()` of a map with very many entries, which has to walk through them.
    """

    cell = MapCell
    columns = BatchMap

    def __init__(self, key_type: Type, value_type: Type, *, ttl: TTL | None = None) -> None:
        super().__init__(ttl)
        self.key_ddl, self.value_ddl = map_types(key_type, value_type, type(self).__name__)

    @override
    def table(self, name: str, key: pa.Schema) -> TableLayout:
        sub, value = self._fields(name)
        lifetimes = self.lifetimes(name)
        values = with_stamps(pa.schema([value]), lifetimes)
        return TableLayout(name, pa.schema([*key, sub]), values, lifetimes=lifetimes)

    def _fields(self, name: str) -> tuple[pa.Field, pa.Field]:
        return pa.field(f"{name}_key", arrow_type(self.key_ddl)), pa.field(name, arrow_type(self.value_ddl))

    @override
    def make_cell(self, name: str) -> MapCell:
        return MapCell(name, *self._fields(name), self.ttl)

    if TYPE_CHECKING:

        @overload
        def __get__(self, operator: None, owner: type) -> MapState: ...
        @overload
        def __get__(self, operator: object, owner: type) -> MapCell: ...
        def __get__(self, operator: object, owner: type) -> MapState | MapCell: ...


def map_types(key_type: Type, value_type: Type, state: str) -> tuple[str, str]:
    """The DDL of the types of a map; keys by which no entry can be found are refused. `state` says which kind of state it is."""
    key_ddl, value_ddl = type_ddl(key_type), type_ddl(value_type)
    if pa.types.is_nested(arrow_type(key_ddl)):
        raise ConfigError(
            f"the keys of a {state} cannot be {key_ddl}: entries are found by a number, a text, bytes, a date or a moment; "
            "make a text of it",
            type=key_ddl,
        )
    return key_ddl, value_ddl
