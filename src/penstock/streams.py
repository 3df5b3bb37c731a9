"""Rows on their way through a job, as the user builds it: streams without a key, and those that end in a sink. Driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, overload

from penstock.config import Duration, OnBadRecord
from penstock.config import on_bad_record as checked_policy
from penstock.errors import ConfigError
from penstock.graph import Graph, Late, Output, Side, Transform, Union
from penstock.operators.base import LEFT, Broadcast, Node, Operator
from penstock.operators.dedupe import Dedupe
from penstock.operators.inputs import EVERYTHING
from penstock.operators.join.lookup import Lookup
from penstock.operators.join.spec import EventTimeOf, Join, On, Within
from penstock.operators.outputs import checked_side
from penstock.operators.process.operator import ProcessOperator
from penstock.operators.process.unkeyed import Process as UnkeyedProcess
from penstock.operators.state.ttl import TTL
from penstock.operators.values.row_order import OrderBy, parse_orders
from penstock.places import calling_place
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink
from penstock.windows import Windows

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.keyed_streams import (
        BroadcastConnectedStream,
        BroadcastStream,
        ConnectedStreams,
        KeyedStream,
        WindowedStream,
    )
    from penstock.state.ddl import Columns


class Stream:
    """Rows on their way: what `read`, `transform`, `aggregate` and `process` return."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph = graph
        self._node = node

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Apply any DataFrame function to each batch: SQL, joins with static tables, repartitioning.

        It sees one batch at a time, so an aggregate in it is an aggregate of that batch. It is called on DataFrames without rows
        when the job starts, to learn the columns and to plan. It is called for every batch only if its plan depends on more than
        the rows: if it shuffles, runs an action, reads a table, or uses the current time or random numbers.
        """
        if not callable(function):
            raise ConfigError(f"transform({function!r}): it takes a function from DataFrame to DataFrame")
        return Stream(self._graph, Transform(self._node, function, calling_place()))

    def where(self, condition: str | Column) -> Stream:
        """Keep the rows for which a condition holds: `clicks.where("amount > 10")`, as `DataFrame.where` does."""

        def where(rows: DataFrame) -> DataFrame:
            return rows.where(condition)

        return self.transform(where)

    def select(self, *columns: str | Column) -> Stream:
        """Keep or compute columns: `clicks.select("app", F.upper("user").alias("user"))`, as `DataFrame.select` does."""
        if not columns:
            raise ConfigError("select(): name one or more columns")

        def select(rows: DataFrame) -> DataFrame:
            return rows.select(*columns)

        return self.transform(select)

    def with_column(self, name: str, column: Column) -> Stream:
        """Add a column, or replace the one of this name: `clicks.with_column("day", F.to_date("at"))`, as `DataFrame.withColumn` does."""

        def with_column(rows: DataFrame) -> DataFrame:
            return rows.withColumn(name, column)

        return self.transform(with_column)

    def union(self, other: Stream) -> Stream:
        """This stream and another with the same columns, as one."""
        check_same_job("union", self._graph, other._graph)
        return Stream(self._graph, Union(self._node, other._node))

    def key_by(self, *columns: str) -> KeyedStream:
        """Say what belongs together: rows with equal values in these columns share state."""
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise ConfigError(f"key_by{columns!r}: it takes the names of one or more columns")
        if len(set(columns)) != len(columns):
            raise ConfigError(f"key_by{columns!r}: a column is named twice")
        from penstock.keyed_streams import KeyedStream

        return KeyedStream(self._graph, self._node, columns)

    def aggregate(self, *columns: Column, uid: str, ttl: TTL | None = None, **named: Column) -> Stream:
        """Keep SQL aggregates of all rows so far, without a key: `clicks.aggregate(n=F.count("*"), uid="total")`.

        It is `aggregate` after `key_by`, with one key for all. Spark reduces the rows of a batch in all its tasks before one subtask
        merges them into the state; a `count_distinct` sends each distinct value there.
        """
        from penstock.keyed_streams import KeyedStream

        keyed = KeyedStream(self._graph, self._node, (EVERYTHING,))
        return keyed.aggregate(*columns, uid=uid, on_bad_record=None, ttl=ttl, **named)

    def window(
        self,
        windows: Windows,
        *,
        lateness: Duration = "0s",
        early: Duration | None = None,
        event_time: str | None = None,
    ) -> WindowedStream:
        """Cut all rows into windows, without a key: `clicks.window(tumbling("1min")).aggregate(n=F.count("*"), uid="per-minute")`.

        All is as in `window` after `key_by`, but it takes no `windows.count` and no own code: all rows would go to one subtask. Of
        aggregates Spark reduces the rows of a batch in all its tasks before.
        """
        from penstock.keyed_streams import KeyedStream

        keyed = KeyedStream(self._graph, self._node, (EVERYTHING,))
        return keyed.window(windows, lateness=lateness, early=early, event_time=event_time)

    def process(
        self, operator: UnkeyedProcess, *, schema: Columns, uid: str, order_by: OrderBy = ()
    ) -> Stream:
        """Run own Python code without a key: a `Process`, which sees the rows of a subtask and has lists of its own.

        Rows of one partition of the input go to one subtask, and keep their order. `schema` and `order_by` are as in `process` after
        `key_by`. What `process` raises ends the run.
        """
        node = ProcessOperator.checked(uid, self._node, (), operator, schema=schema, order_by=order_by)
        return added(self._graph, node)

    def broadcast(self, *, order_by: OrderBy = ()) -> BroadcastStream:
        """A small stream, such as rules or rates, of which every subtask of an operator is to see all rows: for `connect`.

        `order_by`: columns ('at', 'at asc' or 'at desc') that put the rows of a batch in order. Without it every subtask sees them in
        the same order, but in no promised one.
        """
        from penstock.keyed_streams import BroadcastStream

        return BroadcastStream(self._graph, Broadcast(self._node, parse_orders(order_by, "order_by")))

    @overload
    def connect(self, other: BroadcastStream) -> BroadcastConnectedStream[UnkeyedProcess]: ...
    @overload
    def connect(self, other: Stream) -> ConnectedStreams: ...
    def connect(
        self, other: BroadcastStream | Stream
    ) -> BroadcastConnectedStream[UnkeyedProcess] | ConnectedStreams:
        """Let the operator that comes next see another stream, too.

        `payments.connect(rules.broadcast()).process(...)`: all rows of it, in every subtask.
        `orders.connect(payments).key_by("order_id").process(...)`: those of the same key, in a `KeyedCoProcess`.
        """
        from penstock.keyed_streams import BroadcastConnectedStream, ConnectedStreams, connected

        if isinstance(other, Stream):
            return ConnectedStreams(self, other)
        return BroadcastConnectedStream(self._graph, self._node, (), connected(self._graph, other))

    def bad_records(self) -> Stream:
        """The rows that this operator could not take, which then do not end the job: a stream of `operator, reason, key, row, batch`.

        Write it to any sink: it is part of the same checkpoint. `row` and `key` are JSON.
        """
        if not isinstance(self._node, Operator):
            raise ConfigError(
                "bad_records(): ask it of what process, aggregate, top or write_to returned; other parts of a stream have no bad rows"
            )
        if not self._node.may_reject_rows:
            raise ConfigError(
                f"bad_records(): {self._node.uid!r} has no bad rows; a row without a key has no partner. Of a join, ask for late('left') "
                "and late('right')",
                uid=self._node.uid,
            )
        if EVERYTHING in self._node.keys:
            raise ConfigError(
                f"bad_records(): operator {self._node.uid!r} has no key, and no bad rows either",
                uid=self._node.uid,
            )
        return Stream(self._graph, self._graph.bad_records(self._node))

    def dedupe(
        self,
        *,
        on: str | Sequence[str],
        within: Duration,
        uid: str,
        event_time: str | None = None,
        on_bad_record: OnBadRecord | str | None = None,
    ) -> Stream:
        """Let the first row of each value pass, and drop those that come near to it: `orders.dedupe(on="id", within="1h", uid="once")`.

        Rows are taken in the order in which they come. A row passes if no row with the same value has passed whose event time is less
        than `within` away from its own, before it or after it. So of two rows the one that comes first passes, also when it is the newer
        one; and without late rows it does not matter how rows are cut into batches.
        Rows before the watermark are in `late()`. `event_time`: the column with the time, if it is not that of the source.
        `on_bad_record`: "fail" or "skip" rows without a value in `on`.
        The classic mistake: a `within` that is shorter than the time after which duplicates come.
        """
        node = Dedupe.checked(uid, self._node, on=on, within=within, event_time=event_time)
        return added(self._graph, node, on_bad_record)

    def join(
        self,
        other: Stream,
        *,
        on: On,
        uid: str,
        within: Within = None,
        window: Windows | None = None,
        how: str = "inner",
        event_time: EventTimeOf = None,
        at: str | None = None,
    ) -> Stream:
        """Put rows of two streams with the same key side by side: `orders.join(payments, on="id", within=("-5min", "1h"), uid="paid")`.

        A left row at time l and a right row at time r match when l + lower <= r <= l + upper, for `within=(lower, upper)`; with `window`
        when they are in the same window. A pair comes out when the later of the two comes.
        `on`: the key column, a list of them, or pairs `[("order_id", "id")]` where the names differ. The key comes out once, under its
        left name; other columns must have different names.
        `how`: "inner", "left", "right" or "full"; rows without a partner come out when the watermark says that none can come any more.
        Null equals nothing: rows without a key match no other, and are dropped where only pairs come out.
        Rows before the watermark are in `late("left")` and `late("right")`. `event_time`: the column with the time, or a pair of them.
        `at`: add a column of this name with the time of the result, for later operators: of a pair the later of both times, of a row alone
        when it was known that it has no partner.
        The classic mistake: `within` the wrong way round. The bounds say where the right row lies, seen from the left one.
        """
        self._check_other("join", other, uid)
        node = Join.checked(
            uid,
            self._node,
            other._node,
            on=on,
            within=within,
            window=window,
            how=how,
            event_time=event_time,
            at=at,
        )
        return added(self._graph, node)

    def lookup(
        self,
        other: Stream,
        *,
        on: On,
        uid: str,
        how: str = "left",
        order_by: OrderBy = (),
        ttl: TTL | None = None,
    ) -> Stream:
        """Put beside each row the latest row of its key in another stream: `views.lookup(users, on="user_id", uid="who")`.

        The latest is the one that came last, as far as it is known when the row is processed: in a batch all rows of `other` count first.
        `order_by`: columns of `other` that say which of its rows in a batch is the last one.
        `on`: as in `join`. `how`: "left", or "inner" to drop rows of whose key nothing is known. `ttl`: what is known of a key is forgotten
        so long after it was received, by the clock.
        A change in `other` gives nothing by itself: it counts for the rows that come later.
        The classic mistake: to expect the row that was valid at the time of the left one. This looks at what has arrived, not at times.
        """
        self._check_other("lookup", other, uid)
        node = Lookup.checked(uid, self._node, other._node, on=on, how=how, order_by=order_by, ttl=ttl)
        return added(self._graph, node)

    def _check_other(self, what: str, other: Stream, uid: str) -> None:
        if not isinstance(other, Stream):
            raise ConfigError(
                f"{what}({type(other).__name__}): it takes a stream, without key_by(...): say on= instead",
                uid=uid,
            )
        check_same_job(what, self._graph, other._graph)

    def late(self, which: str | None = None) -> Stream:
        """The rows that came too late for this operator, as they came; also those without an event time, or with an absurd one.

        They are part of the same batch and checkpoint as the results. Rows that are not read are counted as well.
        `which`: of a join, "left" or "right".
        """
        if not isinstance(self._node, Operator) or not self._node.late_inputs:
            raise ConfigError(
                "late(): ask it of what a window, a join or dedupe returned; for other parts of a stream no row is too late"
            )
        return Stream(self._graph, Late(self._node, _late_input(self._node, which)))

    def side(self, name: str) -> Stream:
        """The rows that this operator emits to a side output: a stream with the columns that its class declares.

        It is part of the same batch and checkpoint as the results, and may have several readers. Rows that are not read are dropped.
        """
        if not isinstance(self._node, Operator) or not self._node.has_side_outputs:
            raise ConfigError(
                f"side({name!r}): ask it of what process returned; other parts of a stream have no side outputs"
            )
        node = self._node
        return Stream(
            self._graph,
            Side(
                node, checked_side(node.side_outputs(), name, node.uid, type(node.own_code or node).__name__)
            ),
        )

    def apply(
        self, operator: Callable[[Node], Operator], *, on_bad_record: OnBadRecord | str | None = None
    ) -> Stream:
        """Add an operator that is not part of Penstock. The function makes it: `apply(lambda upstream: Few("few", upstream, ("app",), 3))`.

        Its class and its Spark side are described in `operators/base.py` and `spark/operators/registry.py`.
        """
        made = operator(self._node)
        if not isinstance(made, Operator):
            raise ConfigError(f"apply(...): the function returned {made!r}; it must return an Operator")
        return added(self._graph, made, on_bad_record)

    def write_to(
        self, sink: TwoPhaseCommitSink, *, uid: str, on_bad_record: OnBadRecord | str | None = None
    ) -> Written:
        """End the stream in a sink. A stream may have several. `on_bad_record`: "fail" or "skip" rows that the sink refuses."""
        if not isinstance(sink, TwoPhaseCommitSink):
            raise ConfigError(
                f"write_to({sink!r}): it takes a sink, such as penstock.sinks.Files(...)", uid=uid
            )
        output = Output(self._graph.new_uid("sink", uid), self._node, sink)
        say_policy(self._graph, uid, on_bad_record)
        self._graph.outputs.append(output)
        return Written(self._graph, output)


class Written:
    """A stream that ends in a sink: what `write_to` returns."""

    def __init__(self, graph: Graph, output: Output) -> None:
        self._graph = graph
        self._output = output

    def bad_records(self) -> Stream:
        """The rows that the sink refuses, which then do not end the job: see `Stream.bad_records`."""
        return Stream(self._graph, self._graph.bad_records(self._output))


def _late_input(node: Operator, which: str | None) -> str:
    """Of which input of an operator late rows are asked for."""
    two = len(node.late_inputs) > 1
    if two and which not in node.late_inputs:
        raise ConfigError(
            f"late({which!r}): {node.uid!r} has two inputs with columns of their own; ask for late('left') or late('right')",
            uid=node.uid,
        )
    if not two and which is not None:
        raise ConfigError(f"late({which!r}): {node.uid!r} has one input; ask for late()", uid=node.uid)
    return which or LEFT


def added(graph: Graph, operator: Operator, on_bad_record: OnBadRecord | str | None = None) -> Stream:
    """The results of an operator that is part of the job from now on."""
    graph.add(operator)
    say_policy(graph, operator.uid, on_bad_record)
    return Stream(graph, operator)


def check_same_job(what: str, graph: Graph, other: Graph) -> None:
    """Refuse to bring streams of two jobs together."""
    if other is not graph:
        raise ConfigError(f"{what}: both streams must belong to the same job")


def say_policy(graph: Graph, uid: str, on_bad_record: OnBadRecord | str | None) -> None:
    """Record the user's policy for bad rows of one operator or sink, if there is one."""
    if on_bad_record is not None:
        graph.set_on_bad_record(uid, checked_policy(on_bad_record))
