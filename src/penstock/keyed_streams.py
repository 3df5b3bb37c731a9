"""Streams whose rows belong together: by key, in windows, beside another stream. What `key_by`, `window` and `connect` return. Driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar, overload

from penstock.config import Duration, OnBadRecord
from penstock.errors import ConfigError
from penstock.graph import Graph
from penstock.operators.aggregate.operator import Aggregate
from penstock.operators.base import Broadcast, Node, SecondInput
from penstock.operators.process.co import KeyedCoProcess
from penstock.operators.process.columns import BatchProcess
from penstock.operators.process.keyed import KeyedProcess
from penstock.operators.process.operator import OwnCode, ProcessOperator
from penstock.operators.state.ttl import TTL
from penstock.operators.top import Top
from penstock.operators.values.row_order import OrderBy, parse_orders
from penstock.operators.window.base import WindowProcess
from penstock.operators.window.operator import Window, WindowOptions
from penstock.streams import Stream, added, check_same_job
from penstock.windows import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.state.ddl import Columns

_Code = TypeVar("_Code", bound=OwnCode)
"""The kind of own code that a stream takes."""


class _WithOwnCode(Generic[_Code]):
    """A stream that can be followed by own code: one with a key, or one connected with a broadcast stream."""

    def __init__(
        self, graph: Graph, node: Node, keys: tuple[str, ...], broadcast: Broadcast | None = None
    ) -> None:
        self._graph = graph
        self._node = node
        self._keys = keys
        self._broadcast = broadcast

    def process(
        self,
        operator: _Code,
        *,
        schema: Columns,
        uid: str,
        order_by: OrderBy = (),
        on_bad_record: OnBadRecord | str | None = None,
    ) -> Stream:
        """Run own Python code with state: a `KeyedProcess` key by key, a `BatchProcess` in columns; without a key a `Process`.

        `schema`: the columns of its results, as DDL, a `StructType` or a list such as ["app string", ("n", "long")].
        `order_by`: columns ('at', 'at asc' or 'at desc') that put the rows of a key in order within a batch.
        `on_bad_record`: "fail", or "skip" rows without a key, rows that `process` rejects, and those for which it raises. What a
        `Process` or `BatchProcess` raises ends the run.
        After `connect`, its `process_broadcast` is given the rows of the broadcast stream, in every batch before all others.
        """
        node = ProcessOperator.checked(
            uid,
            self._node,
            self._keys,
            operator,
            schema=schema,
            order_by=order_by,
            broadcast=self._broadcast,
        )
        return added(self._graph, node, on_bad_record)


class KeyedStream(_WithOwnCode[KeyedProcess | BatchProcess]):
    """A stream whose rows are grouped by key."""

    def aggregate(
        self,
        *columns: Column,
        uid: str,
        on_bad_record: OnBadRecord | str | None = None,
        ttl: TTL | None = None,
        **named: Column,
    ) -> Stream:
        """Keep SQL aggregates per key over everything so far; emits the new values of every key that changed in a batch.

        Spark computes the aggregate of the batch, Penstock merges it into the state: count, count_if, sum, min, max, avg, bool_and,
        bool_or, bit_and, bit_or, bit_xor, max_by, min_by, first, last, any_value, count_distinct. Anything that cannot be merged exactly is
        refused by name.
        A column is named by its argument, `pv=F.count("*")`, or by its alias, `F.count("*").alias("page views")`: so it may have any name.
        `on_bad_record`: "fail" or "skip" rows whose key is null. `ttl`: a key without rows for this long is forgotten.
        """
        from penstock.spark.operators.aggregate import named_aggregates

        aggregates = named_aggregates(columns, named, keys=self._keys, uid=uid)
        node = Aggregate.checked(uid, self._node, self._keys, aggregates, ttl=ttl)
        return added(self._graph, node, on_bad_record)

    def top(
        self,
        n: int,
        *,
        by: str | tuple[str, ...] | list[str],
        uid: str,
        of: str | tuple[str, ...] | list[str] = (),
        order_by: str | tuple[str, ...] | list[str] = (),
        on_bad_record: OnBadRecord | str | None = None,
    ) -> Stream:
        """Keep the first `n` rows of each key in the order of `by` ('amount desc'); emits all of them, with a column `rank` from 1 on, for
        every key for which they changed in a batch.

        Among rows that are equal in `by`, the one that came first is kept. With `of`, each value of these columns counts once, with its
        newest row: the row that came last, or the last one in `order_by`. Among values that are equal in `by`, the smaller one comes first.
        `on_bad_record`: "fail" or "skip" rows whose key is null.
        A common mistake is to append the results to a table. Write them by key and rank: `key=["shop", "rank"]`.
        """  # noqa: D205 - the sentence is long
        node = Top.checked(uid, self._node, self._keys, n, by=by, of=of, order_by=order_by)
        return added(self._graph, node, on_bad_record)

    def window(
        self,
        windows: Windows,
        *,
        lateness: Duration = "0s",
        early: Duration | None = None,
        event_time: str | None = None,
    ) -> WindowedStream:
        """Cut the rows of each key into `ps.windows`: `tumbling("1min")`, `sliding("10min", "1min")`, `session("30min")`, `count(100)`.

        `lateness`: how long a window is kept after the watermark has passed its end. Rows that arrive in this time update its result.
        `early`: how often, at most, an open window that has changed emits a result before it closes, by the clock; never by default.
        `event_time`: the column with the time of the rows, if it is not the event time of the source.
        A common mistake: with `lateness` or `early` a window has several results, so do not append them to a table. Write them by key
        and `window_start`.
        """
        options = WindowOptions.checked(
            windows, self._keys, lateness=lateness, early=early, event_time=event_time
        )
        return WindowedStream(self._graph, self._node, self._keys, options)

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[KeyedProcess | BatchProcess]: ...
    @overload
    def connect(self, other: KeyedStream) -> ConnectedKeyedStreams: ...
    def connect(
        self, other: BroadcastStream | KeyedStream
    ) -> BroadcastConnectedStream[KeyedProcess | BatchProcess] | ConnectedKeyedStreams:
        """Connect a second stream, which the next operator also receives.

        `payments.key_by("card").connect(rules.broadcast())`: all rows of it, in every subtask.
        `orders.key_by("order_id").connect(payments.key_by("id"))`: those of the same key, in a `KeyedCoProcess`. Keys may have different
        names, and must have the same types.
        """
        if isinstance(other, KeyedStream):
            return ConnectedKeyedStreams(self, other)
        return BroadcastConnectedStream(self._graph, self._node, self._keys, connected(self._graph, other))


class ConnectedStreams:
    """Two streams that have no key yet: what `connect` returns."""

    def __init__(self, left: Stream, right: Stream) -> None:
        self._left = left
        self._right = right

    def key_by(self, *columns: str) -> ConnectedKeyedStreams:
        """Group both streams by these columns: rows with equal values share state."""
        return self._left.key_by(*columns).connect(self._right.key_by(*columns))


class ConnectedKeyedStreams:
    """Two streams whose rows are grouped by the same key: what `connect` and `key_by` return."""

    def __init__(self, left: KeyedStream, right: KeyedStream) -> None:
        check_same_job("connect", left._graph, right._graph)  # noqa: SLF001 - they are made together
        self._graph = left._graph  # noqa: SLF001
        self._left = left
        self._right = right

    def process(
        self,
        operator: KeyedCoProcess,
        *,
        schema: Columns,
        uid: str,
        order_by: OrderBy = (),
        right_order_by: OrderBy = (),
        on_bad_record: OnBadRecord | str | None = None,
    ) -> Stream:
        """Run own Python code with one state for both streams: a `KeyedCoProcess`, key by key.

        In every batch the left rows of a key come first, then its right rows, then its timers. `order_by` and `right_order_by` put the
        rows of a key in order within a batch, for each stream. All else is as in `process` after `key_by`.
        """
        left, right = self._left, self._right
        orders = parse_orders(right_order_by, "right_order_by")
        second = SecondInput(right._node, right._keys, order_by=orders)  # noqa: SLF001 - they are made together
        node = ProcessOperator.checked(
            uid,
            left._node,  # noqa: SLF001
            left._keys,  # noqa: SLF001
            operator,
            schema=schema,
            order_by=order_by,
            right=second,
        )
        return added(self._graph, node, on_bad_record)


class WindowedStream:
    """The rows of each key, cut into windows: what `window` returns."""

    def __init__(self, graph: Graph, node: Node, keys: tuple[str, ...], options: WindowOptions) -> None:
        self._graph = graph
        self._node = node
        self._keys = keys
        self._options = options

    def aggregate(
        self,
        *columns: Column,
        uid: str,
        on_bad_record: OnBadRecord | str | None = None,
        **named: Column,
    ) -> Stream:
        """SQL aggregates of each window, as in `aggregate` after `key_by`: the key columns, `window_start`, `window_end`, the aggregates.

        A result comes when the watermark has passed the end of the window. Rows that are too late are counted, and in `late()`.
        """
        from penstock.spark.operators.aggregate import named_aggregates

        taken = (*self._keys, *self._options.added_columns)
        aggregates = named_aggregates(columns, named, keys=taken, uid=uid)
        node = Window.aggregating(uid, self._node, self._keys, self._options, aggregates)
        return added(self._graph, node, on_bad_record)

    def process(
        self,
        operator: WindowProcess,
        *,
        schema: Columns,
        uid: str,
        order_by: OrderBy = (),
        on_bad_record: OnBadRecord | str | None = None,
    ) -> Stream:
        """Own Python code over all rows of each window: a `WindowProcess`.

        `schema`: the columns of its results, as in `process` after `key_by`. `order_by` puts the rows of a window in order.
        `on_bad_record`: "fail" or "skip" rows whose key is null. What `process` raises ends the run.
        Rows are kept until their window closes. Where an aggregate will do, it needs a fraction of that.
        """
        node = Window.processing(
            uid, self._node, self._keys, self._options, operator, schema=schema, order_by=order_by
        )
        return added(self._graph, node, on_bad_record)


class BroadcastConnectedStream(_WithOwnCode[_Code]):
    """A stream whose operator sees a broadcast stream beside it: what `connect` returns.

    With a key it takes a `KeyedProcess` or `BatchProcess`, without one a `Process`.
    """


class BroadcastStream:
    """A small stream of which every subtask sees all rows: what `broadcast` returns, and `connect` takes."""

    def __init__(self, graph: Graph, broadcast: Broadcast) -> None:
        self._graph = graph
        self._broadcast = broadcast


def connected(graph: Graph, other: BroadcastStream) -> Broadcast:
    """Check the argument of `connect`."""
    if not isinstance(other, BroadcastStream):
        raise ConfigError(
            f"connect({type(other).__name__}): it takes a broadcast stream, such as rules.broadcast(), or a second stream by the same key: "
            "left.key_by('k').connect(right.key_by('id')), or left.connect(right).key_by('k')"
        )
    check_same_job("connect", graph, other._graph)  # noqa: SLF001 - they are made together
    return other._broadcast  # noqa: SLF001 - they are made together
