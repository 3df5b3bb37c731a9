"""The layout of operator state as checkpoint metadata and savepoint manifests record it, and back. Driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from penstock.checkpoint.model import OperatorColumns, StoredLifetime, TableColumns
from penstock.errors import CorruptStateError
from penstock.state.backends.base import VALUES, OnRescale, StateLayout, TableLayout, visible, with_stamps
from penstock.state.ddl import spark_type
from penstock.state.lifetimes import Lifetime, Measure

StoredLifetimes = Mapping[str, StoredLifetime]
"""By column of stamps."""


def columns_of(layout: StateLayout, switched_on_us: Mapping[str, int] | None = None) -> OperatorColumns:
    """The columns of an operator's state, as metadata records them. `switched_on_us`: since when each column of stamps counts."""
    since = switched_on_us or {}
    tables = {
        table.name: TableColumns(
            _described(table.identity),
            _described(table.visible),
            _exactly(table.identity, table.visible),
            table.ordered,
            table.by_time,
            table.on_rescale.value,
        )
        for table in layout.tables
    }
    lifetimes = {
        lifetime.stamp: StoredLifetime(
            table.name,
            lifetime.columns,
            lifetime.ttl_us,
            since.get(lifetime.stamp, 0),
            lifetime.measure.value,
        )
        for table in layout.by_name.values()
        for lifetime in table.lifetimes
    }
    value = visible(layout.value, layout.lifetimes)
    exactly = _exactly(layout.key, value)
    return OperatorColumns(_described(layout.key), _described(value), tables, lifetimes, exactly)


def stored_layout(columns: OperatorColumns) -> StateLayout:
    """The layout of stored state, with the times to live it had then. Does not need the job: readers of state use it."""
    try:
        return _stored_layout(columns)
    except (
        pa.ArrowException,
        OSError,
        ValueError,
    ) as error:  # Arrow raises `OSError` for invalid bytes
        why = f"the columns of state by ({', '.join(columns.key)}) cannot be read: {error}"
        raise CorruptStateError(
            f"{why}; nothing was changed; restore an older checkpoint, or take another copy of the savepoint",
            why=why,
        ) from error


def _stored_layout(columns: OperatorColumns) -> StateLayout:
    key, value = _columns(columns.schema, len(columns.key))
    tables = tuple(
        TableLayout(
            name,
            *_columns(table.schema, len(table.identity)),
            ordered=table.ordered,
            by_time=table.by_time,
            on_rescale=OnRescale(table.on_rescale),
        )
        for name, table in columns.tables.items()
    )
    layout = with_lifetimes(StateLayout(key, value, tables), columns.lifetimes)
    for table in layout.by_name.values():
        for lifetime in table.lifetimes:
            if not {*lifetime.columns} <= {*table.value.names}:
                raise ValueError(
                    f"a time to live is of {lifetime.columns}, the columns are {table.value.names}"
                )
    return layout


def _exactly(identity: pa.Schema, value: pa.Schema) -> bytes:
    data: bytes = pa.schema([*identity, *value]).remove_metadata().serialize().to_pybytes()
    return data


def _columns(schema: bytes, identity: int) -> tuple[pa.Schema, pa.Schema]:
    found = pa.ipc.read_schema(pa.py_buffer(schema))
    _described(found)  # names, also those inside of structs, are decoded only here
    fields = list(found)
    return pa.schema(fields[:identity]), pa.schema(fields[identity:])


def _described(schema: pa.Schema) -> dict[str, str]:
    return {field.name: spark_type(field.type) for field in schema}


def with_lifetimes(layout: StateLayout, stored: StoredLifetimes) -> StateLayout:
    """The layout with the stored times to live instead of its own."""
    values = _of_table(layout.by_name[VALUES], stored)
    tables = tuple(_of_table(table, stored) for table in layout.tables)
    return replace(layout, value=values.value, tables=tables, lifetimes=values.lifetimes)


def _of_table(table: TableLayout, stored: StoredLifetimes) -> TableLayout:
    lifetimes = tuple(
        Lifetime(one.columns, stamp, one.ttl_us, Measure(one.measure))
        for stamp, one in stored.items()
        if one.table == table.name
    )
    return replace(table, value=with_stamps(table.visible, lifetimes), lifetimes=lifetimes)
