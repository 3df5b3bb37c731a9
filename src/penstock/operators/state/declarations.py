"""The kinds of state that an operator declares as class attributes. Driver (declared) and executors (looked up).

A `ColumnState` has a column in the row of the key, so that all such states of a key are read and written together. A kind that keeps many
things for a key is a `DeclaredState` with a table of its own.
"""

from __future__ import annotations

import inspect
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError
from penstock.operators.outputs import SideOutput
from penstock.operators.state.batch_tables import BatchTable
from penstock.operators.state.cells import (
    Cell,
    ColumnCell,
    ComparedContainerCell,
    ContainerCell,
    StateAssignedError,
    ValueCell,
    with_read_tracking,
)
from penstock.operators.state.table_cells import TableCell
from penstock.operators.state.table_rows import PieceRows
from penstock.operators.state.timers import is_timer_table, timer_tables
from penstock.operators.state.ttl import TTL, ColumnStamps, TouchTimes, time_to_live
from penstock.operators.values.encoding import CANNOT_ENCODE, StoredForm, encoded
from penstock.operators.values.python_values import python_values
from penstock.state.backends.base import OpenState, Parts, StateLayout, TableLayout, with_stamps
from penstock.state.ddl import arrow_type, type_ddl
from penstock.state.keys import KeyBatch
from penstock.state.lifetimes import Lifetime, Measure
from penstock.wording import counted

if TYPE_CHECKING:
    from penstock.state.ddl import Type


Kind = TypeVar("Kind", bound=ColumnCell)
TIMERS = "timers"
"""What the timers of an operator are called among its states."""


class DeclaredState(ABC):
    """A state of any kind. While the operator runs, the cell that it makes stands in its place."""

    def __init__(self, ttl: TTL | None = None) -> None:
        self.name = ""
        self.ttl = time_to_live(ttl)
        """How long it is kept; None for ever."""

    def lifetimes(self, name: str) -> tuple[Lifetime, ...]:
        """The lifetime of its values, where they expire; `name` is the name under which it is declared."""
        return () if self.ttl is None else (self.ttl.lifetime(name, state=name),)

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @abstractmethod
    def make_cell(self, name: str) -> Cell:
        """Make the cell that takes its place; called once for every task, with the name under which it is declared."""

    def clear(self) -> None:
        """Forget what is kept for the key."""
        raise self._outside()

    def _outside(self) -> ConfigError:
        """Only an operator that is being run has state."""
        return ConfigError(
            f"state {self.name!r} can be used only inside process(), while a key is being processed; process_batch() has "
            f"it as state[{self.name!r}]"
        )


class ColumnState(DeclaredState):
    """A state with a column in the row of the key: one value of one type, or none."""

    def __init__(
        self,
        type: Type,  # noqa: A002 - it is what the user means
        default: Any = None,
        *,
        ttl: TTL | None = None,
    ) -> None:
        super().__init__(ttl)
        self.ddl = type_ddl(type)
        self.arrow_type: pa.DataType = arrow_type(self.ddl)
        self.default = self._checked_default(default)
        """What is read where there is no value, in the form in which it would be stored."""

    @abstractmethod
    @override
    def make_cell(self, name: str) -> ColumnCell: ...

    def _kind(self, kind: type[Kind]) -> type[Kind]:
        """The kind of cell for it: one that notes who looks at it, where that renews it."""
        return with_read_tracking(kind) if self.ttl is not None and self.ttl.renews else kind

    def _checked_default(self, default: Any) -> Any:
        try:
            return self._as_stored(default)
        except CANNOT_ENCODE as error:
            raise ConfigError(f"default={default!r} is not a {self.ddl}: {error}", value=default) from error

    def _as_stored(self, value: Any) -> Any:
        """A container looks the same whether it is given in the code or comes back from the state; raises one of `CANNOT_ENCODE`."""
        column = encoded([value], self.arrow_type)
        return python_values(column)[0] if pa.types.is_nested(self.arrow_type) else value


