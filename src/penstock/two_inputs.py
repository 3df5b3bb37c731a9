"""How joins become a part of the job: what can be said of them before anything starts. Driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from penstock.config import Duration, choice, duration_us, seconds
from penstock.errors import ConfigError
from penstock.graph import Graph
from penstock.operators.base import Node, SecondInput
from penstock.operators.join.operator import Join, Lookup
from penstock.operators.join.spec import How
from penstock.operators.row_order import OrderBy, parse_orders
from penstock.operators.time_to_live import TTL, time_to_live
from penstock.operators.window_kinds import TimeWindows
from penstock.state.lifetimes import Measure

UNBOUNDED = "unbounded"

On = str | Sequence[str | tuple[str, str]]
"""A key column that both streams have, or several; a pair where the names differ."""
Within = tuple[Duration, Duration] | str | None
EventTimeOf = str | tuple[str, str] | None
"""The name of the column with the event time, or one for each stream."""


@dataclass(frozen=True)
class JoinOptions:
    """What `join(...)` was given beside the streams."""

    on: On
    within: Within
    window: object
    how: str
    event_time: EventTimeOf
    at: str | None


def add_join(graph: Graph, left: Node, right: Node, told: JoinOptions, *, uid: str) -> Join:
    """Add a join to the job, or refuse it."""
    how = choice("how", told.how, How)
    keys, right_keys = key_pairs(told.on, uid)
    within_us = _bounds(told.within, uid) if told.window is None else None
    windows = _windows(told, uid)
    times = _event_times(told.event_time, uid)
    if told.at is not None and not _is_name(told.at):
        raise ConfigError(
            f"join {uid!r}: at={told.at!r}: it takes the name of the column that results have their time in, such as 'joined_at'",
            uid=uid,
        )
    if within_us is None and windows is None and (how is not How.INNER or told.at or any(times)):
        raise ConfigError(
            f"join {uid!r}: with within='unbounded' rows are kept for ever, so that it is never known that one has no partner, and time "
            f"means nothing: how={told.how!r}, event_time and at cannot be; bound it, such as within=('-5min', '10min')",
            uid=uid,
        )
    if told.at is not None and windows is not None:
        raise ConfigError(
            f"join {uid!r}: at={told.at!r}: the time of a result is that of its window, which ends at window_end; leave it out",
            uid=uid,
        )
    second = SecondInput(right, right_keys, times[1])
    node = Join(uid, left, keys, second, how, within_us, windows, times[0], told.at)
    graph.add(node)
    return node


def add_lookup(
    graph: Graph,
    left: Node,
    right: Node,
    *,
    on: On,
    how: str,
    order_by: OrderBy,
    ttl: TTL | None,
    uid: str,
) -> Lookup:
    """Add a lookup to the job, or refuse it."""
    keys, right_keys = key_pairs(on, uid)
    if how not in (How.INNER.value, How.LEFT.value):
        raise ConfigError(
            f"lookup {uid!r}: how={how!r}: rows of the right stream come out beside left ones only; choose 'left' or 'inner'",
            uid=uid,
        )
    lifetime = time_to_live(ttl)
    if lifetime is not None and (lifetime.renews or lifetime.lifetime().measure is not Measure.CLOCK):
        raise ConfigError(
            f"lookup {uid!r}: ttl={ttl!r}: what is known of a key counts from when it was told, by the clock; say how long, and no more",
            uid=uid,
        )
    second = SecondInput(right, right_keys, order_by=parse_orders(order_by, "order_by"))
    node = Lookup(uid, left, keys, second, how == How.INNER.value, lifetime)
    graph.add(node)
    return node


def key_pairs(on: On, uid: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The key columns of both streams."""
    given = (on,) if isinstance(on, str) else tuple(on) if isinstance(on, list | tuple) else ()
    pairs = [
        (one, one) if isinstance(one, str) else tuple(one)
        for one in given
        if isinstance(one, str | tuple | list)
    ]
    names = [name for pair in pairs for name in pair]
    whole = len(pairs) == len(given) and all(len(pair) == 2 for pair in pairs)  # noqa: PLR2004
    if not pairs or not whole or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"operator {uid!r}: on={on!r}: it takes the key column that both streams have, several in a list, or pairs such as "
            "[('order_id', 'id')] where the names differ",
            uid=uid,
        )
    keys, right_keys = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
    for one in (keys, right_keys):
        if len(set(one)) < len(one):
            raise ConfigError(f"operator {uid!r}: on={on!r}: a column is named twice", uid=uid)
    return keys, right_keys


def _event_times(given: EventTimeOf, uid: str) -> tuple[str | None, str | None]:
    """The column with the event time of each stream."""
    times = given if isinstance(given, tuple) else (given, given)
    if len(times) != 2 or not all(name is None or _is_name(name) for name in times):  # noqa: PLR2004
        raise ConfigError(
            f"join {uid!r}: event_time={given!r}: it takes the name of a column that both streams have, or a pair of names such as "
            "('ordered_at', 'paid_at'), the left stream's first; None is the event time that a stream has from its source",
            uid=uid,
        )
    return times


def _is_name(given: object) -> bool:
    return isinstance(given, str) and bool(given)


def _bounds(within: Within, uid: str) -> tuple[int, int] | None:
    if within == UNBOUNDED:
        return None
    if within is None:
        raise ConfigError(
            f"join {uid!r}: within is missing: without bounds all rows of both streams would have to be kept for ever. Say how far apart "
            "in event time rows are that belong together, such as within=('-5min', '10min'): a right row from 5 minutes before the left "
            "one to 10 minutes behind it; or window=tumbling('1h'); or within='unbounded' if you want them kept",
            uid=uid,
        )
    if not isinstance(within, tuple | list) or len(within) != 2:  # noqa: PLR2004
        raise ConfigError(
            f"join {uid!r}: within={within!r}: it takes two durations, the earliest and the latest right row as seen from the left one, "
            "such as ('-5min', '10min')",
            uid=uid,
        )
    lower, upper = (_signed("within", bound) for bound in within)
    if lower > upper:
        raise ConfigError(
            f"join {uid!r}: within={within!r}: the first bound is behind the second, so that nothing would match",
            uid=uid,
        )
    return lower, upper


def _windows(told: JoinOptions, uid: str) -> TimeWindows | None:
    if told.window is None:
        return None
    if told.within is not None:
        raise ConfigError(f"join {uid!r}: it has both within= and window=; leave one out", uid=uid)
    if not isinstance(told.window, TimeWindows):
        raise ConfigError(
            f"join {uid!r}: window={told.window}: it takes tumbling('1h') or sliding('1h', '10min')", uid=uid
        )
    return told.window


def _signed(setting: str, given: Duration) -> int:
    """A duration that may be negative."""
    if isinstance(given, timedelta):
        length = given.total_seconds()
    elif isinstance(given, str) and given.strip()[:1] in ("-", "+"):
        length = seconds(setting, given.strip()[1:].strip())
        length = -length if given.strip().startswith("-") else length
    else:
        length = seconds(setting, given)
    return duration_us(setting, given, length)
