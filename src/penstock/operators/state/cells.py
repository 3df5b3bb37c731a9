"""Cells: they take the place of declared states while the operator runs, and hold the state of the current key. Executors.

A cell holds the state of all keys of a piece, and `at` is the position of the current one: moving to the next key costs one assignment.
What user code leaves in state or emits is copied where it can be changed in place, because it is encoded later, for many keys together.

Rows that user code gives, results and side outputs, as they were when it gave them. Executors.

They are encoded later, many together. What can be changed in place is copied before user code goes on: a dictionary that it fills anew
for every result, a list that it appends to.
"""

from __future__ import annotations

import copy
import functools
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self

import pyarrow as pa
from typing_extensions import override

from penstock.operators.values.python_values import python_values

if TYPE_CHECKING:
    from penstock.operators.values.encoding import StoredForm


UNCHANGING = frozenset({NoneType, bool, int, float, str, bytes, Decimal, date, datetime, timedelta})
"""Types of values that cannot be changed in place."""
_SHOWN = 200
pack_double = struct.Struct("d").pack


def may_be_changed(kind: pa.DataType) -> bool:
    """Whether a value of this type can be given as something that is changed in place later: bytes as a bytearray."""
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind))


def deep_copy(value: Any) -> Any:
    """A copy that shares nothing with the value that could be changed in place; what state is made of is copied quickly."""
    kind = type(value)
    if kind in UNCHANGING:
        return value
    if kind is dict:
        return {name: one if type(one) in UNCHANGING else deep_copy(one) for name, one in value.items()}
    if kind is list:
        return [one if type(one) in UNCHANGING else deep_copy(one) for one in value]
    return copy.deepcopy(value)


def stored_equal(one: Any, other: Any) -> bool:
    """Whether two values would be stored as the same; to Python 1 is True, and 0.0 is -0.0."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is float:
        return pack_double(one) == pack_double(other)
    if kind is dict:
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(
            stored_equal(a[0], b[0]) and stored_equal(a[1], b[1]) for a, b in pairs
        )
    if kind in (list, tuple):
        return len(one) == len(other) and all(map(stored_equal, one, other))
    return bool(one == other)


def safe_copy(value: Any) -> Any:
    """A copy of what a call leaves in state: user code may change the original while other keys are processed.

    A value that cannot be copied does not fit any type either, and is refused with its name when it is encoded.
    """
    try:
        return deep_copy(value)
    except Exception:  # noqa: BLE001 - objects of user code may raise anything
        return value


def shown(value: object) -> str:
    """A value or an error for a message, cut to the length of a log line: one value may be megabytes."""
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


@dataclass(frozen=True)
class PieceKeys:
    """Whose state the cells hold, for what they have to say about it: the operator, and the keys of the piece."""

    operator: str
    columns: pa.RecordBatch

    def key(self, index: int) -> Any:
        """The key at this position, as user code sees it."""
        values = [python_values(column.slice(index, 1))[0] for column in self.columns.columns]
        return values[0] if len(values) == 1 else tuple(values)


class StateAssignedError(AttributeError):
    """User code assigned to a declared state or side output, or calculated with the state itself."""


class Cell(ABC):
    """The state of the current key, of any kind."""

    __slots__ = ("at", "ends", "name")

    members: ClassVar[str]
    """What user code may ask of it, for an error message."""
    instead: ClassVar[str] = ""
    """What to write after `self.name`, for the error of an assignment to the state itself."""
    declared_as: ClassVar[str] = ""
    """The state that it stands for: so Python calls it in its own errors, since user code knows no other name."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.__name__ = cls.declared_as or cls.__name__

    def __init__(self, name: str) -> None:
        self.name = name
        self.at = 0
        self.ends = False
        """Whether `end_call` has to be called."""

    def __deepcopy__(self, memo: object) -> Self:
        """A cell is never copied. A cell among values is refused when they are encoded."""
        return self

    @abstractmethod
    def undo(self, index: int) -> None:
        """Make the state of a key what it was before its call. Called where a call fails and the others go on."""

    @abstractmethod
    def memo(self) -> Any:
        """A copy of the current key's state, between two of its calls. Called where a call may fail and the others go on."""

    @abstractmethod
    def back_to(self, memo: Any) -> None:
        """Make the state of the current key what it was then: the last call of the key counts for nothing, those before it do."""

    def end_call(self) -> None:  # noqa: B027 - most cells have nothing to do, and are not asked
        """Called when the call for the current key is over and all its results are known; only where `ends` is true."""

    def misused(self, sign: str) -> StateAssignedError:
        """The error for `self.name += 1`, with the sign of the assignment: Python's own would not say what to write."""
        write = f"self.{self.name}{self.instead.replace('=', sign)}"
        return StateAssignedError(
            f"{self.name} is state: write {write} instead of self.{self.name} {sign} ..."
        )