class TableState(DeclaredState):
    """A state with a table of its own: many rows for a key."""

    cell: ClassVar[type[TableCell]]
    """What stands in its place, key by key."""
    columns: ClassVar[type[BatchTable]]
    """The same for many keys at once."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("__") and hasattr(self.cell, name):
            raise self._outside()
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __getitem__(self, key: Any) -> Any:
        """Only while the operator runs: an entry or an element."""
        raise self._outside()

    def __setitem__(self, key: Any, value: Any) -> None:
        """Only while the operator runs: set an entry or an element."""
        raise self._outside()

    def __iter__(self) -> Iterator[Any]:
        """Only while the operator runs: its entries or elements."""
        raise self._outside()

    @abstractmethod
    def table(self, name: str, key: pa.Schema) -> TableLayout:
        """Its table, in an operator with this key."""

    @abstractmethod
    @override
    def make_cell(self, name: str) -> TableCell: ...

    def in_columns(
        self, name: str, state: OpenState, keys: KeyBatch, operator: str, touches: TouchTimes
    ) -> BatchTable:
        """Make the table in columns that takes its place for these keys."""
        layout = self.table(name, keys.columns.schema)
        renews = self.ttl is not None and self.ttl.renews
        rows = PieceRows(state.table(name), layout, keys, touches=touches, renews=renews)
        return self.columns(name, rows, operator, state.generation)


class SubtaskState(TableState):
    """A state of the subtask rather than of a key: in its table the subtask is the key, see `state.subtask_rows`."""

    def _outside(self) -> ConfigError:
        return ConfigError(
            f"state {self.name!r} can be used only while the operator runs, inside its process functions"
        )


class ValueState(ColumnState):
    """One value per key, declared as a class attribute: `count = ValueState("long", default=0)`, used as `self.count.value`.

    The type is Spark's, as DDL or as an object: "long" or `LongType()`. `None` means that there is no value; a key whose values are all
    `None` takes no space. `ttl`: how long it is kept, as "24h" or a `TimeToLive`, for any kind of state.
    """

    @override
    def make_cell(self, name: str) -> ValueCell:
        kind = ContainerCell if self.ttl is None else ComparedContainerCell
        cell = kind if pa.types.is_nested(self.arrow_type) else ValueCell
        return self._kind(cell)(name, self.default, StoredForm(self.arrow_type))

    @property
    def value(self) -> Any:
        """The value of the key, or the default."""
        raise self._outside()

    @value.setter
    def value(self, value: Any) -> None:
        raise ConfigError(f"state {self.name!r} can be used only inside process(), not to set {value!r}")


class OperatorType(ABCMeta):
    """The type of classes that declare state. Two states of one name are refused: Python would silently keep the second."""

    @classmethod
    def __prepare__(cls, name: str, bases: tuple[type, ...], /, **kwargs: Any) -> dict[str, object]:
        """Called by Python for what is written in the body of such a class."""
        return _Body(super().__prepare__(name, bases, **kwargs))


class _Body(dict[str, object]):
    def __setitem__(self, name: str, value: object) -> None:
        before = self.get(name)
        if isinstance(before, DeclaredState) or (before is not None and isinstance(value, DeclaredState)):
            raise ConfigError(f"the class has {name!r} twice: a state needs a name of its own", state=name)
        super().__setitem__(name, value)


def declared_state(operator: object) -> dict[str, DeclaredState]:
    """All states of an operator's class, in the order of their names."""
    kind = type(operator)
    return {
        name: found for name in sorted(dir(kind)) if isinstance(found := getattr(kind, name), DeclaredState)
    }


def keyed_states(operator: object) -> dict[str, DeclaredState]:
    """The states that every key has, by name."""
    found = declared_state(operator)
    return {name: state for name, state in found.items() if not isinstance(state, SubtaskState)}


def subtask_states(operator: object) -> dict[str, SubtaskState]:
    """The states of the subtask, by name."""
    found = declared_state(operator)
    return {name: state for name, state in found.items() if isinstance(state, SubtaskState)}


def column_states(operator: object) -> dict[str, ColumnState]:
    """The states that are kept in the row of the key, by name."""
    return {name: state for name, state in declared_state(operator).items() if isinstance(state, ColumnState)}


def table_states(operator: object) -> dict[str, TableState]:
    """The states of a key with a table of their own, by name."""
    return {name: state for name, state in keyed_states(operator).items() if isinstance(state, TableState)}


def state_tables(operator: object, key: pa.Schema) -> tuple[TableLayout, ...]:
    """The tables of all states that have one."""
    declared = declared_state(operator)
    return tuple(state.table(name, key) for name, state in declared.items() if isinstance(state, TableState))


