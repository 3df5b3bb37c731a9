"""Rows on their way through a job, as the user builds it: streams, with a key or without, connected, written. Driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.config import OnBadRecord, whole_number
from penstock.config import on_bad_record as checked_policy
from penstock.errors import ConfigError
from penstock.graph import (
    Aggregate,
    Broadcast,
    Graph,
    Keyed,
    Node,
    Operator,
    Output,
    Process,
    Side,
    Top,
    Transform,
    Union,
)
from penstock.operators.process import Process as UnkeyedProcess
from penstock.operators.row_order import OrderBy, parse_orders
from penstock.operators.side_outputs import checked_side
from penstock.operators.time_to_live import TTL, time_to_live
from penstock.own_code import add_process
from penstock.sinks.two_phase_commit import TwoPhaseCommitSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from penstock.state.declared import Columns

MAX_TOP = 10_000
"""What `top` keeps and emits of a key; whoever wants more wants all of it."""


class Stream:
    """Rows on their way: what `read`, `transform`, `aggregate` and `process` return."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self._graph = graph
        self._node = node

    def transform(self, function: Callable[[DataFrame], DataFrame]) -> Stream:
        """Apply any DataFrame function to each batch: SQL, joins with static tables, repartitioning.

        It sees one batch at a time, so an aggregate in it is an aggregate of that batch. It is called once on an empty DataFrame at
        the start, to learn the columns, and then for every batch.
        """
        if not callable(function):
            raise ConfigError(f"transform({function!r}): it takes a function from DataFrame to DataFrame")
        return Stream(self._graph, Transform(self._node, function))

    def union(self, other: Stream) -> Stream:
        """This stream and another with the same columns, as one."""
        if other._graph is not self._graph:
            raise ConfigError("union: both streams must belong to the same job")
        return Stream(self._graph, Union(self._node, other._node))

    def key_by(self, *columns: str) -> KeyedStream:
        """Say what belongs together: rows with equal values in these columns share state."""
        if not columns or not all(isinstance(column, str) and column for column in columns):
            raise ConfigError(f"key_by{columns!r}: it takes the names of one or more columns")
        if len(set(columns)) != len(columns):
            raise ConfigError(f"key_by{columns!r}: a column is named twice")
        return KeyedStream(self._graph, self._node, columns)

    def process(
        self, operator: UnkeyedProcess, *, schema: Columns, uid: str, order_by: OrderBy = ()
    ) -> Stream:
        """Run own Python code without a key: a `Process`, which sees the rows of a subtask and has lists of its own.

        Rows of one partition of the input go to one subtask, and keep their order. `schema` and `order_by` are as in `process` behind
        `key_by`. What `process` raises ends the run.
        """
        node = add_process(
            self._graph, self._node, (), None, operator, schema=schema, uid=uid, order_by=order_by
        )
        return Stream(self._graph, node)

    def broadcast(self, *, order_by: OrderBy = ()) -> BroadcastStream:
        """A small stream, such as rules or rates, of which every subtask of an operator is to see all rows: for `connect`.

        `order_by`: columns ('at', 'at asc' or 'at desc') that put the rows of a batch in order. Without it every subtask sees them in
        the same order, but in no promised one.
        """
        return BroadcastStream(self._graph, Broadcast(self._node, parse_orders(order_by, "order_by")))

    def connect(self, other: BroadcastStream) -> ConnectedStream:
        """Let the operator that comes next see a broadcast stream, too: `payments.connect(rules.broadcast()).process(...)`."""
        return ConnectedStream(self._graph, self._node, (), _connected(self._graph, other))

    def bad_records(self) -> Stream:
        """The rows that this operator could not take, which then do not end the job: a stream of `operator, reason, key, row, batch`.

        Write it to any sink: it is part of the same checkpoint. `row` and `key` are JSON.
        """
        if not isinstance(self._node, Keyed):
            raise ConfigError(
                "bad_records(): ask it of what process, aggregate, top or write_to returned; other parts of a stream have no bad rows"
            )
        if not self._node.keys:
            raise ConfigError(
                f"bad_records(): operator {self._node.uid!r} has no key, and no bad rows either; what a Process raises ends the run",
                uid=self._node.uid,
            )
        return Stream(self._graph, self._graph.bad_records(self._node))

    def side(self, name: str) -> Stream:
        """The rows that this operator emits to a side output: a stream with the columns that its class declares.

        It is part of the same batch and checkpoint as the results, and may have several readers. What nobody reads is dropped.
        """
        if not isinstance(self._node, Process):
            raise ConfigError(
                f"side({name!r}): ask it of what process returned; other parts of a stream have no side outputs"
            )
        node = self._node
        return Stream(self._graph, Side(node, checked_side(node.operator, name, node.uid)))

    def write_to(
        self, sink: TwoPhaseCommitSink, *, uid: str, on_bad_record: OnBadRecord | str | None = None
    ) -> Written:
        """End the stream in a sink. A stream may have several. `on_bad_record`: "fail" or "skip" rows that the sink refuses."""
        if not isinstance(sink, TwoPhaseCommitSink):
            raise ConfigError(
                f"write_to({sink!r}): it takes a sink, such as penstock.sinks.Files(...)", uid=uid
            )
        output = Output(self._graph.new_uid("sink", uid), self._node, sink)
        _say(self._graph, uid, on_bad_record)
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


