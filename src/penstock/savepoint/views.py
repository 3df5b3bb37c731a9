"""What a user sees of stored state: by the names that the job has declared, in columns that a user knows. Pure; driver and executors.

State is stored in tables, and not all that is in them means something to a user: sort numbers, stamps of times to live, sums and counts
that are parts of an average. A view is one state of an operator, out of one table. Which views there are follows from the columns alone, as
the metadata of a checkpoint or savepoint describes them: the job is not needed, and nothing that was stored is unpickled.
What is stored does not say which operator wrote it. So every kind of spec is asked how a table is shown, where its rows lie and whether
they can be written: each recognises its own tables and columns by their names, and the first one that does answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from penstock.checkpoint.model import OperatorColumns
from penstock.checkpoint.state_columns import stored_layout
from penstock.errors import ConfigError
from penstock.operators.aggregate.columns import stored_aggregates
from penstock.operators.aggregate.operator import AggregateSpec
from penstock.operators.base import Spec
from penstock.operators.dedupe import DedupeSpec
from penstock.operators.inputs import shown_key
from penstock.operators.join.spec import JoinSpec
from penstock.operators.process.task import ProcessSpec
from penstock.operators.top import TopSpec
from penstock.operators.views import (
    ROW,
    Plain,
    Position,
    Result,
    Shown,
    StoredTable,
    TableView,
    TimestampColumn,
    View,
    plain,
)
from penstock.operators.window.operator import WINDOW_SPECS
from penstock.state.backends.base import VALUES, OnRescale, StateLayout, TableLayout
from penstock.state.backends.sorted_file import numbered_schema
from penstock.state.subtask_rows import SUBTASK
from penstock.wording import did_you_mean

SPECS: tuple[type[Spec], ...] = (
    ProcessSpec,
    AggregateSpec,
    DedupeSpec,
    JoinSpec,
    *WINDOW_SPECS,
    TopSpec,
)
"""Asked in this order. A lookup is missing: its table is shown as it is stored."""


def table_view(table: StoredTable) -> TableView:
    """What a user sees of a stored table; one that no spec knows is shown as it is stored."""
    found = (spec.shown(table) for spec in SPECS)
    known = next((view for view in found if view is not None), None)
    return known or TableView(table.name, "rows", plain(table.own), table.value)


def column_name(column: str) -> str:
    """The name under which a user sees a stored value; '' for a column that only the operator needs."""
    names = (spec.shown_as(column) for spec in SPECS)
    return next((name for name in names if name is not None), column)


def placed_by(layout: StateLayout) -> TimestampColumn | None:
    """The number that, with the key, decides in which subtask rows of this state lie; None where the key alone decides."""
    found = (spec.placed_by(layout) for spec in SPECS)
    return next((column for column in found if column is not None), None)


def refused_values(layout: StateLayout) -> str:
    """Why a user cannot write the values of keys of this state; '' where that is possible."""
    return next(filter(None, (spec.refused_values(layout) for spec in SPECS)), "")


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
    identity = plain(shown_key(values.identity))
    return View(ROW, "row", values, tuple(values.identity.names), identity, _values(values.visible))


def _values(fields: Sequence[pa.Field]) -> tuple[Shown, ...]:
    """Aggregates as their results, everything else as it is stored; without what only Penstock needs."""
    found: list[Shown] = []
    aggregates = {spec.partials[0].name: spec for spec in stored_aggregates(fields)}
    parts = {partial.name for spec in aggregates.values() for partial in spec.partials}
    for field in fields:
        if field.name in aggregates:
            spec = aggregates[field.name]
            found.append(Result(spec.name, spec))
        elif field.name not in parts and (name := column_name(field.name)):
            found.append(Plain(name, field))
    return tuple(found)


def _of_table(table: TableLayout, of_key: tuple[str, ...]) -> View | None:
    """None for a table that only says when something else is due."""
    if table.on_rescale is not OnRescale.BY_KEY:
        return _of_subtasks(table)
    key = plain(field for field in shown_key(table.identity) if field.name in of_key)
    own = tuple(field for field in table.identity if field.name not in of_key)
    seen = table_view(StoredTable(table, of_key, own, _values(table.visible)))
    if not seen.kind:
        return None
    return View(seen.name, seen.kind, table, of_key, (*key, *seen.identity), seen.value)


def _of_subtasks(table: TableLayout) -> View:
    """In these the subtask is the key."""
    of_key = (SUBTASK.name,)
    sub = table.identity.field(1)
    if table.on_rescale is OnRescale.COPY:
        return View(
            table.name, "broadcast", table, of_key, plain([sub]), _values(table.visible), one_copy=True
        )
    identity = (Plain("subtask", SUBTASK), Position(sub.name, of_key))
    return View(table.name, "operator list", table, of_key, identity, _values(table.visible))
