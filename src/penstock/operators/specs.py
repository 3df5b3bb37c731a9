"""Asks every kind of spec about stored state: how it is shown, where it lies, whether it can be written. Pure; driver and executors.

State must be readable without the job, and what is stored does not say which operator wrote it. So each spec recognises its own tables and
columns by their names, and the first one that does answers.
"""

from __future__ import annotations

from penstock.operators.aggregate.operator import AggregateSpec
from penstock.operators.base import Spec
from penstock.operators.dedupe import DedupeSpec
from penstock.operators.join.spec import JoinSpec
from penstock.operators.process.task import ProcessSpec
from penstock.operators.top import TopSpec
from penstock.operators.views import StoredTable, TableView, TimestampColumn, plain
from penstock.operators.window.count import CountRowsSpec, CountSpec
from penstock.operators.window.own_code import WindowRowsSpec
from penstock.operators.window.session import SessionSpec
from penstock.operators.window.session_rows import SessionRowsSpec
from penstock.operators.window.time import WindowSpec
from penstock.state.backends.base import StateLayout

SPECS: tuple[type[Spec], ...] = (
    ProcessSpec,
    AggregateSpec,
    DedupeSpec,
    JoinSpec,
    SessionSpec,
    SessionRowsSpec,
    WindowSpec,
    WindowRowsSpec,
    CountSpec,
    CountRowsSpec,
    TopSpec,
)
"""Asked in this order: sessions before other windows, because they share a column. A lookup is missing: its table is shown as stored."""


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
