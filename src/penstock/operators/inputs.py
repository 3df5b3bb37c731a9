"""The input of an operator: the checks of its columns, and the rows that a task receives. Driver and executors.

Rows of the stream travel in one frame with those of the broadcast side or of the second input, so that one task receives both: each row has
null in the columns of the other kind. So does a row that only wakes the subtask, in a batch in which all subtasks have to run.

An operator without a key has the key column `EVERYTHING`, whose value is the same in all rows. Spark reduces the rows of a batch in all its
tasks before that key brings them together, so only a few rows reach the one subtask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError
from penstock.operators.event_time import TimeColumn
from penstock.operators.values.row_order import Order
from penstock.state.keys import SORT_KEY
from penstock.wording import with_article

BROADCAST = "__penstock_broadcast"
"""A number that puts the rows of the broadcast side in order, the same in every subtask; null in all other rows."""

FROM_RIGHT = "__penstock_right"
"""True in the rows of the second input, null in all others."""

WAKE = "__penstock_wake"
"""True in rows that only wake a subtask, null in all others; missing in a batch without such rows."""
KeyColumn = tuple[str, object, str]
"""A key column: its name, its type, and what the type is called."""
EVERYTHING = "__penstock_everything"
"""The key column of operators without a key."""


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
    """The rows that a subtask receives in a batch."""

    own: pa.Table
    broadcast: pa.Table | None = None
    """The rows of the broadcast side in their order, under their own names; None where there are none."""
    right: pa.Table | None = None
    """The rows of the second input, under their own names, with their sort keys; None where there is no such input."""

    def __len__(self) -> int:
        others = [int(rows.num_rows) for rows in (self.broadcast, self.right) if rows is not None]
        return int(self.own.num_rows) + sum(others)


def collected(batches: Iterable[pa.RecordBatch], keys: pa.Schema) -> pa.Table | None:
    """All rows of the task, with keys in the types of the state, in any time zone of the session."""
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
    """Separate the rows of each input; `broadcast` and `right` have the names of the columns of that side, None where there is none."""
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
    received = table.filter(number.is_valid()).sort_by(BROADCAST).select(travelling)
    return TaskRows(own.filter(number.is_null()), received.rename_columns(list(broadcast)))


def _two_inputs(table: pa.Table, right: Sequence[str]) -> TaskRows:
    travelling, is_right = travelling_names(FROM_RIGHT, right), table.column(FROM_RIGHT).is_valid()
    own = table.drop_columns([FROM_RIGHT, *travelling]).filter(pc.invert(is_right))
    other = table.select([*travelling, SORT_KEY]).filter(is_right)
    return TaskRows(own, right=other.rename_columns([*right, SORT_KEY]))


# ── checks of its columns ──────────────────────────────────────────────────────────────────────────


def check_key_columns(uid: str, keys: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse key columns that are not there."""
    for key in keys:
        if key not in columns:
            raise ConfigError(
                f"operator {uid!r}: key column {key!r} does not exist; there are {', '.join(columns)}",
                operator=uid,
                column=key,
            )


def check_order_columns(of: str, order_by: Sequence[Order], columns: Sequence[str]) -> None:
    """Refuse an order by columns that are not there."""
    missing = [order.column for order in order_by if order.column not in columns]
    if missing:
        raise ConfigError(
            f"operator {of!r}: order_by names {', '.join(missing)}; there are {', '.join(columns)}"
        )


def check_same_keys(uid: str, left: Sequence[KeyColumn], right: Sequence[KeyColumn]) -> None:
    """Refuse two inputs whose keys could never be equal."""
    if len(left) != len(right):
        names = [", ".join(name for name, _, _ in columns) for columns in (left, right)]
        raise ConfigError(
            f"operator {uid!r}: the key of the left stream has {len(left)} columns ({names[0]}), that of the right "
            f"one {len(right)} ({names[1]}); equal keys have equally many",
            operator=uid,
        )
    for (one, kind, shown), (other, other_kind, other_shown) in zip(left, right, strict=True):
        if kind != other_kind:
            raise ConfigError(
                f"operator {uid!r}: the key column {one!r} of the left stream is {shown}, {other!r} of the right "
                f"one {other_shown}, so that no two would be the same key; cast one of them before",
                operator=uid,
                left=shown,
                right=other_shown,
            )


def check_time_column(uid: str, column: object, columns: Sequence[str]) -> None:
    """Refuse an event time that is none of the columns of a source, or several."""
    if not isinstance(column, str) or list(columns).count(column) != 1:
        raise ConfigError(
            f"source {uid!r}: event_time={column!r} is not one of its columns; there are {', '.join(columns)}",
            uid=uid,
            column=column,
        )


def no_timestamp(uid: str, column: str, shown: str) -> ConfigError:
    """The refusal of an event time of another type, which is called `shown`."""
    return ConfigError(
        f"source {uid!r}: its event time {column!r} is {with_article(shown)}, and has to be a timestamp; cast it before, "
        "for instance with F.timestamp_millis(...) or F.to_timestamp(...)",
        uid=uid,
        column=column,
        type=shown,
    )


def shown_keys(keys: Sequence[str]) -> tuple[str, ...]:
    """The key columns that a user knows."""
    return tuple(key for key in keys if key != EVERYTHING)


def shown_key(key: pa.Schema) -> pa.Schema:
    """The key columns that a user knows, as a schema."""
    return pa.schema([field for field in key if field.name != EVERYTHING])
