"""`ListState`: many values for a key, in order, each a row of its own. Driver (declared) and executors (run).

A row's place in the list is a number that only grows: the generation of the state in which it was appended, and how many it was. So
appending reads nothing, and what is left after a deletion stays in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableSequence
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Self, overload

import pyarrow as pa
from typing_extensions import override

from penstock.operators.state.batch_tables import BatchList
from penstock.operators.state.cells import deep_copy, may_be_changed, safe_copy, stored_equal
from penstock.operators.state.declarations import TableState
from penstock.operators.state.table_cells import RowChange, TableCell
from penstock.operators.state.ttl import TTL, TimeToLive
from penstock.state.backends.base import TableLayout, with_stamps
from penstock.state.ddl import arrow_type, type_ddl
from penstock.state.handle import GENERATION_SHIFT

if TYPE_CHECKING:
    from penstock.state.ddl import Type


class ListState(TableState):
    """A list per key, declared as a class attribute: `recent = ListState("string")`, used as `self.recent.append("x")`.

    Each element is kept for itself: `append` and `extend` cost what is appended, however long the list is. Everything else walks through
    the list: a long one is read from its beginning, and one that is changed in its middle is read as a whole. An array or struct
    that stands in the list may be changed where it is, if it was looked up by its index: `self.carts[-1].append(item)`.
    A time to live holds for each element by itself; an element that is moved, because another is put before it, counts as written.
    The classic mistake: a list that is only appended to, and grows for ever.
    """

    def __init__(self, type: Type, *, ttl: TTL | None = None) -> None:  # noqa: A002 - it is what the user means
        super().__init__(ttl)
        self.ddl = type_ddl(type)

    @override
    def table(self, name: str, key: pa.Schema) -> TableLayout:
        position, value = self._fields(name)
        lifetimes = self.lifetimes(name)
        values = with_stamps(pa.schema([value]), lifetimes)
        return TableLayout(name, pa.schema([*key, position]), values, lifetimes=lifetimes)

    def _fields(self, name: str) -> tuple[pa.Field, pa.Field]:
        return pa.field(f"{name}_position", pa.int64()), pa.field(name, arrow_type(self.ddl))

    @override
    def make_cell(self, name: str) -> ListCell:
        return ListCell(name, *self._fields(name), self.ttl)

    if TYPE_CHECKING:

        @overload
        def __get__(self, operator: None, owner: type) -> ListState: ...
        @overload
        def __get__(self, operator: object, owner: type) -> ListCell: ...
        def __get__(self, operator: object, owner: type) -> ListState | ListCell: ...


class _Element:
    """One value; `position` is None for one that has no row yet, `changed` if its row is not what is stored.

    `looked`: in a list, the value as it was when user code read it, and may have changed it.
    """

    __slots__ = ("changed", "looked", "position", "value")

    def __init__(self, value: Any, position: int | None = None) -> None:
        self.value = value
        self.position = position
        self.changed = False
        self.looked: list[Any] = []

    def copy(self) -> _Element:
        """One that shares nothing with it, between two calls."""
        other = _Element(deep_copy(self.value), self.position)
        other.changed = self.changed
        return other

    def look(self, *, compare: bool) -> Any:
        """The value, which user code may change in place; with `compare` that is found out later."""
        if compare and not self.changed and not self.looked:
            self.looked = [deep_copy(self.value)]
        elif not compare:
            self.changed = True
        return self.value

    def end_look(self) -> None:
        """End the call: find out whether the value was changed."""
        if self.looked:
            self.changed = self.changed or not stored_equal(self.value, self.looked[0])
            self.looked = []


class ListCell(TableCell, MutableSequence[Any]):
    """The list of the current key. Acts as a list does."""

    __slots__ = ("_appended", "_value_nested", "_whole")

    members = "a list has what a list has: append(), [...], len(), pop(), clear() and so on"
    instead = ".append(...)"
    declared_as = "ListState"

    def __init__(self, name: str, sub: pa.Field, value: pa.Field, ttl: TimeToLive | None = None) -> None:
        self._appended: dict[int, list[Any]] = {}
        self._whole: dict[int, list[_Element]] = {}
        super().__init__(name, sub, value, ttl)
        self.ends = may_be_changed(value.type)
        self._value_nested = pa.types.is_nested(value.type)

    def _forget(self) -> None:
        super()._forget()
        self._appended, self._whole = {}, {}

    # ── as a list ──────────────────────────────────────────────────────────────────────────────

    def append(self, value: Any) -> None:
        """Add a value at the end. Reads nothing."""
        if type(value) not in self._usual:
            value = self._form.of(value)
        whole = self._whole.get(self.at)
        if whole is not None:
            whole.append(_Element(value))
            return
        self._appended.setdefault(self.at, []).append(value)

    def extend(self, values: Iterable[Any]) -> None:
        """Add several at the end. Reads nothing."""
        for value in list(values) if values is self else values:
            self.append(value)

    def __iadd__(self, values: Any) -> Self:
        if not isinstance(values, Iterable):
            raise self.misused("+=")
        self.extend(values)
        return self

    def __iter__(self) -> Iterator[Any]:
        """As with a list, a change after the current place is seen when its turn comes."""
        index, at = self.at, 0
        if self._renews:
            self._elements()
        if index not in self._whole:
            for _, value in self._scanned():
                yield self._own_copy(value)
                at += 1
                if index in self._whole:
                    break
        before = at
        while index not in self._whole and at - before < len(self._appended.get(index, ())):
            yield self._own_copy(self._appended[index][at - before])
            at += 1
        while at < len(self._whole.get(index, ())):
            element = self._whole[index][at]
            element.changed |= self._renews
            yield self._own_copy(element.value)
            at += 1

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | ListCell) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as a list has none

    def __len__(self) -> int:
        whole = self._whole.get(self.at)
        if whole is not None:
            return len(whole)
        return sum(1 for _ in self._scanned()) + len(self._appended.get(self.at, ()))

    def __bool__(self) -> bool:
        return bool(self._whole.get(self.at) or self._appended.get(self.at)) or (
            self.at not in self._whole and next(self._scanned(), None) is not None
        )

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> list[Any]: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice) and not self._renews:
            return self._copied()[at]
        if isinstance(at, slice):
            return [self._own_copy(element.look(compare=False)) for element in self._elements()[at]]
        if self._value_nested or self._renews:  # user code may change it in place
            return self._elements()[at].look(compare=bool(self._lifetimes) and not self._renews)
        if at >= 0 and self.at not in self._whole:
            found = list(islice(iter(self), at, at + 1))
            if not found:
                raise IndexError(f"list index {at} out of range")
            return found[0]
        return self._elements()[at].value

    def __setitem__(self, at: Any, value: Any) -> None:
        elements = self._elements()
        if isinstance(at, slice):
            elements[at] = [self._new(one) for one in value]
            return
        elements[at].value = self._new(value).value
        elements[at].changed = True

    def __delitem__(self, at: Any) -> None:
        del self._elements()[at]

    def index(self, value: Any, *bounds: int) -> int:
        """The first place of a value. Walks once: what Python makes of single places would begin anew for each of them."""
        return self._copied().index(value, *bounds)

    def __reversed__(self) -> Iterator[Any]:
        return iter(self._copied()[::-1])

    def copy(self) -> list[Any]:
        """Its elements as a Python list."""
        return list(self)

    def __add__(self, other: Any) -> list[Any]:
        return [*self, *other] if isinstance(other, list | ListCell) else NotImplemented

    def __radd__(self, other: Any) -> list[Any]:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Bring the values into order. Everything after the first value that moves is written again."""
        self._elements().sort(
            key=lambda element: element.value if key is None else key(element.value), reverse=reverse
        )

    def _new(self, value: Any) -> _Element:
        return _Element(value if type(value) in self._usual else self._form.of(value))

    def insert(self, at: int, value: Any) -> None:
        """Put a value before another; everything after it is written again."""
        self._elements().insert(at, self._new(value))

    def clear(self) -> None:
        """Forget all values of the key."""
        self._elements().clear()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def _copied(self) -> list[Any]:
        """Its elements, read through an iterator: `list()` would first ask for the length, which walks through all of them."""
        return list(iter(self))

    def _elements(self) -> list[_Element]:
        """The list as a whole, from now on the truth for this key."""
        whole = self._whole.get(self.at)
        if whole is None:
            stored = [_Element(self._own_copy(value), position) for position, value in self._scanned()]
            appended = [_Element(value) for value in self._appended.pop(self.at, ())]
            whole = self._whole[self.at] = stored + appended
        return whole

    # ── what is written ────────────────────────────────────────────────────────────────────────

    @override
    def end_call(self) -> None:
        if self.at in self._appended:
            self._appended[self.at] = [safe_copy(value) for value in self._appended[self.at]]
        for element in self._whole.get(self.at, ()):
            element.end_look()
            if element.changed or element.position is None:
                element.value = safe_copy(element.value)

    @override
    def undo(self, index: int) -> None:
        self._appended.pop(index, None)
        self._whole.pop(index, None)

    @override
    def memo(self) -> Any:
        appended, whole = self._appended.get(self.at), self._whole.get(self.at)
        return (
            None if appended is None else [deep_copy(value) for value in appended],
            None if whole is None else [element.copy() for element in whole],
        )

    @override
    def back_to(self, memo: Any) -> None:
        appended, whole = memo
        self.undo(self.at)
        if appended is not None:
            self._appended[self.at] = appended
        if whole is not None:
            self._whole[self.at] = whole

    @override
    def touched(self) -> Iterable[int]:
        return self._appended.keys() | self._whole.keys()

    @override
    def changes(self, index: int) -> Iterable[RowChange]:
        places = self._places()
        whole = self._whole.get(index)
        if whole is None:
            for value in self._appended.get(index, ()):
                yield RowChange(next(places), value)
            return
        kept = _kept_in_place(whole)
        positions = {element.position for element in whole[:kept]}
        self.at = index
        yield from (
            RowChange(position, gone=True) for position, _ in self._scanned() if position not in positions
        )
        yield from (RowChange(one.position, one.value) for one in whole[:kept] if one.changed)
        yield from (RowChange(next(places), element.value) for element in whole[kept:])

    def _places(self) -> Iterator[int]:
        """Numbers after those of all stored rows. No batch has as many rows as there are numbers for it."""
        return count(self._generation << GENERATION_SHIFT)


ListState.cell = ListCell
ListState.columns = BatchList


def _kept_in_place(elements: list[_Element]) -> int:
    """The number of elements from the beginning that keep their rows: up to the first that has none or was moved."""
    last = -1
    for at, element in enumerate(elements):
        if element.position is None or element.position <= last:
            return at
        last = element.position
    return len(elements)
