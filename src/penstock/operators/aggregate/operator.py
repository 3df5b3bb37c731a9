"""`aggregate`: SQL aggregates per key over everything so far. Spark aggregates the rows of a batch, the task merges that into the state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.errors import ConfigError, InternalError
from penstock.operators.aggregate.columns import AggregateColumn, output_schema
from penstock.operators.aggregate.distinct import (
    WHOSE,
    ValueLives,
    aggregate_layout,
    counting_distinct,
    life_fields,
    life_of,
    partials_with_counts,
)
from penstock.operators.aggregate.merge import finish, merge
from penstock.operators.bad_records import ROW, ROWS, BadRows
from penstock.operators.base import Node, Operator, Spec, Task, TaskContext
from penstock.operators.event_time import TimeColumn
from penstock.operators.grouping import (
    Piece,
    PieceLimits,
    group_rows,
    null_keys,
    one_row_a_key,
    pieces_with_state,
)
from penstock.operators.inputs import TaskRows, shown_key
from penstock.operators.outputs import RESULTS, Outputs
from penstock.operators.state.task_time import NO_TIME, TaskTime
from penstock.operators.state.timers import EVENT_TIME
from penstock.operators.state.ttl import TTL, TimeToLive, not_earlier, time_to_live
from penstock.operators.views import Plain, Shown, StoredTable, TableView
from penstock.state.backends.base import OpenState, StateLayout, with_stamps
from penstock.state.lifetimes import Lifetime
from penstock.state.sizes import in_batches
from penstock.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import Column

EVENT_TIME_US = "__penstock_event_time"
"""The newest event time of the rows of a key, where its state has a time to live by event time."""
LIMITS = PieceLimits(bytes=256 << 20)


@dataclass(frozen=True, eq=False)
class Aggregate(Operator):
    """SQL aggregates for each key over all rows so far."""

    columns: dict[str, Column]
    ttl: TimeToLive | None = None

    partly_aggregated = True

    @classmethod
    def checked(
        cls, uid: str, upstream: Node, keys: tuple[str, ...], columns: dict[str, Column], *, ttl: TTL | None
    ) -> Aggregate:
        """Check the arguments; raises `ConfigError`."""
        refuse_updates(upstream, uid)
        lifetime = time_to_live(ttl)
        if lifetime is not None and lifetime.renews:
            raise ConfigError(
                f"operator {uid!r}: ttl={ttl!r}: an aggregate is never read without being written; leave out since='read'",
                operator=uid,
            )
        return cls(uid, upstream, keys, columns, lifetime)

    @override
    def describe(self) -> str:
        return "aggregate"

    @property
    @override
    def lives_by_event_time(self) -> bool:
        return self.ttl is not None and self.ttl.by == EVENT_TIME


@dataclass(frozen=True)
class AggregateSpec(Spec):
    """The aggregates with their types in Spark, the key columns, and how long a key lives."""

    columns: tuple[AggregateColumn, ...]
    key: pa.Schema
    ttl: TimeToLive | None = None

    @override
    def layout(self) -> StateLayout:
        return aggregate_layout(self.columns, self.key, self.ttl)

    @property
    @override
    def output(self) -> pa.Schema:
        return pa.schema([*shown_key(self.key), *output_schema(self.columns)])

    @classmethod
    @override
    def shown(cls, table: StoredTable) -> TableView | None:
        return shown_values(table, table.own)

    @classmethod
    def shown_as(cls, column: str) -> str | None:
        """Hides the columns that only track the lives of distinct values."""
        return None if life_of(column) is None else ""

    @override
    def task(self, context: TaskContext) -> Task:
        return AggregateTask(context, self)


def shown_values(table: StoredTable, values: Sequence[pa.Field], *window: Shown) -> TableView | None:
    """The view of the distinct values of an aggregate; None for another table. `window` shows the window in which they are counted."""
    if not values or not all(field.name.startswith(f"{table.name}_") for field in values):
        return None
    counted = table.name.removeprefix("__").removesuffix("_distinct")
    called = [counted] if len(values) == 1 else [f"{counted}_{at}" for at in range(len(values))]
    return TableView(f"{counted}_values", "distinct values", (*window, *map(Plain, called, values)))


@dataclass
class ReducedTask(Task):
    """A task whose rows Spark has aggregated to one row for each group. Rows without a key are only counted, or come unchanged."""

    @override
    def rows_given(self, table: pa.Table) -> int:
        return rows_stood_for(table)

    def shown_columns(self, table: pa.Table) -> list[str]:  # noqa: ARG002
        """Only the key is left of the rows. A key of one column is not shown: the error already says that it is null."""
        keys = self.context.keys
        return list(keys) if len(keys) > 1 else []

    @override
    def without_null_keys(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        return without_null_keys(table, keys, self.context.bad)


@dataclass
class AggregateTask(ReducedTask):
    """Merges the aggregates of a batch into those of its keys. An overflow concerns all rows of a key, and ends the run."""

    spec: AggregateSpec

    @override
    def apply(self, rows: TaskRows, state: OpenState) -> Outputs:
        newest = EVENT_TIME_US if EVENT_TIME_US in rows.own.column_names else None
        believed = TimeColumn(EVENT_TIME_US, of_results=True)  # Spark has taken no other times
        results = run_aggregate(
            self.spec.columns,
            rows.own,
            state,
            key_names=list(self.context.keys),
            lifetimes=self.spec.layout().lifetimes,
            time=TaskTime(self.context.clock.judging(believed), newest),
        )
        return {RESULTS: results}

    def without_null_keys(self, table: pa.Table, keys: Sequence[str]) -> pa.Table:
        """Also drops the columns that count rows."""
        left = super().without_null_keys(table, keys)
        return left.drop_columns([name for name in (ROW, ROWS) if name in left.column_names])


def refuse_updates(upstream: Node, uid: str) -> None:
    """Refuse to add up results that replace earlier ones. Own code in between is allowed: it knows what it does."""
    window = upstream.revising()
    if window is None:
        return
    why = " and ".join(window.revised_by)
    late = ", and read rows that come too late with late()" if "lateness" in window.revised_by else ""
    raise ConfigError(
        f"operator {uid!r} would add up every result of the window {window.uid!r}, which has {why} and so gives more than one "
        "result of a window: each replaces the one before. Aggregate the rows before that window instead; or leave "
        f"{why} out there{late}",
        uid=uid,
        window=window.uid,
    )


def run_aggregate(
    specs: Sequence[AggregateColumn],
    table: pa.Table,
    state: OpenState,
    *,
    key_names: list[str],
    lifetimes: tuple[Lifetime, ...] = (),
    time: TaskTime = NO_TIME,
) -> list[pa.RecordBatch]:
    """Update the keys of the batch; returns their new values. Distinct values come as further rows of their key."""
    results: list[pa.RecordBatch] = []
    rows = group_rows(table, key_names) if counting_distinct(specs) else one_row_a_key(table, key_names)
    for piece in pieces_with_state(rows, state, LIMITS):
        results.extend(in_batches(_update(specs, piece, state, lifetimes, time)))
    return results


def _update(
    specs: Sequence[AggregateColumn],
    piece: Piece,
    state: OpenState,
    lifetimes: tuple[Lifetime, ...],
    time: TaskTime,
) -> pa.Table:
    keys, distinct = piece.grouped.keys, counting_distinct(specs)
    touches, every = time.touches(piece.grouped, state.now_us), np.arange(len(keys))
    stamps = [
        not_earlier(touches.of(lifetime, every), piece.stored.column(lifetime.stamp))
        for lifetime in lifetimes
    ]
    lives: list[ValueLives] = []
    for lifetime, touched in zip(lifetimes, stamps, strict=True):
        lives += [ValueLives.of(spec, piece, touched, lifetime, state.generation) for spec in distinct]
    if distinct:
        partials = partials_with_counts(specs, piece.grouped, state, lifetimes, lives)
    else:
        (partials,) = piece.grouped.table.combine_chunks().to_batches()
    merged = merge(specs, piece.stored, piece.found, partials)
    of_lives = [column for life in lives for column in life.columns]
    schema = pa.schema([*merged.schema, *(life_fields(distinct) if lives else ())])
    values = [*merged.columns, *of_lives, *map(pa.array, stamps)]
    state.write(keys, pa.RecordBatch.from_arrays(values, schema=with_stamps(schema, lifetimes)))
    finished = finish(specs, merged)
    shown = keys.columns.select(shown_key(keys.columns.schema).names)
    names = [*shown.schema.names, *finished.schema.names]
    return pa.Table.from_arrays([*shown.columns, *finished.columns], names=names)


def rows_stood_for(table: pa.Table) -> int:
    """The number of rows of the stream that Spark has aggregated to these."""
    if ROWS not in table.column_names:
        return int(table.num_rows)
    if WHOSE in table.column_names:  # a row that has a value, too, is counted once
        table = table.filter(pc.equal(table.column(WHOSE), 0))
    return int(pc.sum(table.column(ROWS), min_count=0).as_py())


def without_null_keys(table: pa.Table, keys: Sequence[str], bad: BadRows) -> pa.Table:
    """Remove the rows without a key from those that Spark has aggregated, and record them as bad rows."""
    flags, reasons = null_keys(table, list(keys))
    numbers = table.column(ROWS).to_numpy()[flags].tolist()
    if ROW in table.column_names and reasons:
        rows = table.column(ROW).filter(pa.array(flags)).combine_chunks()
        rows = rows.take(pa.array(np.repeat(np.arange(len(rows)), numbers)))
        repeated = [reason for reason, number in zip(reasons, numbers, strict=True) for _ in range(number)]
        bad.add(pa.RecordBatch.from_struct_array(rows), repeated, keys)
    elif reasons and bad.kept:
        raise InternalError(
            f"{counted(sum(numbers), 'row')} without a key came to operator {bad.uid} without {ROW}: they are to be kept and could only "
            "be counted"
        )
    elif reasons:
        bad.add_number(sum(numbers), reasons[0])
    return table.filter(pa.array(~flags))
