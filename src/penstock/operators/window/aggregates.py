"""Aggregates over windows of time: what tumbling, sliding and session windows share, and exact counts of distinct values. Executors.

In tumbling and sliding windows each distinct value is a row of a table:

    rows of a batch --(Spark, JVM)--> distinct values by key and pane --> by key and window --look up--> new ones --> table, and how many

A value lives as long as its window. A value that is in several sliding windows is stored once for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.operators.aggregate.columns import AggregateColumn, Kind, output_schema, state_schema
from penstock.operators.aggregate.distinct import (
    VALUES_BYTES,
    WHOSE,
    counting_distinct,
    distinct_table,
    value_names,
)
from penstock.operators.aggregate.merge import finish
from penstock.operators.aggregate.operator import ReducedTask
from penstock.operators.base import Spec
from penstock.operators.columns import rows_at, widened
from penstock.operators.event_time import TimeColumn
from penstock.operators.grouping import equal_rows
from penstock.operators.inputs import shown_key
from penstock.operators.state.table_rows import sub_orders
from penstock.operators.values.python_values import as_moments
from penstock.operators.window.base import LAST, WINDOW_END, WINDOW_START, Numbers, WindowTask
from penstock.state.backends.base import OpenState, TableLayout, with_stamps
from penstock.state.keys import SORT_KEY, KeyBatch
from penstock.state.lifetimes import Lifetime, Measure
from penstock.state.sizes import cut, row_bytes
from penstock.windows import SessionWindows, TimeWindows

# ── what all aggregates over windows of time share ─────────────────────────────────────────────────


@dataclass(frozen=True)
class TimeAggregateSpec(Spec):
    """Aggregates over windows that close as time passes, with the columns of their stream."""

    key: pa.Schema
    windows: TimeWindows | SessionWindows
    lateness_us: int
    specs: tuple[AggregateColumn, ...]
    time: pa.DataType
    """The type of `window_start` and `window_end`."""
    row_time: TimeColumn | None = None
    """The column by which Spark has grouped the rows of a batch."""

    @property
    @override
    def output(self) -> pa.Schema:
        times = [pa.field(WINDOW_START, self.time), pa.field(WINDOW_END, self.time)]
        return pa.schema([*shown_key(self.key), *times, *output_schema(self.specs)])

    def results(
        self, keys: Sequence[pa.Array], starts: Numbers, lasts: Numbers, partials: pa.RecordBatch
    ) -> pa.Table:
        """The results of windows with these keys, first and last moments, and partial aggregates."""
        times = [as_moments(numbers, self.time) for numbers in (starts, lasts + 1)]
        columns = [*keys[: len(shown_key(self.key))], *times, *finish(self.specs, partials).columns]
        return pa.Table.from_arrays(columns, schema=self.output)


@dataclass
class TimeAggregateTask(WindowTask, ReducedTask):
    """The work of one subtask on aggregates over windows of time."""

    spec: TimeAggregateSpec

    @property
    @override
    def lateness_us(self) -> int | None:
        return self.spec.lateness_us

    @property
    @override
    def row_time(self) -> TimeColumn | None:
        return self.spec.row_time


# ── counts of distinct values in tumbling and sliding windows ──────────────────────────────────────

_STAMP = "__penstock_window_ends"


def window_values(spec: AggregateColumn, key: pa.Schema, lateness_us: int) -> TableLayout:
    """The table with the distinct values of one aggregate in each window."""
    lifetime = Lifetime((), _STAMP, lateness_us, Measure.WATERMARK)
    values = [pa.field(name, kind) for name, kind in zip(value_names(spec), spec.distinct, strict=True)]
    identity = pa.schema([*key, pa.field(LAST, pa.int64()), *values])
    stamps = with_stamps(pa.schema([]), (lifetime,))
    return TableLayout(distinct_table(spec), identity, stamps, lifetimes=(lifetime,))


@dataclass(frozen=True)
class Counted:
    """Partial aggregates of windows that have only the number of new distinct values."""

    sort_keys: Numbers
    lasts: Numbers
    rows: pa.Table
    """The key columns, then the partial aggregates."""


@dataclass(frozen=True)
class WindowValues:
    """The distinct values of one subtask in one batch."""

    key: pa.Schema
    windows: TimeWindows
    specs: Sequence[AggregateColumn]
    lateness_us: int
    state: OpenState

    def take_in(self, rows: pa.Table, pane: str, *, over_us: int, watermark_us: int) -> list[Counted]:
        """Write and count the values that are new in their windows. Windows up to `over_us` accept no values any more."""
        found: list[Counted] = []
        for number, spec in enumerate(counting_distinct(self.specs), 1):
            mine = rows.filter(pa.array(rows.column(WHOSE).to_numpy() == number))
            if mine.num_rows:
                panes = mine.column(pane).to_numpy()
                found.append(self._new(spec, mine, panes, over_us, watermark_us - self.lateness_us))
        return found

    def _new(
        self, spec: AggregateColumn, rows: pa.Table, panes: Numbers, over_us: int, gone_us: int
    ) -> Counted:
        layout = window_values(spec, self.key, self.lateness_us)
        at, lasts = self.windows.windows_of(panes)
        at, lasts = at[lasts > over_us], lasts[lasts > over_us]
        sort_keys = rows.column(SORT_KEY).to_numpy()[at]
        named = [*self.key.names, *value_names(spec)]
        table = widened(rows.select(named)).combine_chunks()
        columns = [column.chunk(0).take(pa.array(at)) for column in table.columns]
        orders = sub_orders([pa.array(lasts), *columns[len(self.key) :]])
        order, starts = equal_rows([sort_keys, orders], [*columns, pa.array(lasts)])
        first = order[starts[:-1]]  # two panes of a window may have the same value
        identity = pa.Table.from_arrays([*columns, pa.array(lasts)], names=[*named, LAST])
        opened, new = self.state.table(layout.name), [np.zeros(0, dtype=np.int64)]
        for start, stop in cut(row_bytes(columns, first), VALUES_BYTES):
            some = first[start:stop]
            asked = KeyBatch(sort_keys[some], rows_at(identity, some, layout.identity), orders[some])
            unknown = ~opened.read(asked)[1]
            new.append(some[unknown])
            kept = np.flatnonzero(unknown & (lasts[some] > gone_us))
            stamps = pa.RecordBatch.from_arrays([pa.array(lasts[some][kept])], schema=layout.value)
            opened.write(asked.take(kept), stamps)
        return self._counted(spec, np.concatenate(new), sort_keys, lasts, columns)

    def _counted(
        self,
        spec: AggregateColumn,
        new: Numbers,
        sort_keys: Numbers,
        lasts: Numbers,
        columns: Sequence[pa.Array],
    ) -> Counted:
        keys = [column.take(pa.array(new)) for column in columns[: len(self.key)]]
        order, starts = equal_rows([lasts[new], sort_keys[new]], keys)
        first = order[starts[:-1]]
        counts = {spec.partials[0].name: pa.array(np.diff(starts))}
        partials = [
            counts.get(partial.name, _nothing(partial.rule, partial.type, len(first)))
            for one in self.specs
            for partial in one.partials
        ]
        names = [*self.key.names, *state_schema(self.specs).names]
        taken = [key.take(pa.array(first)) for key in keys]
        rows = pa.Table.from_arrays([*taken, *partials], names=names)
        return Counted(sort_keys[new][first], lasts[new][first], rows)


def with_no_counts(rows: pa.Table, specs: Sequence[AggregateColumn]) -> pa.Table:
    """The aggregates that Spark computed, with counts of distinct values that are 0: the new ones are added to them."""
    for spec in counting_distinct(specs):
        zeros = pa.array(np.zeros(rows.num_rows, dtype=np.int64))
        rows = rows.append_column(spec.partials[0].name, zeros)
    return rows


def _nothing(rule: Kind, kind: pa.DataType, rows: int) -> pa.Array:
    return pa.array(np.zeros(rows, dtype=np.int64)).cast(kind) if rule is Kind.COUNT else pa.nulls(rows, kind)