class ColumnCell(Cell):
    """A state with a column in the row of the key: one value per key, None where there is none."""

    __slots__ = ("_keys", "_stored", "dirty", "looked", "made", "values")

    def __init__(self, name: str, made: str = "state was set to") -> None:
        super().__init__(name)
        self.made = made
        """How a value came about that does not fit its type, for the error message that goes on with the value."""
        self.values: list[Any] = []
        self.dirty = bytearray()
        self.looked = bytearray()
        """The keys whose value was looked at; only a cell that `with_read_tracking` made notes it."""

    def load(self, stored: pa.Array, keys: PieceKeys) -> None:
        """Take the values of the keys that come next."""
        self._stored = stored
        self._keys = keys
        self.values = python_values(stored)
        self.dirty = bytearray(len(self.values))
        self.looked = bytearray(len(self.values))
        self.at = 0
        self._let_go()

    def _let_go(self) -> None:
        """Forget what the current call has looked at."""

    def undo(self, index: int) -> None:
        """Read it again: what was changed in place is changed in the object that was read before."""
        self.values[index] = python_values(self._stored.slice(index, 1))[0]
        self.dirty[index] = self.looked[index] = 0
        self._let_go()

    @override
    def memo(self) -> Any:
        return deep_copy(self.values[self.at]), self.dirty[self.at], self.looked[self.at]

    @override
    def back_to(self, memo: Any) -> None:
        """Restores the value, after `undo` has dropped what the call held."""
        self.undo(self.at)
        self.values[self.at], self.dirty[self.at], self.looked[self.at] = memo

    def clear(self) -> None:
        """Forget the value of the key."""
        self.values[self.at] = None
        self.dirty[self.at] = 1


def _refusing(error: Callable[[Any], StateAssignedError]) -> Callable[[Any, object], NoReturn]:
    def refuse(cell: Cell, other: object) -> NoReturn:  # noqa: ARG001 - no operand is right
        raise error(cell)

    return refuse


def _not_its_value(cell: ColumnCell) -> StateAssignedError:
    return StateAssignedError(
        f"{cell.name} is state: write self.{cell.name}.value instead of self.{cell.name}"
    )


# Set from outside: a type checker should go on to refuse them in user code.
Cell.__iadd__ = _refusing(lambda cell: cell.misused("+="))  # type: ignore[attr-defined]
for _operator in ("add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge"):
    setattr(ColumnCell, f"__{_operator}__", _refusing(_not_its_value))


class ValueCell(ColumnCell):
    """The value of the current key, in place of the declared `ValueState` while the operator runs."""

    __slots__ = ("_default", "_form", "_usual")

    members = "a state has .value and .clear()"
    instead = ".value = ..."
    declared_as = "ValueState"

    def __init__(self, name: str, default: Any, form: StoredForm) -> None:
        super().__init__(name)
        self._default = default
        self._form, self._usual = form, form.usual

    @property
    def value(self) -> Any:
        """The value of the key, or the default."""
        value = self.values[self.at]
        return self._default if value is None else value

    @value.setter
    def value(self, value: Any) -> None:
        self.values[self.at] = value if type(value) in self._usual else self._form.of(value)
        self.dirty[self.at] = 1


