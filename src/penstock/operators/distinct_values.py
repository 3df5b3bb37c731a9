"""Exact counts of distinct values: each value that a key had is a row of a table, and only new ones are counted. Executors.

    rows of a batch --(Spark, JVM)--> distinct values, one row each --look up--> new ones --> table, and how many --> the count

Spark gives the values of all such aggregates among the aggregates of the batch, with a number that says whose they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import ConfigError, InternalError
from penstock.operators.aggregates import AggregateSpec, lifetimes, state_schema
from penstock.operators.grouping import Grouped
from penstock.operators.table_rows import PieceRows, RowIds
from penstock.operators.time_to_live import TimeToLive
from penstock.operators.wide_columns import as_batch
from penstock.state.backends.base import OpenState, Parts, StateLayout, TableLayout, with_stamps
from penstock.state.sizes import in_batches
from penstock.wording import counted

WHOSE = "__penstock_distinct"
"""Of each row: 0 for the aggregates of a key, n for a value of the nth aggregate of distinct values."""

VALUES_BYTES = 64 << 20
"""So many bytes of values are looked up at once."""

_TABLE = re.compile(r"__(?P<aggregate>.+)_distinct", re.DOTALL)

Positions = npt.NDArray[np.int64]


def counting_distinct(specs: Sequence[AggregateSpec]) -> list[AggregateSpec]:
    """The aggregates that count distinct values, in their order: the first has the number 1."""
    return [spec for spec in specs if spec.distinct]


def value_names(spec: AggregateSpec) -> list[str]:
    """The columns of a value. They depend on nothing but their own aggregate, so others may come and go."""
    return [f"__{spec.name}_distinct_{at}" for at in range(len(spec.distinct))]


def aggregate_layout(
    specs: Sequence[AggregateSpec], key: pa.Schema, ttl: TimeToLive | None = None
) -> StateLayout:
    """What an operator with these aggregates keeps."""
    distinct = counting_distinct(specs)
    if distinct and ttl is not None:
        raise ConfigError(
            f"{distinct[0].name!r} counts distinct values, which an aggregate with a time to live (ttl={ttl.duration!r}) cannot: each "
            "value would have to be written again whenever its key has rows. Leave out ttl, or keep a MapState with one in a KeyedProcess",
            column=distinct[0].name,
        )
    mortal = lifetimes(specs, ttl)
    for lifetime in mortal:
        if lifetime.stamp in (*key.names, *state_schema(specs).names):
            raise ConfigError(
                f"there is a column {lifetime.stamp!r}, in which Penstock keeps when a key was last touched; rename the column",
                column=lifetime.stamp,
            )
    tables = tuple(_table(spec, key) for spec in distinct)
    return StateLayout(key, with_stamps(state_schema(specs), mortal), tables, mortal, Parts.AGGREGATES)


def _table(spec: AggregateSpec, key: pa.Schema) -> TableLayout:
    values = [pa.field(name, kind) for name, kind in zip(value_names(spec), spec.distinct, strict=True)]
    return TableLayout(distinct_table(spec), pa.schema([*key, *values]), pa.schema([]))


def distinct_table(spec: AggregateSpec) -> str:
    """The table with the values of one of them."""
    return f"__{spec.name}_distinct"


def distinct_aggregate_of(table: str) -> str | None:
    """The aggregate whose distinct values a table with such a name holds."""
    found = _TABLE.fullmatch(table)
    return None if found is None else found["aggregate"]


def partials_with_counts(
    specs: Sequence[AggregateSpec], grouped: Grouped, state: OpenState
) -> pa.RecordBatch:
    """The aggregates of the batch, one row a key, with how many values are new. These are written."""
    whose = grouped.table.column(WHOSE).to_numpy()
    key_index = np.repeat(np.arange(len(grouped.keys)), np.diff(grouped.starts))
    own = np.flatnonzero(whose == 0)
    if not np.array_equal(key_index[own], np.arange(len(grouped.keys))):
        raise InternalError(
            f"{counted(len(own), 'row')} with aggregates for {counted(len(grouped.keys), 'key')}: there must be one for each"
        )
    partials = grouped.table.filter(pa.array(whose == 0))
    for number, spec in enumerate(counting_distinct(specs), 1):
        mine = whose == number
        table = _table(spec, grouped.keys.columns.schema)
        rows = PieceRows(state.table(table.name), table, grouped.keys)
        values = grouped.table.select(value_names(spec)).filter(pa.array(mine))
        counts = _take_in(rows, key_index[mine], values)
        partials = partials.append_column(spec.partials[0].name, pa.array(counts))
    (batch,) = partials.combine_chunks().to_batches()
    return batch


def _take_in(rows: PieceRows, key_index: Positions, values: pa.Table) -> Positions:
    """Write the values that no batch had before; how many each key has of these. A key may have more than fit into an array."""
    counts = np.zeros(len(rows), dtype=np.int64)
    start = 0
    for part in in_batches(values, VALUES_BYTES):
        batch = as_batch(part, rows.sub)
        ids = RowIds.of(key_index[start : start + batch.num_rows], batch)
        start += batch.num_rows
        _, found = rows.get(ids)
        new = ids.take(np.flatnonzero(~found))
        rows.put(new, [])
        counts += np.bincount(new.key_index, minlength=len(rows))
    rows.write()
    return counts
