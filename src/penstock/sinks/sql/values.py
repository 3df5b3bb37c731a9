"""What the sinks for SQL servers share about types of columns. Executors; the types also on the driver."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from penstock.sinks.json_text import check_years


@dataclass(frozen=True)
class SqlType:
    """The type that `CREATE TABLE` would use for a column, and all that can hold its values unchanged."""

    name: str
    fitting: frozenset[str]


def is_bytes(data_type: pa.DataType) -> bool:
    """Tell whether a column holds bytes, of any of Arrow's layouts."""
    types = pa.types
    return bool(
        types.is_binary(data_type)
        or types.is_large_binary(data_type)
        or types.is_fixed_size_binary(data_type)
        or types.is_binary_view(data_type)
    )


def date_texts(column: pa.Array) -> pa.Array:
    """Write dates in ISO 8601."""
    check_years(column.cast(pa.date32()).view(pa.int32()), units_per_day=1)
    return column.cast(pa.string())
