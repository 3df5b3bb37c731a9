"""A column of which some values cannot become Python objects: only whoever looks at one of them is refused. Executors."""

from __future__ import annotations

from typing import Any, SupportsIndex, overload

import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.python_values import python_values

UNREADABLE = (ValueError, OverflowError, pa.ArrowException)


class Unreadable:
    """Stands in the place of a value."""

    __slots__ = ("_column", "_why")

    def __init__(self, column: str, why: Exception) -> None:
        self._column = column
        self._why = why

    def error(self) -> BadRecordError:
        """What is said to whoever looks."""
        return BadRecordError(
            f"column {self._column!r} holds a value that Python cannot read: {self._why}. Filter such rows with is_valid_utf8() or by "
            "their range, or repair them, before key_by",
            column=self._column,
        )


class CheckedValues(list[Any]):
    """Values that are looked at one by one or in slices; an `Unreadable` among them raises."""

    @overload
    def __getitem__(self, item: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: Any) -> Any:
        found = super().__getitem__(item)
        for one in found if isinstance(item, slice) else (found,):
            if type(one) is Unreadable:
                raise one.error()
        return found


def readable(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """The values as Python objects; where some have none, in a list that refuses only those."""
    try:
        return python_values(column)
    except UNREADABLE:
        return CheckedValues(_marked(column, name))


def _marked(column: pa.Array | pa.ChunkedArray, name: str) -> list[Any]:
    """Halve the column, until those that cannot be read stand alone."""
    try:
        return python_values(column)
    except UNREADABLE as error:
        if len(column) == 1:
            return [Unreadable(name, _in_python(column[0]) or error)]
    middle = len(column) // 2
    return _marked(column.slice(0, middle), name) + _marked(column.slice(middle), name)


def _in_python(scalar: pa.Scalar) -> Exception | None:
    """What Python itself says of the value, which is clearer than what Arrow says."""
    try:
        scalar.as_py()
    except UNREADABLE as error:
        return error
    return None
