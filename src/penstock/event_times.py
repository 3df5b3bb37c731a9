"""Which column has the time of the rows of a stream, as far as the graph says it. Pure; driver.

A source names its column. The name is inherited through transforms, unions and operators; whether a column of that name is still there, and
is a timestamp, is seen where the columns are known (`spark/event_times.py`). What a window gives has the time at which the window ends.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.errors import ConfigError, InternalError
from penstock.graph import BadRecords, Join, Late, Node, Side, Source, Transform, Union, Window, late_from
from penstock.operators.time_column import TimeColumn
from penstock.operators.window_kinds import WINDOW_END, CountWindows


def inherited_event_time(node: Node) -> TimeColumn | None:
    """What the sources of a stream, or the last window before it, call their time; None where none has any."""
    match node:
        case Source():
            return None if node.event_time is None else TimeColumn(node.event_time.column)
        case Window() if not isinstance(node.windows, CountWindows):
            return TimeColumn(WINDOW_END, earlier_us=1, of_results=True)
        case BadRecords():
            return None
        case Join():
            return _of_join(node)
        case Union():
            return _of_both(inherited_event_time(node.left), inherited_event_time(node.right))
        case _:
            return _given_by(node, inherited_event_time(_before(node)))


def _given_by(node: Node, time: TimeColumn | None) -> TimeColumn | None:
    return None if time is None else replace(time, of_results=time.of_results or are_results(node))


def are_results(node: Node) -> bool:
    """Whether an operator has given the rows of a stream, or some of them."""
    match node:
        case Source() | BadRecords():
            return False
        case Union():
            return are_results(node.left) or are_results(node.right)
        case Transform() | Late():
            return are_results(_before(node))
        case _:
            return True


def _before(node: Node) -> Node:
    match node:
        case Late():
            return late_from(node)
        case Side():
            return node.of
        case Source() | Union() | BadRecords():
            raise InternalError(f"{type(node).__name__} has no single stream before it")
        case _:
            return node.upstream


def _of_join(node: Join) -> TimeColumn:
    """A pair has two times, and a row that found no partner comes long after its own: so it must be said which one counts."""
    if node.windows is not None:
        return TimeColumn(WINDOW_END, earlier_us=1, of_results=True)
    if node.at is not None:
        return TimeColumn(node.at, of_results=True)
    raise ConfigError(
        f"join {node.uid!r}: its results have the times of two rows, and by either of them they may be late; name a column for the time of "
        "the result, join(..., at='joined_at'), or say which column counts where it is used, such as window(..., event_time='at')",
        operator=node.uid,
    )


def _of_both(left: TimeColumn | None, right: TimeColumn | None) -> TimeColumn | None:
    if left is None or right is None:
        return left or right
    if (left.column, left.earlier_us) == (right.column, right.earlier_us):
        return left if left.of_results else right
    raise ConfigError(
        f"union: one stream has its event time in {left.column!r}, the other in {right.column!r}; say which column counts where it is "
        "used, such as window(..., event_time='at'), or give both the same name before the union",
        left=left.column,
        right=right.column,
    )
