"""Columns of strings that hold too much for Arrow's 32-bit offsets: widened to be put in order, narrowed piece by piece. Executors."""

from __future__ import annotations

import pyarrow as pa

NARROW_BYTES = (1 << 31) - 1
"""The most that one array of strings or bytes can hold."""

_WIDE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_NARROW = {wide: narrow for narrow, wide in _WIDE.items()}


def widened(table: pa.Table) -> pa.Table:
    """The table with 64-bit offsets wherever a column would not fit into one array."""
    for index, field in enumerate(table.schema):
        if field.type in _WIDE and table.column(index).nbytes > NARROW_BYTES:
            table = table.set_column(index, field.name, table.column(index).cast(_WIDE[field.type]))
    return table


def narrowed(table: pa.Table) -> pa.Table:
    """The table with its usual types again; a column that is still too large (one key with gigabytes) stays as it is."""
    for index, field in enumerate(table.schema):
        if field.type in _NARROW and table.column(index).nbytes <= NARROW_BYTES:
            table = table.set_column(index, field.name, table.column(index).cast(_NARROW[field.type]))
    return table
