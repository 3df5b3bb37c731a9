"""User code as a job declares it, with its inputs: the same checks, the same specs, the same tasks. No Spark.

The streams of `penstock.streams` only build the graph, so they are used here unchanged, and the kit refuses what a job refuses, with the
same message. The steps that Spark does on the way to a task (sort keys, order, two inputs in one table) are done in Arrow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from penstock.config import OnBadRecord
from penstock.errors import ConfigError
from penstock.graph import Graph, Source, TimeSettings
from penstock.operators.base import LEFT, Operator, Spec
from penstock.operators.calls import to_table
from penstock.operators.event_time import TimeColumn
from penstock.operators.inputs import (
    BROADCAST,
    FROM_RIGHT,
    KeyColumn,
    RightInput,
    check_key_columns,
    check_order_columns,
    check_same_keys,
    travelling_names,
)
from penstock.operators.process.operator import ProcessOperator
from penstock.operators.process.task import ProcessSpec
from penstock.operators.values.python_values import python_values
from penstock.operators.values.row_order import Order, order_keys, sorted_by
from penstock.run.assignment import Assignment, Executor
from penstock.run.subtask import Subtask
from penstock.run.watermarks import latest_us
from penstock.state.backends.base import StateLayout
from penstock.state.ddl import spark_type
from penstock.state.keys import GROUP_SHIFT, SORT_KEY, key_groups, owners
from penstock.state.subtask_rows import subtask_sort_key
from penstock.streams import Stream

if TYPE_CHECKING:
    from penstock.keyed_streams import KeyedStream


_HASH_BITS = (1 << GROUP_SHIFT) - 1


@dataclass(frozen=True)
class Input:
    """A stream of rows into the operator."""

    uid: str
    columns: pa.Schema
    keys: tuple[str, ...] = ()
    time: TimeSettings | None = None

    @property
    def key(self) -> pa.Schema:
        """The key columns, with their types."""
        return pa.schema([self.columns.field(name) for name in self.keys])

    def stream(self, graph: Graph) -> Stream:
        """The stream in a graph. It has no DataFrame: none is asked for before a job starts."""
        source = Source(self.uid, cast("Any", None), replayable=True, event_time=self.time)
        graph.sources.append(source)
        return Stream(graph, source)

    def keyed(self, graph: Graph) -> KeyedStream:
        """The same by its key."""
        return self.stream(graph).key_by(*self.keys)

    def sort_keys(self, rows: pa.Table, max_parallelism: int) -> npt.NDArray[np.int64]:
        """Where each row belongs: a pure function of its key. Not the numbers that Spark would compute."""
        columns = [python_values(_normal(rows.column(name))) for name in self.keys]
        hashes = [xxhash.xxh3_64_intdigest(repr(key).encode()) for key in zip(*columns, strict=True)]
        numbers = [(one % max_parallelism) << GROUP_SHIFT | (one >> 32) & _HASH_BITS for one in hashes]
        return np.array(numbers, dtype=np.int64)


def _normal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """With one zero, as Spark normalises keys; all NaNs are one already."""
    return pc.add(column, 0.0) if pa.types.is_floating(column.type) else column


@dataclass(frozen=True)
class DeclaredOperator:
    """Own code with its inputs."""

    node: Operator
    left: Input
    right: Input | None
    broadcast: Input | None
    spec: Spec
    on_bad_record: OnBadRecord
    max_parallelism: int

    @property
    def uid(self) -> str:
        """The uid of the operator."""
        return self.node.uid

    def layout(self) -> StateLayout:
        """The layout of its state."""
        return self.spec.layout()

    @property
    def output(self) -> pa.Schema:
        """The columns of its results."""
        return self.spec.output

    def task(self, plan: Assignment, executor: Executor) -> Subtask:
        """A task with a copy of the user's object: what one remembers besides its state is gone after the batch, as on an executor."""
        late = self.left.columns if LEFT in self.node.late_inputs else None
        return Subtask(self.uid, copy.deepcopy(self.spec), plan, executor, self.on_bad_record, late=late)

    # ── rows for tasks ─────────────────────────────────────────────────────────────────────────

    def tables(self, rows: Sequence[pa.Table | None], parallelism: int) -> list[pa.Table]:
        """The rows of a batch for each subtask, as Spark hands them over. `rows`: of the left, right and broadcast input, if any."""
        left, right, broadcast = rows
        second = self.node.second_input
        parts = self._divided(self.left, _in_order(left, _orders(self.node)), parallelism)
        if self.right is not None and right is not None:
            others = self._divided(
                self.right, _in_order(right, second.order_by if second else ()), parallelism
            )
            return [_beside(*both) for both in zip(parts, others, strict=True)]
        if self.broadcast is not None and broadcast is not None:
            side = self.node.broadcast if isinstance(self.node, ProcessOperator) else None
            told = _in_order(broadcast, side.order_by if side else ())
            return [_with_broadcast(part, told, index) for index, part in enumerate(parts)]
        return parts

    def _divided(self, of: Input, rows: pa.Table, parallelism: int) -> list[pa.Table]:
        if of.keys:
            numbers = of.sort_keys(rows, self.max_parallelism)
            owner = owners(key_groups(numbers), parallelism)
        else:
            owner = np.arange(rows.num_rows) % parallelism
            numbers = np.array([subtask_sort_key(int(one)) for one in owner], dtype=np.int64)
        rows = rows.append_column(SORT_KEY, pa.array(numbers, pa.int64()))
        return [rows.filter(pa.array(owner == index)) for index in range(parallelism)]