class ContainerCell(ValueCell):
    """A value that can be changed in place (array, map, struct): reading it may change it, so it counts as changed."""

    __slots__ = ()

    def __init__(self, name: str, default: Any, form: StoredForm) -> None:
        super().__init__(name, default, form)
        self.ends = True

    @override
    def end_call(self) -> None:
        if self.dirty[self.at]:
            self.values[self.at] = safe_copy(self.values[self.at])

    @property
    def value(self) -> Any:
        """The value of the key, or a copy of the default that becomes the value."""
        index = self.at
        if self.values[index] is None and self._default is not None:
            self.values[index] = copy.deepcopy(self._default)
        self.dirty[index] = 1
        return self.values[index]

    @value.setter
    def value(self, value: Any) -> None:
        self.values[self.at] = value if type(value) in self._usual else self._form.of(value)
        self.dirty[self.at] = 1


class ComparedContainerCell(ContainerCell):
    """A container for which it matters whether it was changed or only read: it is compared when the call is over."""

    __slots__ = ("_assigned", "_before", "_held", "_was_dirty")

    def __init__(self, name: str, default: Any, form: StoredForm) -> None:
        super().__init__(name, default, form)
        self._let_go()

    @override
    def _let_go(self) -> None:
        self._before: Any = None
        self._held = self._assigned = False
        self._was_dirty = 0
        """Whether an earlier call of the key had changed it."""

    def clear(self) -> None:
        """Forget the value of the key."""
        super().clear()
        self._held, self._assigned = False, True

    @override
    def end_call(self) -> None:
        index = self.at
        if self._held and stored_equal(self.values[index], self._seen()):
            self.values[index] = self._before
            self.dirty[index] = self._assigned or self._was_dirty
        else:
            super().end_call()
        self._let_go()

    def _seen(self) -> Any:
        return self._default if self._before is None else self._before

    @property
    def value(self) -> Any:
        """The value of the key, or a copy of the default that becomes the value where it is changed."""
        index = self.at
        if not self._held:
            self._held, self._before = True, deep_copy(self.values[index])
            self._was_dirty = self._was_dirty or self.dirty[index]
        if self.values[index] is None and self._default is not None:
            self.values[index] = copy.deepcopy(self._default)
        self.dirty[index] = 1
        return self.values[index]

    @value.setter
    def value(self, value: Any) -> None:
        self.values[self.at] = value if type(value) in self._usual else self._form.of(value)
        self.dirty[self.at] = 1
        self._held, self._assigned = False, True


@functools.cache
def with_read_tracking(kind: type[ColumnCell]) -> type[Any]:
    """This kind of cell, with notes of which keys' state was read. Other cells do not pay for that."""

    def noting(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def look(cell: ColumnCell) -> Any:
            cell.looked[cell.at] = 1
            return get(cell)

        return look

    looks = {
        name: property(noting(found.fget), found.fset)
        for name in ("value", "accumulator")
        if isinstance(found := getattr(kind, name, None), property) and found.fget is not None
    }
    return type(f"Looking{kind.__name__}", (kind,), {"__slots__": (), **looks})


def may_change(schema: pa.Schema) -> bool:
    """Whether a tuple for these columns may hold what can be changed in place."""
    return any(may_be_changed(field.type) for field in schema)


def copy_emitted(row: Any) -> Any:
    """The row, with a copy of each value that can be changed in place."""
    if isinstance(row, tuple):
        return row if all(type(value) in UNCHANGING for value in row) else _copied(row)
    if isinstance(row, Mapping):
        return {name: safe_copy(value) for name, value in row.items()}
    return safe_copy(row) if isinstance(row, list) else row


def _copied(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """With the names that a named tuple has in its class, and a row of PySpark's in itself."""
    made = tuple.__new__(type(row), map(safe_copy, row))
    if hasattr(row, "__dict__"):
        made.__dict__.update(row.__dict__)
    return made


def copy_emitted_flat(row: Any) -> Any:
    """`copy_emitted` for columns whose tuples hold nothing that can be changed."""
    return row if type(row) is tuple else copy_emitted(row)
