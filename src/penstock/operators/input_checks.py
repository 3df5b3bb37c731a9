"""What is refused about the columns of an operator's input. Pure; a job asks with Spark's types, the test kit with Arrow's."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import ConfigError
from penstock.operators.row_order import Order
from penstock.wording import with_article

KeyColumn = tuple[str, object, str]
"""A key column: its name, its type, and what the type is called."""


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
