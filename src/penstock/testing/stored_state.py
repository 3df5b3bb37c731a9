"""The state of an operator under test, in the form in which user code sees it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.checkpoint.state_columns import columns_of
from penstock.operators.state.timers import CLOCK, EVENT_TIME, Timer, timer_table
from penstock.operators.views import ROW, View
from penstock.savepoint.views import views_of
from penstock.state.backends.base import VALUES
from penstock.testing.row_tables import Row, as_dicts
from penstock.testing.subtasks import Subtasks

_TIMERS = "timers"
_OF_SUBTASKS = ("operator list", "broadcast")
_BY_EVENT_TIME = timer_table(EVENT_TIME, pa.schema([])).name


@dataclass(frozen=True)
class StoredState:
    """What the subtasks have stored after their last batch."""

    subtasks: Subtasks

    @cached_property
    def _views(self) -> dict[str, View]:
        views = views_of(columns_of(self.subtasks.layout))
        return {name: view for name, view in views.items() if name != ROW}

    def of_key(self, key: Any) -> dict[str, Any]:
        """The states of a key by name."""
        found = {}
        for name, view in self._views.items():
            if view.kind not in (_TIMERS, *_OF_SUBTASKS):
                found[name] = [own for of, own in self._rows(view) if of == _as_tuple(key)]
        return {name: _as_declared(self._views[name], rows) for name, rows in found.items() if rows}

    def of_subtasks(self) -> dict[str, Any]:
        """The states that belong to subtasks and not to keys, by name."""
        found = {
            name: as_dicts(self._batches(view))
            for name, view in self._views.items()
            if view.kind in _OF_SUBTASKS
        }
        return {name: _as_declared(self._views[name], rows) for name, rows in found.items() if rows}

    def timers(self, key: Any) -> list[Timer]:
        """The timers of a key that have not fired, in order."""
        found = [
            Timer(own["at"], EVENT_TIME if view.table.name == _BY_EVENT_TIME else CLOCK)
            for view in self._views.values()
            if view.kind == _TIMERS
            for of, own in self._rows(view)
            if of == _as_tuple(key)
        ]
        return sorted(found)

    def keys(self) -> list[Any]:
        """The keys that have state or timers."""
        views = [one for one in self._views.values() if one.kind not in _OF_SUBTASKS]
        found = dict.fromkeys(key for view in views for key, _ in self._rows(view))
        return [key[0] if len(key) == 1 else key for key in found]

    def _rows(self, view: View) -> Iterator[tuple[tuple[Any, ...], Row]]:
        """The rows of a state: the key of each, and its other columns."""
        keys = len(self.subtasks.layout.key)
        for row in as_dicts(self._batches(view)):
            values = list(row.items())
            yield _hashable([value for _, value in values[:keys]]), dict(values[keys:])

    def _batches(self, view: View) -> Iterator[pa.RecordBatch]:
        for index in range(1 if view.one_copy else self.subtasks.parallelism):
            with self.subtasks.opened(index) as state:
                table = state if view.table.name == VALUES else state.table(view.table.name)
                yield from view.rows(table.scan())


def _as_declared(view: View, rows: list[Row]) -> Any:
    """The rows of a state in the form in which user code sees it."""
    values = [list(row.values()) for row in rows]
    if view.kind in ("value", "aggregate"):
        return values[0][-1]
    if view.kind in ("map", "broadcast"):
        return {_hashable_value(key): value for *_, key, value in values}
    if view.kind in ("list", "operator list"):
        return [one[-1] for one in values]
    return rows


def _as_tuple(key: Any) -> tuple[Any, ...]:
    return _hashable(key if isinstance(key, tuple) else (key,))


def _hashable(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(map(_hashable_value, values))


def _hashable_value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable_value, value))
    return tuple(map(_hashable_value, value.values())) if isinstance(value, dict) else value
