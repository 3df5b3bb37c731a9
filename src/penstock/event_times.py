"""Which column has the time of the rows of a stream, as far as the graph says it. Pure; driver.

A source names its column. The name is inherited through transforms, unions and operators; whether a column of that name is still there, and
is a timestamp, is seen where the columns are known (`spark/event_times.py`). What a window gives has the time at which the window ends.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.errors import ConfigError, InternalError
from penstock.graph import BadRecords, Join, Late, Node, Side, Source, Transform, Union, Window, late_from
from penstock.operators.time_column import TimeColumn
from penstock.operators.window_kinds import WINDOW_END, CountWindows


def inherited_event_time(node: Node) -> TimeColumn | None:
    """What the sources of a stream, or the last window before it, call their time; None where none has any."""
    found = _inherited(node)
    return None if found is None else with_limits(found, node)


@dataclass(frozen=True)
class Limits:
    """Which times of rows are believed, and what becomes of the others."""

    ahead_us: int | None = None
    refuses_absurd: bool = False


ANY_TIME = Limits()


def limits_of(node: Node) -> Limits | None:
    """What is said of the times of the rows of a stream: what its source says, and for streams that meet the widest; None: nothing.

    Nobody knows the source of a row of a union. So such rows are refused only where all sources refuse them; each source also looks at
    its own rows as it reads them (`spark/newest_times.py`).
    """
    match node:
        case Source():
            time = node.event_time
            return None if time is None else Limits(time.ahead_us, time.refuses_absurd)
        case Union():
            return _widest([one for one in map(limits_of, (node.left, node.right)) if one is not None])
        case Transform() | Late():
            return limits_of(_before(node))
        case _:
            return ANY_TIME


def _widest(limits: list[Limits]) -> Limits | None:
    if not limits:
        return None
    ahead = [one.ahead_us for one in limits if one.ahead_us is not None]
    return Limits(
        max(ahead) if len(ahead) == len(limits) else None, all(one.refuses_absurd for one in limits)
    )


def with_limits(time: TimeColumn, node: Node) -> TimeColumn:
    """The same column, with what is said of the times of the rows of a stream."""
    limits = limits_of(node) or ANY_TIME
    return replace(time, ahead_us=limits.ahead_us, refuses_absurd=limits.refuses_absurd)


def streams_that_meet(node: Node) -> list[tuple[Node, Limits]]:
    """Those of a union, however many, if they believe times up to different moments; otherwise the stream itself, alone."""
    whole = limits_of(node) or ANY_TIME
    parts = [(part, limits_of(part) or whole) for part in _parts(node)]
    return parts if any(own.ahead_us != whole.ahead_us for _, own in parts) else [(node, whole)]


def _parts(node: Node) -> list[Node]:
    return [*_parts(node.left), *_parts(node.right)] if isinstance(node, Union) else [node]


def _inherited(node: Node) -> TimeColumn | None:
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
            return _of_both(_inherited(node.left), _inherited(node.right))
        case _:
            return _given_by(node, _inherited(_before(node)))


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