def _orders(node: Operator) -> tuple[Order, ...]:
    """Windows put their own rows in order, when they close."""
    return node.order_by if isinstance(node, ProcessOperator) else ()


def _in_order(rows: pa.Table, order_by: Sequence[Order]) -> pa.Table:
    return rows.take(pa.array(sorted_by(order_keys(rows, order_by)))) if order_by else rows


def _beside(left: pa.Table, right: pa.Table) -> pa.Table:
    names = travelling_names(FROM_RIGHT, right.column_names[:-1])
    marked = right.rename_columns([*names, SORT_KEY])
    marked = marked.append_column(FROM_RIGHT, pa.array([True] * right.num_rows, pa.bool_()))
    return pa.concat_tables([left, marked], promote_options="default")


def _with_broadcast(own: pa.Table, side: pa.Table, subtask: int) -> pa.Table:
    numbered = side.rename_columns(travelling_names(BROADCAST, side.column_names))
    numbered = numbered.append_column(BROADCAST, pa.array(range(side.num_rows), pa.int64()))
    keys = pa.array([subtask_sort_key(subtask)] * side.num_rows, pa.int64())
    return pa.concat_tables([own, numbered.append_column(SORT_KEY, keys)], promote_options="default")


def _check_copies(node: Operator) -> None:
    try:
        copy.deepcopy(node.own_code)
    except Exception as error:
        raise ConfigError(
            f"operator {node.uid!r}: a {type(node.own_code).__name__} is pickled into tasks, and it cannot be: {error}. Open connections, "
            "locks and files where they are first used, inside the call, and keep only settings in the object",
            uid=node.uid,
        ) from error


# ── what the user wrote ────────────────────────────────────────────────────────────────────────────


def declared(
    left: Input,
    draw: Callable[[Graph], object],
    *,
    right: Input | None,
    broadcast: Input | None,
    on_bad_record: OnBadRecord,
    max_parallelism: int,
) -> DeclaredOperator:
    """The operator that `draw` adds to a graph, or the `ConfigError` of the job."""
    graph = Graph()
    draw(graph)
    node = graph.operators[-1]
    for one in (left, right):
        if one is not None:
            check_key_columns(node.uid, one.keys, one.columns.names)
    if right is not None:
        check_same_keys(node.uid, _key_columns(left), _key_columns(right))
    _check_orders(node, left, right, broadcast)
    spec = (
        _process_spec(node, graph, left, right, broadcast)
        if isinstance(node, ProcessOperator)
        else node.code_spec(left.columns, left.key, _time_of(node))
    )
    _check_copies(node)
    return DeclaredOperator(node, left, right, broadcast, spec, on_bad_record, max_parallelism)


