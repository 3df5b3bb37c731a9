"""State into which values are folded one by one: `ReducingState` and `AggregatingState`. Driver (declared) and executors (run).

A function is given the form that comes back from state (a struct is a dictionary), in the first call for a key as in any later one, so
that results do not depend on where a batch ends. What may be changed in place is never shared: not between keys, not with the first
value that was added, not with what was read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from typing_extensions import override

from penstock.errors import BadRecordError, ConfigError
from penstock.operators.state.cells import ColumnCell, deep_copy, may_be_changed, shown
from penstock.operators.state.declarations import ColumnState, check_takes, name_of
from penstock.operators.state.ttl import TTL
from penstock.operators.values.encoding import CANNOT_ENCODE, to_array, usual_types
from penstock.operators.values.python_values import python_values

if TYPE_CHECKING:
    from penstock.state.ddl import Type


class AggregateFunction(ABC):
    """How values become an accumulator, and an accumulator a result: for an `AggregatingState`.

    One object serves all keys, and is pickled into tasks: keep settings in it, and nothing about a key. An accumulator is given in the
    form in which state is read: a struct as a dictionary, an array as a list. It may be changed in place; it must be returned either way.
    The classic mistake: an accumulator that is right only when values come in one order. Without `order_by` they come in any.
    """

    @abstractmethod
    def create(self) -> Any:
        """The accumulator of a key to which nothing was added yet.

        Called for the first `add` of a key and after `clear`, and once when the state is declared, to see that it fits the type.
        """

    @abstractmethod
    def add(self, accumulator: Any, value: Any) -> Any:
        """The accumulator with one value more. Called for every `add` of the state."""

    @abstractmethod
    def merge(self, accumulator: Any, other: Any) -> Any:
        """One accumulator for all values of two. Called by `merge` of the state; windows that grow together will need it too."""

    @abstractmethod
    def result(self, accumulator: Any) -> Any:
        """The value that user code reads. Called for every `value` of the state; must not change the accumulator. It may be of any type."""


class ReducingState(ColumnState):
    """One value per key, into which others are folded: `total = ReducingState("long", operator.add)`, used as `self.total.add(5)`.

    `add(x)` makes it `function(old, x)`, or `x` where there is none. The function must be associative and commutative where rows come in
    no order. `value` reads it; `default` is what is read where there is none, and is never handed to the function.
    """

    def __init__(
        self,
        type: Type,  # noqa: A002
        function: Callable[[Any, Any], Any],
        default: Any = None,
        *,
        ttl: TTL | None = None,
    ) -> None:
        super().__init__(type, default, ttl=ttl)
        check_takes(function, 2, "function", "the value so far and the one to add")
        self.function = function

    @override
    def make_cell(self, name: str) -> ReducingCell:
        return self._kind(ReducingCell)(pa.field(name, self.arrow_type), self.function, self.default)

    def add(self, value: Any) -> None:  # noqa: ARG002 - the cell takes it
        """Fold a value into that of the key."""
        raise self._outside()

    @property
    def value(self) -> Any:
        """The value of the key, or the default."""
        raise self._outside()


class AggregatingState(ColumnState):
    """One accumulator per key: `mean = AggregatingState("struct<sum:double,n:long>", Mean())`, where `Mean` is an `AggregateFunction`.

    The type is that of the accumulator. `self.mean.add(x)` adds to it, `self.mean.value` is its result, None where nothing was added.
    The function is an object, or a class that is made without arguments.
    """

    def __init__(
        self,
        type: Type,  # noqa: A002
        function: AggregateFunction | type[AggregateFunction] | Any,
        *,
        ttl: TTL | None = None,
    ) -> None:
        super().__init__(type, ttl=ttl)
        self.function = _checked_function(function)
        self._check_create()

    def _check_create(self) -> None:
        what = f"create() of {name_of(self.function)}"
        try:
            created = self.function.create()
        except Exception as error:
            raise ConfigError(f"{what} raised {error.__class__.__name__}: {error}") from error
        if created is None:
            raise ConfigError(f"{what} gave None; it must give an accumulator of type {self.ddl}")
        try:
            self._as_stored(created)
        except CANNOT_ENCODE as error:
            raise ConfigError(
                f"{what} gave {shown(created)}, which is not of type {self.ddl}: {error}", value=created
            ) from error

    @override
    def make_cell(self, name: str) -> AggregatingCell:
        return self._kind(AggregatingCell)(pa.field(name, self.arrow_type), self.function)

    def add(self, value: Any) -> None:  # noqa: ARG002 - the cell takes it
        """Add a value to the accumulator of the key."""
        raise self._outside()

    def merge(self, accumulator: Any) -> None:  # noqa: ARG002 - the cell takes it
        """Add all that another accumulator has; None is none."""
        raise self._outside()

    @property
    def value(self) -> Any:
        """The result for the key, None where nothing was added."""
        raise self._outside()

    @property
    def accumulator(self) -> Any:
        """A copy of the accumulator of the key, None where nothing was added."""
        raise self._outside()


def _checked_function(function: Any) -> Any:
    """An object with the four methods; of a class one is made."""
    if isinstance(function, type):
        try:
            function = function()
        except Exception as error:
            raise ConfigError(
                f"function={function.__qualname__} cannot be made without arguments: {error}; give an object, or a class with all of "
                "create, add, merge and result"
            ) from error
    missing = [name for name in _METHODS if not callable(getattr(function, name, None))]
    if missing:
        raise ConfigError(
            f"function={function!r} lacks {', '.join(missing)}; an aggregate function has create(), add(accumulator, value), "
            "merge(accumulator, other) and result(accumulator), see AggregateFunction",
            function=function,
        )
    for name, given in _METHODS.items():
        check_takes(getattr(function, name), len(given), f"{name_of(function)}.{name}", " and ".join(given))
    return function


_METHODS: dict[str, tuple[str, ...]] = {
    "create": (),
    "add": ("an accumulator", "a value"),
    "merge": ("an accumulator", "another"),
    "result": ("an accumulator",),
}


class FoldedCell(ColumnCell):
    """The folded value of the current key."""

    __slots__ = ("_field", "_usual")

    instead = ".add(...)"

    def __init__(self, field: pa.Field, made: str) -> None:
        super().__init__(field.name, made)
        self._field = field
        self._usual = usual_types(field.type)
        self.ends = may_be_changed(field.type)

    @override
    def end_call(self) -> None:
        """User code may hold on to what it has made, and change it when the turn is another key's."""
        index = self.at
        if self.dirty[index]:
            self.values[index] = deep_copy(self.values[index])

    def _as_stored(self, value: Any) -> Any:
        """A value of an unusual type as it comes back from state; raises `BadRecordError` for one that does not fit."""
        what = f"operator {self._keys.operator}: {self.made}"
        if value is None:
            raise BadRecordError(
                f"{what} None for {self._field.name!r}; the function must return what it has made, also where it changes what it is "
                "given; clear() forgets a value",
                **self._facts(),
            )
        kind = self._field.type
        if type(value) is datetime and value.tzinfo is not None and pa.types.is_timestamp(kind):
            return value  # as it is read; one without a zone becomes one of UTC below
        if type(value) is tuple and pa.types.is_struct(kind) and len(value) == kind.num_fields:
            return dict(zip([field.name for field in kind], value, strict=True))
        return python_values(to_array([value], self._field, what))[0]

    def _facts(self) -> dict[str, object]:
        return {"operator": self._keys.operator, "key": self._keys.key(self.at)}

    def _not_assignable(self) -> AttributeError:
        name = self._field.name
        return AttributeError(
            f"{name} is changed by self.{name}.add(...) and self.{name}.clear(), not by an assignment"
        )


