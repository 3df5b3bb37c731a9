"""What a user sees of stored state: by the names that the job has declared, in columns that a user knows. Pure; driver and executors.

State is stored in tables, and not all that is in them means something to a user: sort numbers, stamps of times to live, sums and counts
that are parts of an average. A view is one state of an operator, out of one table. Which views there are follows from the columns alone, as
the metadata of a checkpoint or savepoint describes them: the job is not needed, and nothing that was stored is unpickled.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from penstock.checkpoint.completed import OperatorColumns
from penstock.checkpoint.state_columns import stored_layout
from penstock.errors import ConfigError
from penstock.operators.aggregate.columns import AggregateColumn, stored_aggregates
from penstock.operators.aggregate.distinct import life_of
from penstock.operators.aggregate.merge import finish
from penstock.operators.count_windows import SIZE
from penstock.operators.early_results import AWAITED, EARLY
from penstock.operators.everything import shown_key
from penstock.operators.grouping import equal_rows
from penstock.operators.join_spec import MATCHED
from penstock.operators.python_values import as_moments
from penstock.operators.session_aggregate import ENDS, START
from penstock.operators.session_rows import TIME
from penstock.operators.timers import AT, CLOCK, EVENT_TIME, MOMENTS, timer_table
from penstock.operators.window_kinds import WINDOW_END, WINDOW_START
from penstock.operators.window_tables import LAST, PLACE
from penstock.state.backends.base import VALUES, OnRescale, TableLayout
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.keys import SORT_KEY
from penstock.state.subtask_rows import SUBTASK
from penstock.wording import did_you_mean, in_so_many_us

ROW = ""
"""The name of the view with the row of every key: all its values side by side."""
_NO_KEY = pa.schema([])
_TIMERS = {timer_table(EVENT_TIME, _NO_KEY).name: "timers", timer_table(CLOCK, _NO_KEY).name: "clock_timers"}
_ROWS_OF_SESSIONS = "__penstock_rows"
_HIDDEN = (PLACE, AWAITED)
_SIZE = re.compile(r"(?:rows of )?windows of (\d+ \w+)")


# ── columns ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shown(ABC):
    """A column that a user sees, made of stored ones."""

    name: str

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """That of its values."""

    @abstractmethod
    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Its values for stored rows."""

    @property
    def is_named_by_user(self) -> bool:
        """Whether the user has chosen the name."""
        return False

    @property
    def parts(self) -> tuple[pa.Field, ...]:
        """The stored columns that say more than what is shown of them; none where it says all."""
        return ()


@dataclass(frozen=True)
class Plain(Shown):
    """A stored column, perhaps under another name."""

    field: pa.Field

    @property
    def type(self) -> pa.DataType:
        """See `Shown.type`."""
        return self.field.type

    @property
    def is_named_by_user(self) -> bool:
        """See `Shown.is_named_by_user`."""
        return bool(self.name == self.field.name)

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """See `Shown.of`."""
        return rows.column(self.field.name)


@dataclass(frozen=True)
class TimestampColumn(Shown):
    """A stored number of microseconds as a moment, moved by so many."""

    column: str
    moved_us: int = 0

    @property
    def type(self) -> pa.DataType:
        """See `Shown.type`."""
        return MOMENTS

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """See `Shown.of`."""
        return as_moments(rows.column(self.column).to_numpy(zero_copy_only=False) + self.moved_us, MOMENTS)


@dataclass(frozen=True)
class Result(Shown):
    """What an aggregate would give now."""

    spec: AggregateColumn

    @property
    def type(self) -> pa.DataType:
        """See `Shown.type`."""
        return self.spec.output

    @property
    def is_named_by_user(self) -> bool:
        """See `Shown.is_named_by_user`."""
        return True

    @property
    def parts(self) -> tuple[pa.Field, ...]:
        """See `Shown.parts`. One row and a thousand may have the same average."""
        return tuple(pa.field(one.name, one.type) for one in self.spec.partials)

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """See `Shown.of`."""
        return finish([self.spec], rows).column(0)


@dataclass(frozen=True)
class Position(Shown):
    """The place of an element in its list, from 0 on. What is stored only grows, and has gaps."""

    key: tuple[str, ...]

    @property
    def type(self) -> pa.DataType:
        """See `Shown.type`."""
        return pa.int64()

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """See `Shown.of`. All elements of a list must be there, in their order: see `View.whole`."""
        order, starts = equal_rows([rows.column(SORT_KEY).to_numpy()], rows.select(list(self.key)).columns)
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order)) - np.repeat(starts[:-1], np.diff(starts))
        return pa.array(places)


