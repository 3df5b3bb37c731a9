"""Merge the aggregates of a batch, one row a key, into the state: columns in, columns out. Executors."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from penstock.operators.aggregates import AggregateSpec, finish, merge
from penstock.operators.grouping import distinct_keys
from penstock.state.backends.base import OpenState


def run_aggregate(
    specs: Sequence[AggregateSpec], table: pa.Table, state: OpenState, *, key_names: list[str]
) -> list[pa.RecordBatch]:
    """Update the keys of the batch; returns their new values."""
    keys, partials = distinct_keys(table, key_names)
    stored, found = state.read(keys)
    merged = merge(specs, stored, found, partials)
    state.write(keys, merged)
    results = finish(specs, merged)
    columns = [*keys.columns.columns, *results.columns]
    return [pa.RecordBatch.from_arrays(columns, names=[*key_names, *results.schema.names])]
