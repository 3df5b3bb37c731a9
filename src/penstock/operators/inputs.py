"""The rows that a task of an operator is given: those of its stream, and those of its broadcast side or second input. Executors.

Both travel in one frame, so that one task has both: each row has null in the columns of the other kind. So does a row that only wakes
the subtask, in a batch in which all are to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.time_column import TimeColumn
from penstock.state.keys import SORT_KEY

BROADCAST = "__penstock_broadcast"
"""A number that puts the rows of the broadcast side in order, the same in every subtask; null in all other rows."""

FROM_RIGHT = "__penstock_right"
"""True in the rows of the second input, null in all others."""

WAKE = "__penstock_wake"
"""True in rows that only wake a subtask, null in all others; not there in a batch that wakes nobody."""


@dataclass(frozen=True)
class RightInput:
    """The columns of a second input, those of its key, and that with its event time where it has one."""

    columns: tuple[str, ...]
    keys: tuple[str, ...]
    event_time: TimeColumn | None = None


def travelling_names(kind: str, columns: Sequence[str]) -> list[str]:
    """The names under which the columns of a `BROADCAST` side or of the `FROM_RIGHT` input travel: such as no column of a stream has."""
    return [f"{kind}_{at}" for at in range(len(columns))]


@dataclass(frozen=True)
class TaskRows:
    """What a subtask gets of a batch."""

    own: pa.Table
    broadcast: pa.Table | None = None
    """The rows of the broadcast side in their order, under their own names; None where there are none."""
    right: pa.Table | None = None
    """The rows of the second input, under their own names, with their sort keys; None where there is no such input."""

    def __len__(self) -> int:
        others = [int(rows.num_rows) for rows in (self.broadcast, self.right) if rows is not None]
        return int(self.own.num_rows) + sum(others)


def collected(batches: Iterable[pa.RecordBatch], keys: pa.Schema) -> pa.Table | None:
    """All rows of the task; keys in the types of the state, whatever the session's time zone."""
    received = [batch for batch in batches if batch.num_rows]
    if not received:
        return None
    table = pa.Table.from_batches(received)
    for field in keys:
        index = table.column_names.index(field.name)
        if table.schema.field(index).type != field.type:
            table = table.set_column(index, field.name, table.column(index).cast(field.type))
    return table


def divided(
    table: pa.Table, broadcast: Sequence[str] | None = None, right: Sequence[str] | None = None
) -> TaskRows:
    """The rows apart; `broadcast` and `right` have the names of the columns of that side, None where there is none."""
    if WAKE in table.column_names:
        table = table.filter(table.column(WAKE).is_null()).drop_columns([WAKE])
    if right is not None:
        return _two_inputs(table, right)
    if broadcast is None:
        return TaskRows(table)
    travelling = travelling_names(BROADCAST, broadcast)
    own, number = table.drop_columns([BROADCAST, *travelling]), table.column(BROADCAST)
    if number.null_count == len(number):
        return TaskRows(own)
    told = table.filter(number.is_valid()).sort_by(BROADCAST).select(travelling)
    return TaskRows(own.filter(number.is_null()), told.rename_columns(list(broadcast)))


def _two_inputs(table: pa.Table, right: Sequence[str]) -> TaskRows:
    travelling, is_right = travelling_names(FROM_RIGHT, right), table.column(FROM_RIGHT).is_valid()
    own = table.drop_columns([FROM_RIGHT, *travelling]).filter(pc.invert(is_right))
    other = table.select([*travelling, SORT_KEY]).filter(is_right)
    return TaskRows(own, right=other.rename_columns([*right, SORT_KEY]))
