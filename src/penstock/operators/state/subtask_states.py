"""States of a subtask: `OperatorListState`, `BroadcastState`, and what stands in their place. Driver (declared) and executors (run).

Both are kept as a list or a map of a key is, only that the key is the subtask. They are small: read as a whole when they are first used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from typing_extensions import override

from penstock.errors import ConfigError, UserCodeError
from penstock.operators.state.declarations import SubtaskState, keyed_states, subtask_states
from penstock.operators.state.list_state import ListCell, ListState
from penstock.operators.state.map_state import MapCell, MapState, map_types
from penstock.operators.state.table_cells import TableCell
from penstock.state.backends.base import OnRescale, OpenState, TableLayout
from penstock.state.ddl import type_ddl
from penstock.state.subtask_rows import SUBTASK, subtask_key
from penstock.wording import did_you_mean

if TYPE_CHECKING:
    from penstock.operators.process.user_code import Context
    from penstock.state.ddl import Type

ALL_ROWS = 1 << 40
_DEALT = {"split": OnRescale.SPLIT, "whole": OnRescale.WHOLE}
_KEY = pa.schema([SUBTASK])


class OperatorListCell(ListCell):
    """The list of this subtask. Acts as a list does."""

    __slots__ = ()

    few_rows = ALL_ROWS
    declared_as = "OperatorListState"


class BroadcastCell(MapCell):
    """The copy that this subtask has. Acts as a dictionary does; only `process_broadcast` may change it."""

    __slots__ = ("_writable",)

    few_rows = ALL_ROWS
    members = "broadcast state has what a dictionary has: [...], get(), items(), in and so on"
    declared_as = "BroadcastState"

    def __init__(self, name: str, sub: pa.Field, value: pa.Field) -> None:
        super().__init__(name, sub, value)
        self._writable = False

    @contextmanager
    def writable(self) -> Iterator[None]:
        """Inside, the broadcast state may be changed."""
        self._writable = True
        try:
            yield
        finally:
            self._writable = False

    def clear(self) -> None:
        """Forget all entries of the map."""
        self._check_writable()
        super().clear()

    def _changes_of_key(self) -> dict[Any, Any]:
        self._check_writable()
        return super()._changes_of_key()

    def _find(self, key: Any) -> tuple[bool, Any]:
        found, value = super()._find(key)
        return found, value if self._writable else self._own_copy(value)

    def _looked_at(self, key: Any, stored: Any) -> Any:
        return super()._looked_at(key, stored) if self._writable else stored

    def _check_writable(self) -> None:
        if not self._writable:
            raise UserCodeError(
                f"operator {self._operator}: the broadcast state {self.name!r} is changed outside of process_broadcast(): only this "
                "subtask would have the change. Here it can only be read; what belongs to a key has its place in a MapState",
                operator=self._operator,
                state=self.name,
            )


class OperatorListState(SubtaskState):
    """A list that each subtask of a `Process` has for itself: `open = OperatorListState("string")`, used as `self.open.append("x")`.

    It acts as a list. When the job is started with another parallelism, `on_rescale="split"` deals all elements out evenly, each to one
    subtask and in their order; `"whole"` gives every subtask all of them.
    The classic mistakes: to count on which rows a subtask sees (rows of one input partition come to one subtask, no more is promised);
    and never to thin out a `"whole"` list: every subtask hands on all that it has, so that copies multiply with each change.
    """

    cell = OperatorListCell

    def __init__(self, type: Type, on_rescale: str = "split") -> None:  # noqa: A002 - it is what the user means
        super().__init__()
        self.ddl = type_ddl(type)
        if on_rescale not in _DEALT:
            close = did_you_mean(on_rescale, list(_DEALT)) if isinstance(on_rescale, str) else ""
            raise ConfigError(
                f"on_rescale={on_rescale!r} is not allowed: it takes 'split', each element to one subtask, or 'whole', all elements to "
                f"every subtask{f'; {close}' if close else ''}",
                on_rescale=on_rescale,
            )
        self.on_rescale = _DEALT[on_rescale]

    @override
    def table(self, name: str, key: pa.Schema) -> TableLayout:
        return replace(ListState(self.ddl).table(name, _KEY), on_rescale=self.on_rescale)

    @override
    def make_cell(self, name: str) -> OperatorListCell:
        return OperatorListCell(name, *_fields(self.table(name, _KEY)))

    if TYPE_CHECKING:

        @overload
        def __get__(self, operator: None, owner: type) -> OperatorListState: ...
        @overload
        def __get__(self, operator: object, owner: type) -> OperatorListCell: ...
        def __get__(self, operator: object, owner: type) -> OperatorListState | OperatorListCell: ...


class BroadcastState(SubtaskState):
    """A dictionary of which every subtask has a copy: `rules = BroadcastState("string", "long")`, used as `self.rules["x"]`.

    `process_broadcast` changes it, with the same rows in every subtask; `process` and `process_batch` read it. Keys are as in a `MapState`.
    The classic mistake: to keep much in it. Every subtask has all of it, in memory and in its checkpoints.
    """

    cell = BroadcastCell

    def __init__(self, key_type: Type, value_type: Type) -> None:
        super().__init__()
        self.key_ddl, self.value_ddl = map_types(key_type, value_type, "BroadcastState")

    @override
    def table(self, name: str, key: pa.Schema) -> TableLayout:
        return replace(MapState(self.key_ddl, self.value_ddl).table(name, _KEY), on_rescale=OnRescale.COPY)

    @override
    def make_cell(self, name: str) -> BroadcastCell:
        return BroadcastCell(name, *_fields(self.table(name, _KEY)))

    if TYPE_CHECKING:

        @overload
        def __get__(self, operator: None, owner: type) -> BroadcastState: ...
        @overload
        def __get__(self, operator: object, owner: type) -> BroadcastCell: ...
        def __get__(self, operator: object, owner: type) -> BroadcastState | BroadcastCell: ...


def _fields(table: TableLayout) -> tuple[pa.Field, pa.Field]:
    """The column that identifies a row of the subtask, and its value."""
    return table.identity.field(1), table.value.field(0)


class SubtaskCells:
    """The cells of an operator's subtask states in one batch: bound when they are made, written at the end."""

    def __init__(self, operator: object, state: OpenState, context: Context) -> None:
        self._cells: Mapping[str, TableCell] = {
            name: declared.make_cell(name) for name, declared in subtask_states(operator).items()
        }
        for name in keyed_states(operator):
            operator.__dict__.pop(name, None)  # of the batch before: no key has its turn yet
        operator.__dict__.update(self._cells)
        for name, cell in self._cells.items():
            cell.load(state.table(name), subtask_key(context.subtask), context.operator, state.generation)

    @contextmanager
    def broadcasting(self) -> Iterator[None]:
        """Inside, broadcast state may be changed; in the end what was set must fit its types."""
        broadcast = [cell for cell in self._cells.values() if isinstance(cell, BroadcastCell)]
        with ExitStack() as writable:
            for cell in broadcast:
                writable.enter_context(cell.writable())
            yield
            self.end_call()
            for cell in broadcast:
                cell.check(0)

    def end_call(self) -> None:
        """Called when a call is over: what user code has put into state is its own from here on."""
        for cell in self._cells.values():
            if cell.ends:
                cell.end_call()

    def write(self) -> None:
        """Write what was changed; raises `BadRecordError` for a value that does not fit."""
        for cell in self._cells.values():
            cell.write()
