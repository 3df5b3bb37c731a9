"""The rows that a task of an operator is given: those of its stream, and beside them those of its broadcast side. Executors.

Both travel in one frame, so that one task has both: each row has null in the columns of the other kind. So does a row that only wakes
the subtask, in a batch in which all are to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

BROADCAST = "__penstock_broadcast"
"""A number that puts the rows of the broadcast side in order, the same in every subtask; null in all other rows."""

WAKE = "__penstock_wake"
"""True in rows that only wake a subtask, null in all others; not there in a batch that wakes nobody."""


def broadcast_column(at: int) -> str:
    """The name under which a column of the broadcast side travels: one that no column of a stream has."""
    return f"{BROADCAST}_{at}"


@dataclass(frozen=True)
class TaskRows:
    """What a subtask gets of a batch."""

    own: pa.Table
    broadcast: pa.Table | None = None
    """The rows of the broadcast side in their order, under their own names; None where there are none."""

    def __len__(self) -> int:
        return int(self.own.num_rows) + (0 if self.broadcast is None else int(self.broadcast.num_rows))


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


def divided(table: pa.Table, broadcast: Sequence[str] | None) -> TaskRows:
    """The rows apart; `broadcast` has the names of the columns of the broadcast side, None where there is none."""
    if WAKE in table.column_names:
        table = table.filter(table.column(WAKE).is_null()).drop_columns([WAKE])
    if broadcast is None:
        return TaskRows(table)
    travelling = [broadcast_column(at) for at in range(len(broadcast))]
    own, number = table.drop_columns([BROADCAST, *travelling]), table.column(BROADCAST)
    if number.null_count == len(number):
        return TaskRows(own)
    told = table.filter(number.is_valid()).sort_by(BROADCAST).select(travelling)
    return TaskRows(own.filter(number.is_null()), told.rename_columns(list(broadcast)))