def state_layout(operator: object, key: pa.Schema) -> StateLayout:
    """The state of an operator with this key; refuses a table that would have two columns of one name."""
    tables = (*state_tables(operator, key), *timer_tables(operator, key))
    for table in tables:
        if len(set(table.identity.names + table.value.names)) < len(table.identity) + len(table.value):
            raise ConfigError(
                f"the state {table.name!r} of {type(operator).__name__} has the name of a key column, of which its table would have two; "
                "call it something else",
                state=table.name,
            )
    lifetimes = column_lifetimes(operator)
    value = value_schema(operator)
    for lifetime in lifetimes:
        if lifetime.stamp in (*key.names, *value.names):
            raise ConfigError(
                f"{type(operator).__name__} has a column {lifetime.stamp!r}, in which Penstock keeps when the state was last touched; "
                "rename the column",
                column=lifetime.stamp,
            )
    return StateLayout(key, with_stamps(value, lifetimes), tables, lifetimes, DECLARED_STATES)


class DeclaredStates(Parts):
    """Each column and each table is a state of own code, by its name. What is missing reads as if it had never been set."""

    divisible = True
    may_begin_empty = True

    def of_table(self, table: str) -> str:
        """Timers in event time and by the clock are one part."""
        return TIMERS if is_timer_table(table) else table

    def table_words(self, table: str) -> str:
        """A table of timers says by which time they fire."""
        return table.strip("_").replace("_", " ") if is_timer_table(table) else ""


DECLARED_STATES = DeclaredStates()


def column_lifetimes(operator: object) -> tuple[Lifetime, ...]:
    """Which columns of the row of a key expire."""
    return tuple(
        lifetime for name, state in column_states(operator).items() for lifetime in state.lifetimes(name)
    )


def column_stamps(operator: object) -> dict[str, ColumnStamps]:
    """The stamps of the columns that expire, by the name of the state."""
    return {
        name: ColumnStamps(lifetime, renews=state.ttl is not None and state.ttl.renews)
        for name, state in column_states(operator).items()
        for lifetime in state.lifetimes(name)
    }


def lives_by_event_time(operator: object) -> bool:
    """Whether some state of a key has a time to live in event time."""
    return any(
        lifetime.measure is Measure.WATERMARK
        for name, state in keyed_states(operator).items()
        for lifetime in state.lifetimes(name)
    )


def value_schema(operator: object) -> pa.Schema:
    """The columns of the row of a key, without stamps."""
    return pa.schema([pa.field(name, state.arrow_type) for name, state in column_states(operator).items()])


def refuse_state_assignment(operator: object, name: str, instead: str = "") -> None:
    """Refuse an assignment to a declared state; `instead` is what to write, where the kind of state does not say it."""
    state = getattr(type(operator), name, None)
    if isinstance(state, SideOutput):
        raise StateAssignedError(f"{name} is a side output: emit rows to it instead of self.{name} = ...")
    if isinstance(state, DeclaredState):
        own = f"self.{name}{state.make_cell(name).instead}"
        write = own if isinstance(state, SubtaskState) else instead or own
        raise StateAssignedError(f"{name} is state: write {write} instead of self.{name} = ...")


class HoldsCells:
    """Own code in whose attributes cells take the place of declared states."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Cell) and self.__dict__.get(name) is value:
            return  # of `self.recent += [...]`, which has changed it already
        refuse_state_assignment(self, name)
        super().__setattr__(name, value)


def name_of(function: Any) -> str:
    """The name of a function or object in a message."""
    name = getattr(function, "__qualname__", None)
    if isinstance(name, str):
        return name
    return repr(function) if callable(function) else type(function).__qualname__


def check_takes(function: Any, number: int, what: str, given: str) -> None:
    """Refuse what cannot be called with `number` arguments; `given` says which they are. Some built-in functions cannot be checked."""
    if not callable(function):
        raise ConfigError(
            f"{what}={function!r} is not a function: give one that takes {given}", function=function
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*(None,) * number)
    except TypeError as error:
        called = f"called with {counted(number, 'argument')}{f' ({given})' if given else ''}"
        raise ConfigError(
            f"{what}={name_of(function)}{signature} cannot be {called}: {error}", function=function
        ) from error
