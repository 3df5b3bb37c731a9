"""Whatever user code hands over as a column, as an Arrow array of the declared type, or a clear refusal. Executors.

Values are converted only where nothing is lost and nothing changes its meaning: numbers to numbers, text to text. The number 5 does not
become the text '5'.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.encoding import to_array

_FAMILIES = (
    ("number", (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)),
    ("text", (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
    ("bytes", (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)),
    ("moment", (pa.types.is_date, pa.types.is_timestamp)),
    ("list", (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)),
    ("struct", (pa.types.is_struct,)),
    ("map", (pa.types.is_map,)),
)


def as_array(values: Any, field: pa.Field, what: str) -> pa.Array:
    """The values as an array of the field's type. `what` begins the message when they cannot be, such as 'operator views: ... set'."""
    array = _to_arrow(values, field, what)
    if array.type == field.type:
        return array
    if array.null_count == len(array):  # a library may give any type to nothing
        return pa.nulls(len(array), field.type)
    if _family(array.type) != _family(field.type):
        example = next(value for value in array if value.is_valid).as_py()
        raise BadRecordError(
            f"{what} {field.name!r} to values of type {array.type}, such as {example!r}; it is declared as {field.type}"
        )
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise BadRecordError(
            f"{what} {field.name!r} to values of type {array.type} that do not all fit into {field.type}: {error}"
        ) from error


def as_columns(result: Any) -> dict[str, Any] | None:
    """The columns of a table, DataFrame or dictionary by name; None for anything else."""
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if isinstance(result, pa.Table | pa.RecordBatch):
        return dict(zip(result.schema.names, result.columns, strict=True))
    if isinstance(result, Mapping):
        return dict(result)
    if pandas is not None and isinstance(result, pandas.DataFrame):
        return {name: result.iloc[:, at] for at, name in enumerate(result.columns)}
    if polars is not None and isinstance(result, polars.DataFrame):
        return {series.name: series for series in result.get_columns()}
    return None


def _to_arrow(values: Any, field: pa.Field, what: str) -> pa.Array:
    if isinstance(values, list | tuple):
        return to_array(list(values), field, f"{what} {field.name!r} to")
    try:
        array = _by_kind(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadRecordError(
            f"{what} {field.name!r} to {_short(values)}, which is not a {field.type}: {error}"
        ) from error
    if array is None:
        raise BadRecordError(
            f"{what} {field.name!r} to {_short(values)}; give one value a row, as an Arrow array, a NumPy array, a Series "
            "of pandas or polars, or a list"
        )
    return _one_chunk(array) if isinstance(array, pa.ChunkedArray) else array


def _by_kind(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray | None:
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if polars is not None and isinstance(values, polars.Series):
        return values.to_arrow()
    typed = kind if getattr(values, "dtype", None) == np.dtype(object) else None
    if pandas is not None and isinstance(values, pandas.Series | pandas.Index):
        return pa.array(values, type=typed, from_pandas=True)
    if isinstance(values, np.ndarray):
        return pa.array(values, type=typed)
    return None


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], type=column.type)


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    found: Iterator[str] = (name for name, tests in _FAMILIES if any(test(kind) for test in tests))
    return next(found, str(kind))


def _short(values: Any) -> str:
    text = " ".join(repr(values).split())
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004 - as much as a log line bears