def _check_orders(node: Operator, left: Input, right: Input | None, broadcast: Input | None) -> None:
    check_order_columns(node.uid, node.order_by, left.columns.names)
    if right is not None and node.second_input is not None:
        check_order_columns(f"{node.uid}, right stream", node.second_input.order_by, right.columns.names)
    if broadcast is not None and isinstance(node, ProcessOperator) and node.broadcast is not None:
        check_order_columns(f"{node.uid}, broadcast side", node.broadcast.order_by, broadcast.columns.names)


def _key_columns(of: Input) -> list[KeyColumn]:
    return [(one.name, one.type, spark_type(one.type)) for one in of.key]


def _process_spec(
    node: ProcessOperator, graph: Graph, left: Input, right: Input | None, broadcast: Input | None
) -> ProcessSpec:
    timed, second = node.lives_by_event_time, node.second_input
    of_right = second.upstream.event_time_column() if timed and second is not None else None
    return ProcessSpec(
        node.code,
        left.key,
        node.results,
        tuple(sorted(node.side_outputs())),
        None if broadcast is None else tuple(broadcast.columns.names),
        None if right is None else RightInput(tuple(right.columns.names), right.keys, of_right),
        node.upstream.event_time_column() if timed else None,
        has_event_time=bool(graph.event_time_sources(node)),
    )


def _time_of(node: Operator) -> TimeColumn | None:
    time = node.upstream.event_time_column() if node.judges_by_time else None
    if time is None and node.judges_by_time:
        raise ConfigError(f"operator {node.uid!r} needs the time of its rows; write event_time='at'")
    return time


Row: TypeAlias = dict[str, Any]
RowsGiven: TypeAlias = pa.Table | Iterable[Mapping[str, Any] | Sequence[Any]]
"""Rows as a test writes them: an Arrow table, dictionaries, or tuples in the order of the schema."""


def as_dicts(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Rows as dictionaries, with values as user code sees them."""
    found: list[Row] = []
    for batch in batches:
        names = batch.schema.names
        columns = [python_values(column) for column in batch.columns]
        found += [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    return found


def as_table(of: Input | None, rows: RowsGiven, uid: str) -> pa.Table | None:
    """Rows as a test writes them, as columns of the types of their stream."""
    if isinstance(rows, pa.Table):
        given: pa.Table = rows
    else:
        listed = list(rows)
        if of is None:
            if listed:
                raise ConfigError(
                    f"operator {uid!r} is given rows of a stream that it does not have: {listed[0]!r}; write right_schema= and "
                    "right_key= for a second stream, broadcast_schema= for a broadcast stream"
                )
            return None
        given = to_table(listed, of.columns, f"the {of.uid} have") if listed else of.columns.empty_table()
    if of is None:
        raise ConfigError(f"operator {uid!r} has no such stream; write right_schema= or broadcast_schema=")
    return given.select(of.columns.names).cast(of.columns)


def newest_us(of: Input, rows: pa.Table, now_us: int) -> int | None:
    """The newest event time of the rows that is believed, as Spark observes it."""
    if of.time is None or not rows.num_rows:
        return None
    moments = rows.column(of.time.column)
    numbers = moments.cast(pa.timestamp("us", moments.type.tz)).cast(pa.int64())
    believed = numbers.filter(pc.less_equal(numbers, latest_us(of.time, now_us)))
    newest: int | None = pc.max(believed).as_py()
    return newest


def parsed_moment(given: datetime | str, call: str) -> datetime:
    """The time that a test writes, as microseconds; text without a time zone is UTC."""
    if not isinstance(given, str):
        return given
    try:
        read = datetime.fromisoformat(given)
    except ValueError as error:
        raise ConfigError(
            f"{call}({given!r}): write a datetime, or text such as '2026-01-01 10:00'"
        ) from error
    return read if read.tzinfo is not None else read.replace(tzinfo=UTC)
