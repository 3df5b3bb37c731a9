"""`window`: SQL aggregates, or own code, over windows of each key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import pyarrow as pa
from typing_extensions import override

from penstock.config import Duration, duration_us, seconds
from penstock.errors import ConfigError, InternalError
from penstock.operators.aggregate.operator import refuse_updates
from penstock.operators.base import LEFT, EventTimeNeed, Node, Operator, Spec
from penstock.operators.event_time import TimeColumn
from penstock.operators.inputs import shown_keys
from penstock.operators.outputs import declared_sides
from penstock.operators.process.user_code import check_call, check_open_and_close
from penstock.operators.state.declarations import declared_state
from penstock.operators.values.row_order import Order, OrderBy, parse_orders
from penstock.operators.window.base import WINDOW_END, WINDOW_START, WindowProcess
from penstock.operators.window.count import CountRowsSpec, CountSpec
from penstock.operators.window.own_code import WindowCode, WindowRowsSpec
from penstock.operators.window.session import SessionSpec
from penstock.operators.window.session_rows import SessionRowsSpec
from penstock.operators.window.time import WindowSpec
from penstock.state.ddl import arrow_schema, schema_ddl
from penstock.state.lifetimes import in_microseconds
from penstock.windows import CountWindows, SessionWindows, Windows

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.state.ddl import Columns

OwnCodeSpec = WindowRowsSpec | SessionRowsSpec | CountRowsSpec
"""The specs of own code over windows of any kind."""
WINDOW_SPECS: tuple[type[Spec], ...] = (
    SessionSpec,
    SessionRowsSpec,
    WindowSpec,
    WindowRowsSpec,
    CountSpec,
    CountRowsSpec,
)
"""All specs of windows, as they are asked about stored state: sessions first, because other windows share a column with them."""


class WindowOptions(NamedTuple):
    """The arguments of `window(...)`, checked, in the order of the fields of `Window`."""

    windows: Windows
    lateness_us: int
    early_us: int | None
    event_time: str | None

    @classmethod
    def checked(
        cls,
        windows: object,
        keys: tuple[str, ...],
        *,
        lateness: Duration,
        early: Duration | None,
        event_time: str | None,
    ) -> WindowOptions:
        """Check the arguments; raises `ConfigError`."""
        if not isinstance(windows, Windows):
            raise ConfigError(
                f"window({windows!r}): it takes one of ps.windows.tumbling('1min'), sliding('10min', '1min'), session('30min') and "
                "count(100)"
            )
        lateness_us = duration_us("lateness", lateness, seconds("lateness", lateness))
        early_us = None if early is None else in_microseconds(seconds("early", early, exclusive=True))
        if isinstance(windows, CountWindows) and (lateness_us or early is not None or event_time is not None):
            raise ConfigError(
                f"window({windows}): rows alone decide when it is full, so that lateness, early and event_time mean nothing for it; leave "
                "them out"
            )
        if event_time is not None and (not isinstance(event_time, str) or not event_time):
            raise ConfigError(
                f"event_time={event_time!r}: it takes the name of a column", event_time=event_time
            )
        if isinstance(windows, CountWindows) and not shown_keys(keys):
            raise ConfigError(
                f"window({windows}): without a key, one subtask would have to count all rows one by one; call key_by first"
            )
        return cls(windows, lateness_us, early_us, event_time)

    @property
    def added_columns(self) -> tuple[str, ...]:
        """The columns that windows add to the key and the aggregates."""
        return () if isinstance(self.windows, CountWindows) else (WINDOW_START, WINDOW_END)


@dataclass(frozen=True, eq=False)
class Window(Operator):
    """SQL aggregates, or the user's own code, over windows of each key: either `columns` or `operator` is set."""

    windows: Windows
    lateness_us: int = 0
    early_us: int | None = None
    event_time: str | None = None
    """The column that the user named; None for the event time of the stream."""
    columns: dict[str, Column] = field(default_factory=dict)
    operator: WindowProcess | None = None
    output: pa.Schema | None = None
    """The columns of the results of own code."""
    order_by: tuple[Order, ...] = ()

    late_inputs: ClassVar[tuple[str, ...]] = (LEFT,)

    @classmethod
    def aggregating(
        cls,
        uid: str,
        upstream: Node,
        keys: tuple[str, ...],
        options: WindowOptions,
        columns: dict[str, Column],
    ) -> Window:
        """Declare aggregates over windows; raises `ConfigError`."""
        if options.early_us is not None and isinstance(options.windows, SessionWindows):
            raise ConfigError(
                f"aggregate {uid!r}: early is for tumbling and sliding windows; a session that is open may become another "
                "one. Leave early out",
                uid=uid,
            )
        refuse_updates(upstream, uid)
        for name in options.added_columns:
            if name in keys:
                raise ConfigError(
                    f"aggregate {uid!r}: the key column {name!r} has the name of a column that windows add; rename it before key_by",
                    uid=uid,
                )
        return cls(uid, upstream, keys, *options, columns=columns)

    @classmethod
    def processing(
        cls,
        uid: str,
        upstream: Node,
        keys: tuple[str, ...],
        options: WindowOptions,
        operator: WindowProcess,
        *,
        schema: Columns,
        order_by: OrderBy,
    ) -> Window:
        """Declare own code over windows; raises `ConfigError`."""
        if not isinstance(operator, WindowProcess):
            made = f"; write {operator.__name__}()" if isinstance(operator, type) else ""
            raise ConfigError(
                f"process({operator!r}): after window(...) it takes an instance of a WindowProcess subclass{made}",
                uid=uid,
            )
        if not shown_keys(keys):
            raise ConfigError(
                f"operator {uid!r}: own code over windows without a key would be one subtask's work over all rows; aggregate them, or call "
                "key_by first",
                uid=uid,
            )
        for kind, found in (("state", declared_state(operator)), ("side output", declared_sides(operator))):
            for name in found:
                raise ConfigError(
                    f"operator {uid!r}: {type(operator).__name__} is a WindowProcess, which has no {kind} of its own ({name!r}): it sees "
                    "all rows of a window at once; put a KeyedProcess after it for more",
                    uid=uid,
                )
        if options.early_us is not None:
            raise ConfigError(
                f"operator {uid!r}: early is for aggregate; own code is called when a window closes. Leave early out",
                uid=uid,
            )
        refuse_updates(upstream, uid)
        check_call(operator, operator.process, ("key", "window", "rows", "ctx"), uid)
        check_open_and_close(operator, uid)
        return cls(
            uid,
            upstream,
            keys,
            *options,
            operator=operator,
            output=arrow_schema(schema_ddl(schema)),
            order_by=parse_orders(order_by, "order_by"),
        )

    @override
    def describe(self) -> str:
        return f"{self.windows}{'' if self.operator is None else f', {type(self.operator).__name__}'}"

    @property
    def counts_rows(self) -> bool:
        """Whether the number of rows alone decides when a window closes."""
        return isinstance(self.windows, CountWindows)

    @property
    @override
    def judges_by_time(self) -> bool:
        return not self.counts_rows

    @property
    @override
    def partly_aggregated(self) -> bool:
        return bool(self.columns) and not self.counts_rows

    @property
    @override
    def end_column(self) -> str | None:
        return None if self.counts_rows else WINDOW_END

    @property
    @override
    def revised_by(self) -> tuple[str, ...]:
        options = (("lateness", self.lateness_us), ("early", self.early_us))
        return tuple(word for word, is_set in options if is_set)

    @property
    @override
    def allowed_lateness_us(self) -> int | None:
        return self.lateness_us

    @property
    @override
    def own_code(self) -> object | None:
        return self.operator

    @override
    def needs_event_time(self) -> EventTimeNeed | None:
        if self.counts_rows:
            return None
        return EventTimeNeed(f"cuts rows into {self.windows}", "none of them would ever close")

    @override
    def result_time(self) -> TimeColumn | None:
        if self.counts_rows:
            return super().result_time()
        return TimeColumn(WINDOW_END, earlier_us=1, of_results=True)

    @override
    def code_spec(self, columns: pa.Schema, key: pa.Schema, time: TimeColumn | None) -> OwnCodeSpec:
        if self.operator is None or self.output is None:
            raise InternalError(f"window {self.uid!r} has neither aggregates nor own code")
        windows, lateness_us, order_by = self.windows, self.lateness_us, self.order_by
        if isinstance(windows, CountWindows):
            code = WindowCode(self.operator, self.output, None)
            return CountRowsSpec(key, windows, columns, code, order_by)
        if time is None:
            raise InternalError(f"window {self.uid!r} closes by event time, and its rows have none")
        code = WindowCode(self.operator, self.output, columns.field(time.column).type)
        if isinstance(windows, SessionWindows):
            return SessionRowsSpec(key, windows, lateness_us, columns, time, order_by, code)
        return WindowRowsSpec(key, windows, lateness_us, columns, time, order_by, code)