class ReducingCell(FoldedCell):
    """In place of a `ReducingState`."""

    __slots__ = ("_default", "_function")

    members = "a reducing state has .add(), .value and .clear()"
    declared_as = "ReducingState"

    def __init__(self, field: pa.Field, function: Callable[[Any, Any], Any], default: Any) -> None:
        super().__init__(field, f"add() with the function {name_of(function)} gave")
        self._function = function
        self._default = default

    def add(self, value: Any) -> None:
        """Fold a value into that of the key."""
        index = self.at
        if value is None:
            raise self._nothing()
        before = self.values[index]
        self.dirty[index] = 1  # before the call: it may change the value in place, and raise
        after = deep_copy(value) if before is None else self._function(before, value)
        if type(after) not in self._usual:
            after = self._as_stored(after)
        self.values[index] = after

    def _nothing(self) -> BadRecordError:
        return BadRecordError(
            f"operator {self._keys.operator}: add(None) for {self._field.name!r}; None means that there is no value, so leave it out",
            **self._facts(),
        )

    @property
    def value(self) -> Any:
        """The value of the key, or the default; a container is a copy."""
        value = self.values[self.at]
        return deep_copy(self._default if value is None else value)

    @value.setter
    def value(self, value: Any) -> None:  # noqa: ARG002 - no value is right
        raise self._not_assignable()


class AggregatingCell(FoldedCell):
    """In place of an `AggregatingState`."""

    __slots__ = ("_function",)

    members = "an aggregating state has .add(), .merge(), .value, .accumulator and .clear()"
    declared_as = "AggregatingState"

    def __init__(self, field: pa.Field, function: Any) -> None:
        super().__init__(field, f"the function {name_of(function)} gave")
        self._function = function

    def add(self, value: Any) -> None:
        """Add a value to the accumulator of the key."""
        index = self.at
        before = self.values[index]
        self.dirty[index] = 1  # before the call: it may change the accumulator in place, and raise
        after = self._function.add(self._created() if before is None else before, value)
        self.values[index] = after if type(after) in self._usual else self._as_stored(after)

    def merge(self, accumulator: Any) -> None:
        """Add all that another accumulator has; None is none."""
        if accumulator is None:
            return
        index = self.at
        other = self._form(deep_copy(accumulator))
        before = self.values[index]
        self.dirty[index] = 1
        self.values[index] = other if before is None else self._form(self._function.merge(before, other))

    def _created(self) -> Any:
        """A copy: some functions give the same object every time."""
        return self._form(deep_copy(self._function.create()))

    def _form(self, accumulator: Any) -> Any:
        return accumulator if type(accumulator) in self._usual else self._as_stored(accumulator)

    @property
    def value(self) -> Any:
        """The result for the key, None where nothing was added; a container is a copy."""
        accumulator = self.values[self.at]
        return None if accumulator is None else deep_copy(self._function.result(accumulator))

    @value.setter
    def value(self, value: Any) -> None:  # noqa: ARG002 - no value is right
        raise self._not_assignable()

    @property
    def accumulator(self) -> Any:
        """A copy of the accumulator of the key, None where nothing was added."""
        return deep_copy(self.values[self.at])
