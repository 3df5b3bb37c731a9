"""How windows become a part of the job: what can be said of them before anything starts. Driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.config import Duration, seconds
from penstock.errors import ConfigError
from penstock.graph import Graph
from penstock.operators.aggregate.operator import refuse_updates
from penstock.operators.base import Node
from penstock.operators.everything import shown_keys
from penstock.operators.process.parameters import check_window_parameters
from penstock.operators.row_order import OrderBy, parse_orders
from penstock.operators.side_outputs import declared_sides
from penstock.operators.states import declared_state
from penstock.operators.window import Window
from penstock.operators.window_kinds import (
    LONGEST_S,
    WINDOW_END,
    WINDOW_START,
    CountWindows,
    SessionWindows,
    Windows,
)
from penstock.operators.window_process import WindowProcess
from penstock.state.declared import schema_ddl
from penstock.state.lifetimes import in_microseconds
from penstock.state.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column

    from penstock.state.declared import Columns


@dataclass(frozen=True)
class WindowOptions:
    """What `window(...)` was given."""

    windows: Windows
    lateness_us: int
    early_us: int | None
    event_time: str | None


@dataclass(frozen=True)
class WindowPlan:
    """The same, with the stream whose rows it is about."""

    upstream: Node
    keys: tuple[str, ...]
    options: WindowOptions

    def node(self, uid: str, **what: Any) -> Window:
        """A part of the job that does this with the windows."""
        told = self.options
        return Window(
            uid,
            self.upstream,
            self.keys,
            told.windows,
            told.lateness_us,
            told.early_us,
            told.event_time,
            **what,
        )


def window_options(
    windows: object, *, lateness: Duration, early: Duration | None, event_time: str | None
) -> WindowOptions:
    """Check what `window(...)` is given."""
    if not isinstance(windows, Windows):
        raise ConfigError(
            f"window({windows!r}): it takes one of tumbling('1min'), sliding('10min', '1min'), session('30min'), count_window(100)"
        )
    length = seconds("lateness", lateness)
    if length > LONGEST_S:
        raise ConfigError(f"lateness={lateness!r} is longer than 1,000 years", lateness=lateness)
    early_us = None if early is None else in_microseconds(seconds("early", early, exclusive=True))
    if isinstance(windows, CountWindows) and (length or early is not None or event_time is not None):
        raise ConfigError(
            f"window({windows}): rows alone decide when it is full, so that lateness, early and event_time mean nothing for it; leave them "
            "out"
        )
    if event_time is not None and (not isinstance(event_time, str) or not event_time):
        raise ConfigError(f"event_time={event_time!r}: it takes the name of a column", event_time=event_time)
    return WindowOptions(windows, in_microseconds(length), early_us, event_time)


def add_window_process(
    graph: Graph, plan: WindowPlan, operator: WindowProcess, *, schema: Columns, uid: str, order_by: OrderBy
) -> Window:
    """Add own code over windows to the job, or refuse it."""
    if not isinstance(operator, WindowProcess):
        made = f"; write {operator.__name__}()" if isinstance(operator, type) else ""
        raise ConfigError(
            f"process({operator!r}): behind window(...) it takes an instance of a WindowProcess subclass{made}",
            uid=uid,
        )
    if not shown_keys(plan.keys):
        raise ConfigError(
            f"operator {uid!r}: own code over windows without a key would be one subtask's work over all rows; aggregate them, or call "
            "key_by first",
            uid=uid,
        )
    for kind, found in (("state", declared_state(operator)), ("side output", declared_sides(operator))):
        for name in found:
            raise ConfigError(
                f"operator {uid!r}: {type(operator).__name__} is a WindowProcess, which has no {kind} of its own ({name!r}): it sees all "
                "rows of a window at once; put a KeyedProcess behind it for more",
                uid=uid,
            )
    if plan.options.early_us is not None:
        raise ConfigError(
            f"operator {uid!r}: early is for aggregate; own code is called when a window closes. Leave early out",
            uid=uid,
        )
    refuse_updates(plan.upstream, uid)
    check_window_parameters(operator, uid)
    ddl = schema_ddl(schema)
    node = plan.node(
        uid,
        operator=operator,
        output=arrow_schema(ddl),
        order_by=parse_orders(order_by, "order_by"),
    )
    graph.add(node)
    return node


def add_window_aggregate(
    graph: Graph,
    plan: WindowPlan,
    columns: Sequence[Column],
    named: Mapping[str, Column],
    *,
    uid: str,
) -> Window:
    """Add aggregates of windows to the job, or refuse them."""
    from penstock.spark.operators.aggregate import named_aggregates

    if plan.options.early_us is not None and isinstance(plan.options.windows, SessionWindows):
        raise ConfigError(
            f"aggregate {uid!r}: early is for tumbling and sliding windows; a session that is open may become another one. Leave early out",
            uid=uid,
        )

    refuse_updates(plan.upstream, uid)
    added = () if isinstance(plan.options.windows, CountWindows) else (WINDOW_START, WINDOW_END)
    for name in added:
        if name in plan.keys:
            raise ConfigError(
                f"aggregate {uid!r}: the key column {name!r} has the name of a column that windows add; rename it before key_by",
                uid=uid,
            )
    aggregates = named_aggregates(columns, named, keys=(*plan.keys, *added), uid=uid)
    node = plan.node(uid, columns=aggregates)
    graph.add(node)
    return node
