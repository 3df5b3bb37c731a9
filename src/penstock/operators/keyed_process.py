"""What a user writes to process the rows of a key with state of their own. Driver (declared) and executors (run)."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import ConfigError
from penstock.operators.encoding import CANNOT_ENCODE, encoded
from penstock.operators.python_values import python_values
from penstock.operators.rows import Rows
from penstock.state.declared import type_ddl
from penstock.state.types import arrow_type

if TYPE_CHECKING:
    from penstock.state.declared import Type

Output = Sequence[Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Context:
    """Where the call happens. `checkpoint` is the barrier that ends the batch the rows belong to."""

    operator: str
    checkpoint: int
    subtask: int
    parallelism: int


class ValueState:
    """One value per key, declared as a class attribute: `count = ValueState("long", default=0)`, used as `self.count.value`.

    The type is Spark's, as DDL or as an object: "long" or `LongType()`. `None` means that there is no value; a key whose values are all
    `None` takes no space.
    """

    def __init__(self, type: Type, default: Any = None) -> None:  # noqa: A002 - it is what the user means
        self.ddl = type_ddl(type)
        self.arrow_type: pa.DataType = arrow_type(self.ddl)
        self.default = self._checked_default(default)
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def _checked_default(self, default: Any) -> Any:
        try:
            column = encoded([default], self.arrow_type)
        except CANNOT_ENCODE as error:
            raise ConfigError(f"default={default!r} is not a {self.ddl}: {error}", value=default) from error
        # a container looks the same whether it is the default or comes back from the state
        return python_values(column)[0] if pa.types.is_nested(self.arrow_type) else default

    @property
    def value(self) -> Any:
        """Only an operator that is being run has values; Penstock puts a cell in this place."""
        raise ConfigError(
            f"state {self.name!r} can be used only inside process(), while a key is being processed; process_batch() has "
            f"it as state[{self.name!r}]"
        )

    @value.setter
    def value(self, value: Any) -> None:
        raise ConfigError(f"state {self.name!r} can be used only inside process(), not to set {value!r}")

    def clear(self) -> None:
        """Forget the value of the key."""
        raise ConfigError(
            f"state {self.name!r} can be used only inside process(), while a key is being processed; process_batch() has "
            f"it as state[{self.name!r}]"
        )


class KeyedProcess(ABC):
    """Own Python code that sees the rows of one key at a time and remembers what it likes about the key.

    An instance is pickled into tasks: keep settings in it. What must survive belongs into state; anything else an
    instance remembers is forgotten after the batch.
    """

    @abstractmethod
    def process(self, key: Any, rows: Rows, ctx: Context) -> Iterable[Output] | None:
        """Handle the rows of one key in one batch, and yield results (tuples in the order of the schema, or dictionaries).

        Called once per key and batch, for keys that have rows; called again with the same or other rows after a recovery, on the
        state as it was at the checkpoint. `key` is the value of the key column, a tuple for several. `rows` has a length, can
        be iterated (each row acts as a named tuple) and indexed. In no promised order, unless `order_by` is given.
        The classic mistake: changing the outside world here. After a failure that happens again; use a sink.
        """

    def __setattr__(self, name: str, value: Any) -> None:
        refuse_state_assignment(self, name, f"self.{name}.value = ...")
        super().__setattr__(name, value)


class StateAssignedError(AttributeError):
    """Declared state was to be overwritten."""


def refuse_state_assignment(operator: object, name: str, instead: str) -> None:
    """Declared state must not be overwritten by mistake; `instead` is what to write."""
    if isinstance(getattr(type(operator), name, None), ValueState):
        raise StateAssignedError(f"{name} is state: write {instead} instead of self.{name} = ...")


class ValueCell:
    """The value of the current key, in place of the declared `ValueState` while the operator runs."""

    __slots__ = ("_default", "dirty", "index", "values")

    def __init__(self, default: Any) -> None:
        self._default = default
        self.values: list[Any] = []
        self.dirty: bytearray = bytearray()
        self.index = 0

    def load(self, values: list[Any]) -> None:
        """Take the values of the keys that come next."""
        self.values = values
        self.dirty = bytearray(len(values))
        self.index = 0

    @property
    def value(self) -> Any:
        """The value of the key, or the default."""
        value = self.values[self.index]
        return self._default if value is None else value

    @value.setter
    def value(self, value: Any) -> None:
        self.values[self.index] = value
        self.dirty[self.index] = 1

    def clear(self) -> None:
        """Forget the value of the key."""
        self.value = None


class ContainerCell(ValueCell):
    """A value that can be changed in place (array, map, struct): whoever looks at it may change it, so it counts as changed."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The value of the key, or a copy of the default that becomes the value."""
        index = self.index
        if self.values[index] is None and self._default is not None:
            self.values[index] = copy.deepcopy(self._default)
        self.dirty[index] = 1
        return self.values[index]

    @value.setter
    def value(self, value: Any) -> None:
        self.values[self.index] = value
        self.dirty[self.index] = 1


def declared_state(operator: object) -> dict[str, ValueState]:
    """The states of an operator's class, in the order of their names."""
    kind = type(operator)
    return {name: found for name in sorted(dir(kind)) if isinstance(found := getattr(kind, name), ValueState)}


def bind(operator: KeyedProcess) -> dict[str, ValueCell]:
    """Put a cell in place of every declared state; returns the cells by name."""
    cells: dict[str, ValueCell] = {}
    for name, state in declared_state(operator).items():
        nested = pa.types.is_nested(state.arrow_type)
        cells[name] = (ContainerCell if nested else ValueCell)(state.default)
        operator.__dict__[name] = cells[name]
    return cells