class _WithOwnCode:
    """What own code can be put behind: a stream with a key, or one beside which there is a broadcast stream."""

    def __init__(
        self, graph: Graph, node: Node, keys: tuple[str, ...], broadcast: Broadcast | None = None
    ) -> None:
        self._graph = graph
        self._node = node
        self._keys = keys
        self._broadcast = broadcast

    def process(
        self,
        operator: Operator,
        *,
        schema: Columns,
        uid: str,
        order_by: OrderBy = (),
        on_bad_record: OnBadRecord | str | None = None,
    ) -> Stream:
        """Run own Python code with state: a `KeyedProcess` key by key, a `BatchProcess` in columns; without a key a `Process`.

        `schema`: the columns of its results, as DDL, a `StructType` or a list such as ["app string", ("n", "long")].
        `order_by`: columns ('at', 'at asc' or 'at desc') that put the rows of a key in order within a batch.
        `on_bad_record`: "fail", or "skip" rows without a key and rows of a key for which `process` raises.
        Behind `connect`, its `process_broadcast` is given the rows of the broadcast stream, in every batch before all others.
        """
        if on_bad_record is not None and not self._keys:
            raise ConfigError(
                f"operator {uid!r}: on_bad_record={on_bad_record!r} is for operators with a key; what a Process raises ends the run",
                uid=uid,
            )
        node = add_process(
            self._graph,
            self._node,
            self._keys,
            self._broadcast,
            operator,
            schema=schema,
            uid=uid,
            order_by=order_by,
        )
        _say(self._graph, uid, on_bad_record)
        return Stream(self._graph, node)


class KeyedStream(_WithOwnCode):
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
        bool_or, bit_and, bit_or, bit_xor, count_distinct. Anything that cannot be merged exactly is refused by name.
        A column is named by its argument, `pv=F.count("*")`, or by its alias, `F.count("*").alias("page views")`: so it may have any name.
        `on_bad_record`: "fail" or "skip" rows whose key is null. `ttl`: a key that has had no rows for so long is forgotten.
        """
        from penstock.spark.aggregate_names import named_aggregates

        aggregates = named_aggregates(columns, named, keys=self._keys, uid=uid)
        lifetime = time_to_live(ttl)
        if lifetime is not None and lifetime.renews:
            raise ConfigError(
                f"operator {uid!r}: ttl={ttl!r}: nobody reads an aggregate without writing it; leave out since='read'",
                operator=uid,
            )
        node = Aggregate(self._graph.new_uid("operator", uid), self._node, self._keys, aggregates, lifetime)
        _say(self._graph, uid, on_bad_record)
        self._graph.operators.append(node)
        return Stream(self._graph, node)

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

        Of rows that are equal in `by` the one that came first stays. With `of` each value of these columns counts once, with its newest
        row: that which came last, or is the last in `order_by`; of values that are equal in `by` the smaller one comes first.
        `on_bad_record`: "fail" or "skip" rows whose key is null.
        The classic mistake: to append the results to a table. Write them by key and rank: `key=["shop", "rank"]`.
        """  # noqa: D205 - the sentence is long
        whole_number("n", n, minimum=1, maximum=MAX_TOP)
        orders, values, newest = parse_orders(by, "by"), _names("of", of), parse_orders(order_by, "order_by")
        _check_top(
            self._keys, by=[order.column for order in orders], of=values, order_by=bool(newest), uid=uid
        )
        node = Top(self._graph.new_uid("operator", uid), self._node, self._keys, n, orders, values, newest)
        _say(self._graph, uid, on_bad_record)
        self._graph.operators.append(node)
        return Stream(self._graph, node)

    def connect(self, other: BroadcastStream) -> ConnectedStream:
        """Let the operator that comes next see a broadcast stream, too: `payments.key_by("card").connect(rules.broadcast())`."""
        return ConnectedStream(self._graph, self._node, self._keys, _connected(self._graph, other))


class ConnectedStream(_WithOwnCode):
    """A stream, with or without a key, whose operator sees a broadcast stream beside it: what `connect` returns."""


class BroadcastStream:
    """A small stream of which every subtask sees all rows: what `broadcast` returns, and `connect` takes."""

    def __init__(self, graph: Graph, broadcast: Broadcast) -> None:
        self._graph = graph
        self._broadcast = broadcast


def _connected(graph: Graph, other: BroadcastStream) -> Broadcast:
    if not isinstance(other, BroadcastStream):
        raise ConfigError(
            f"connect({type(other).__name__}): it takes a broadcast stream, such as rules.broadcast(). To bring two streams together by "
            "key, union them, with a column that says which is which, and then key_by"
        )
    if other._graph is not graph:  # noqa: SLF001 - they are made together
        raise ConfigError("connect: both streams must belong to the same job")
    return other._broadcast  # noqa: SLF001 - they are made together


def _names(argument: str, given: str | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(isinstance(name, str) and name for name in names) or len(set(names)) < len(names):
        raise ConfigError(
            f"{argument}={given!r}: it takes the names of columns, each once", **{argument: given}
        )
    return names


def _check_top(
    keys: tuple[str, ...], *, by: list[str], of: tuple[str, ...], order_by: bool, uid: str
) -> None:
    if not by:
        raise ConfigError(
            f"top {uid!r}: by names no column; say which rows come first: by='amount desc'", uid=uid
        )
    if order_by and not of:
        raise ConfigError(
            f"top {uid!r}: order_by says which row of a value is the newest, and there is no of=...; where every row counts, by decides",
            uid=uid,
        )
    shared = [name for name in of if name in keys]
    if shared:
        raise ConfigError(
            f"top {uid!r}: of names {shared[0]!r}, a key column: all rows of a key have the same value in it",
            uid=uid,
        )


def _say(graph: Graph, uid: str, on_bad_record: OnBadRecord | str | None) -> None:
    if on_bad_record is not None:
        graph.set_on_bad_record(uid, checked_policy(on_bad_record))
