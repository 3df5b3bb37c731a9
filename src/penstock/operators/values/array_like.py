"""What user code gives as a column (a list, a NumPy array, a Series), as an Arrow array of the declared type. Executors.

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
from penstock.operators.columns import one_chunk
from penstock.operators.values.encoding import to_array
from penstock.state.ddl import spark_type
from penstock.wording import counted

CHUNK_BYTES = 1 << 30
"""The bytes that are converted at once: half of what one array of text can hold."""

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
    column = as_column(values, field, what)
    try:
        return one_chunk(column)
    except pa.ArrowException as error:
        raise BadRecordError(
            f"{what} {field.name!r} to {column.nbytes >> 20} MB in {counted(len(column), 'value')}, more than 2 GB at once cannot be kept: "
            f"{error}; let the operator keep less for a key"
        ) from error


def as_column(values: Any, field: pa.Field, what: str) -> pa.ChunkedArray:
    """`as_array`, in as many chunks as it needs."""
    column = _to_arrow(values, field, what)
    if column.type == field.type:
        return column
    if column.null_count == len(column):  # a library may give any type to nothing
        return pa.chunked_array([pa.nulls(len(column), field.type)])
    if _family(column.type) != _family(field.type):
        example = next(value for value in column if value.is_valid).as_py()
        raise BadRecordError(
            f"{what} {field.name!r} to values of type {spark_type(column.type)}, such as {example!r}; it is declared as "
            f"{spark_type(field.type)}"
        )
    try:
        return pa.chunked_array([chunk.cast(field.type) for chunk in _small_chunks(column)], field.type)
    except pa.ArrowException as error:
        raise BadRecordError(
            f"{what} {field.name!r} to values of type {spark_type(column.type)} that do not all fit into {spark_type(field.type)}: {error}"
        ) from error


def _small_chunks(column: pa.ChunkedArray) -> Iterator[pa.Array]:
    """Cut in halves, because other libraries have text of any size in one array, in types whose rows cannot be measured."""
    if pa.types.is_string_view(column.type) or pa.types.is_binary_view(column.type):
        # a part of such an array counts with the text of the whole
        wide = pa.large_string() if pa.types.is_string_view(column.type) else pa.large_binary()
        column = column.cast(wide)
    waiting = list(reversed(column.chunks))
    while waiting:
        chunk = waiting.pop()
        if chunk.nbytes <= CHUNK_BYTES or len(chunk) <= 1:
            # a part lies where it lay; only a copy of it can lie within the first 2 GB
            yield chunk.take(pa.array(np.arange(len(chunk)))) if chunk.offset else chunk
        else:
            middle = len(chunk) // 2
            waiting += [chunk.slice(middle), chunk.slice(0, middle)]


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


def _to_arrow(values: Any, field: pa.Field, what: str) -> pa.ChunkedArray:
    if isinstance(values, list | tuple):
        return _chunked(to_array(list(values), field, f"{what} {field.name!r} to"))
    try:
        array = _by_kind(values, field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise BadRecordError(
            f"{what} {field.name!r} to {_short(values)}, which is not of type {spark_type(field.type)}: {error}"
        ) from error
    if array is None:
        raise BadRecordError(
            f"{what} {field.name!r} to {_short(values)}; give one value a row, as an Arrow array, a NumPy array, a Series "
            "of pandas or polars, or a list"
        )
    return _chunked(array)


def _by_kind(values: Any, kind: pa.DataType) -> pa.Array | pa.ChunkedArray | None:
    """Arrow would share the memory of NumPy and pandas, which user code may go on to change."""
    pandas, polars = sys.modules.get("pandas"), sys.modules.get("polars")
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if polars is not None and isinstance(values, polars.Series):
        return values.to_arrow()
    typed = kind if getattr(values, "dtype", None) == np.dtype(object) else None
    if pandas is not None and isinstance(values, pandas.Series | pandas.Index):
        return pa.array(values.copy(), type=typed, from_pandas=True)
    if isinstance(values, np.ndarray):
        return pa.array(values.copy(), type=typed)
    return None


def _chunked(column: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _family(kind: pa.DataType) -> str:
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    found: Iterator[str] = (name for name, tests in _FAMILIES if any(test(kind) for test in tests))
    return next(found, str(kind))


def _short(values: Any) -> str:
    text = " ".join(repr(values).split())
    return text if len(text) <= 200 else f"{text[:200]}..."  # noqa: PLR2004 - as much as a log line bears