# ── a state ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class View:
    """One state of an operator: which table it is in, which columns tell its rows apart for a user, and which are its values."""

    name: str
    kind: str
    table: TableLayout
    key: tuple[str, ...]
    """The stored columns of the key, or of the subtask."""
    identity: tuple[Shown, ...]
    value: tuple[Shown, ...]
    without_null: bool = False
    """A key that has no value is not a row of it."""
    one_copy: bool = False
    """Every subtask has the same rows: those of one are shown."""

    @property
    def columns(self) -> tuple[Shown, ...]:
        """All of them, in their order."""
        return (*self.identity, *self.value)

    @property
    def schema(self) -> pa.Schema:
        """The columns as Arrow's."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def whole(self, stored: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Stored rows of one file, cut so that `shown` can be made of each batch alone: a list is never cut in two."""
        return whole_keys(stored) if any(isinstance(one, Position) for one in self.identity) else stored

    def shown(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Stored rows as a user sees them, one for each."""
        return pa.RecordBatch.from_arrays([one.of(stored) for one in self.columns], schema=self.schema)

    def rows(self, stored: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of this state, of those that a file has."""
        for batch in map(self.shown, self.whole(stored)):
            found = (
                batch.filter(batch.column(batch.num_columns - 1).is_valid()) if self.without_null else batch
            )
            if found.num_rows:
                yield found


def whole_keys(stored: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, which come by sort key, in batches of which none ends between two rows of one sort key."""
    held: list[pa.RecordBatch] = []
    for batch in stored:
        numbers = batch.column(SORT_KEY).to_numpy()
        last = int(np.searchsorted(numbers, numbers[-1])) if len(numbers) else 0
        if held and len(numbers) and numbers[0] != held[-1].column(SORT_KEY)[-1].as_py():
            yield _together(held)
            held = []
        if last:
            yield _together([*held, batch.slice(0, last)])
            held = []
        held.append(batch.slice(last))
    if held:
        yield _together(held)


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


# ── which there are ────────────────────────────────────────────────────────────────────────────────


def views_of(columns: OperatorColumns) -> dict[str, View]:
    """The states of an operator by name: first `ROW`, where keys have values, then each of them, then those with tables of their own."""
    layout = stored_layout(columns)
    values = layout.by_name[VALUES]
    found: dict[str, View] = {}
    if len(values.visible):
        row = _told_from_users(_row(values))
        found[ROW] = row
        for one in row.value:
            kind = "aggregate" if isinstance(one, Result) else "value"
            found[one.name] = View(one.name, kind, values, row.key, row.identity, (one,), without_null=True)
    of_key = tuple(layout.key.names)
    made = [view for table in layout.tables if (view := _of_table(table, of_key)) is not None]
    for view in sorted(made, key=lambda view: view.name != view.table.name):  # declared names first
        name = view.table.name if view.name in found else view.name
        found[name] = replace(_told_from_users(view), name=name)
    return found


def _told_from_users(view: View) -> View:
    """The same where a column that Penstock has named is called otherwise if a user has one of that name."""
    users = {one.name for one in view.columns if one.is_named_by_user}

    def told(columns: tuple[Shown, ...]) -> tuple[Shown, ...]:
        return tuple(
            replace(one, name=f"penstock_{one.name}")
            if one.name in users and not one.is_named_by_user
            else one
            for one in columns
        )

    return replace(view, identity=told(view.identity), value=told(view.value))


def stored_view(columns: OperatorColumns, name: str | None) -> View:
    """All that is stored for a state, internal columns included; `name` may be that of a table."""
    views = views_of(columns)
    tables = stored_layout(columns).by_name
    view = views.get(name or ROW)
    table = view.table if view is not None else tables.get(name or VALUES)
    if table is None:
        raise _unknown(name or "", [*filter(None, views), *tables])
    identity = len(table.identity) + (2 if table.ordered else 1)
    shown = tuple(Plain(field.name, field) for field in numbered_schema(table))
    key = tuple(table.identity.names)[: len(columns.key)]
    return View(table.name, "stored", table, key, shown[:identity], shown[identity:])


def find_view(columns: OperatorColumns, name: str | None, operator: str) -> View:
    """The state of this name; without one the row of every key, or the only state that there is."""
    views = views_of(columns)
    if name is None and ROW not in views and len(views) == 1:
        return next(iter(views.values()))
    view = views.get(ROW if name is None else name)
    if view is None and name:
        view = next((one for one in views.values() if one.table.name == name), None)
    if view is None:
        raise _unknown(name, views, operator)
    return view


def _unknown(name: str | None, known: Iterable[str], operator: str = "") -> ConfigError:
    names = [one for one in known if one]
    there = f"there are {', '.join(map(repr, names))}" if names else "it has no state"
    of = f" of {operator!r}" if operator else ""
    if name is None:
        return ConfigError(f"the keys{of} have no row of values; say which state: {there}", known=names)
    close = did_you_mean(name, names)
    return ConfigError(
        f"no state{of} is called {name!r}; {there}{f'; {close}' if close else ''}", known=names
    )


def _row(values: TableLayout) -> View:
    identity = _plain(shown_key(values.identity))
    return View(ROW, "row", values, tuple(values.identity.names), identity, _values(values.visible))


def _plain(fields: Iterable[pa.Field]) -> tuple[Shown, ...]:
    return tuple(Plain(field.name, field) for field in fields)


def _values(fields: Sequence[pa.Field]) -> tuple[Shown, ...]:
    """Aggregates as their results, everything else as it is stored; without what only Penstock needs."""
    found: list[Shown] = []
    aggregates = {spec.partials[0].name: spec for spec in stored_aggregates(fields)}
    parts = {partial.name for spec in aggregates.values() for partial in spec.partials}
    for field in fields:
        if field.name in aggregates:
            spec = aggregates[field.name]
            found.append(Result(spec.name, spec))
        elif field.name.startswith(SIZE) or field.name == _ROWS_OF_SESSIONS:
            found.append(Plain("rows", field))
        elif field.name == MATCHED.name:
            found.append(Plain("matched", field))
        elif field.name not in parts and field.name not in _HIDDEN and life_of(field.name) is None:
            found.append(Plain(field.name, field))
    return tuple(found)


def _of_table(table: TableLayout, of_key: tuple[str, ...]) -> View | None:
    """None for a table that only says when something else is due."""
    if table.on_rescale is not OnRescale.BY_KEY:
        return _of_subtasks(table)
    key = _plain(field for field in shown_key(table.identity) if field.name in of_key)
    own = [field for field in table.identity if field.name not in of_key]
    name, kind, more, value = _told_apart(table, own, of_key)
    if not kind:
        return None
    return View(name, kind, table, of_key, (*key, *more), value)


_Told = tuple[str, str, tuple[Shown, ...], tuple[Shown, ...]]
"""The name and the kind of a table ('' if a user does not know it), what tells rows of a key apart, and values."""


def _told_apart(table: TableLayout, own: Sequence[pa.Field], of_key: tuple[str, ...]) -> _Told:
    """What a table is: operators give their tables and columns such names that it can be seen from these."""
    name, names = table.name, [field.name for field in own]
    value = _values(table.visible)
    if name in _TIMERS:
        return _TIMERS[name], "timers", (TimestampColumn("at", AT),), ()
    if names == [f"{name}_key"]:
        return name, "map", _plain(own), value
    if names == [f"{name}_position"]:
        return name, "list", (Position(names[0], of_key),), value
    if name in (ENDS, EARLY) or "without a partner" in name:
        return name, "", (), ()
    return _of_distinct(name, own) or _of_windows(name, names, value) or _of_rows(table, own, value)


def _of_windows(name: str, names: Sequence[str], value: tuple[Shown, ...]) -> _Told | None:
    if START in names:
        return (
            "windows",
            "windows",
            (TimestampColumn(WINDOW_START, START), TimestampColumn(WINDOW_END, LAST, 1)),
            value,
        )
    if LAST not in names:
        return None
    said = _SIZE.match(name)
    size_us = (in_so_many_us(said[1]) if said else None) or 0
    bounds = (TimestampColumn(WINDOW_START, LAST, 1 - size_us), TimestampColumn(WINDOW_END, LAST, 1))
    called = ("rows", "rows of windows") if PLACE in names else ("windows", "windows")
    return *called, bounds, value


def _of_distinct(name: str, own: Sequence[pa.Field]) -> _Told | None:
    values = [field for field in own if field.name != LAST]
    if not values or not all(field.name.startswith(f"{name}_") for field in values):
        return None
    counted = name.removeprefix("__").removesuffix("_distinct")
    called = [counted] if len(values) == 1 else [f"{counted}_{at}" for at in range(len(values))]
    window = (TimestampColumn(WINDOW_END, LAST, 1),) if len(own) > len(values) else ()
    return f"{counted}_values", "distinct values", (*window, *map(Plain, called, values)), ()


def _of_rows(table: TableLayout, own: Sequence[pa.Field], value: tuple[Shown, ...]) -> _Told:
    """Whole rows of the stream, and the moments that `dedupe` keeps."""
    name, names = table.name, [field.name for field in own]
    if names == [TIME]:
        return name, "moments", (TimestampColumn("at", TIME),), ()
    side = next((side for side in ("left", "right") if name.startswith(f"rows of the {side} input")), None)
    stamps = {lifetime.stamp for lifetime in table.lifetimes} | {f"__event_{side}"}
    value = tuple(one for one in value if one.name not in stamps)
    shown = _plain(field for field in own if field.name not in (*_HIDDEN, TIME))
    if side is not None:
        return side, "rows of a join", shown, value
    short = next((word for word in ("top", "rows") if name.startswith(f"{word} ")), name)
    return short, "rows", shown, value


def _of_subtasks(table: TableLayout) -> View:
    """In these the subtask is the key."""
    of_key = (SUBTASK.name,)
    sub = table.identity.field(1)
    if table.on_rescale is OnRescale.COPY:
        return View(
            table.name, "broadcast", table, of_key, _plain([sub]), _values(table.visible), one_copy=True
        )
    identity = (Plain("subtask", SUBTASK), Position(sub.name, of_key))
    return View(table.name, "operator list", table, of_key, identity, _values(table.visible))
