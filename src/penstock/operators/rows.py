"""The rows of one key, as user code sees them: cheap to make, converted only when looked at. Executors."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, overload

import pyarrow as pa


class RowTable:
    """All rows of a task, ordered by key; every `Rows` is a window on it."""

    def __init__(self, columns: pa.Table) -> None:
        self._columns = columns
        self._rows: list[Any] | None = None

    def rows(self) -> list[Any]:
        """Every row as a named tuple; made at the first look, for all keys at once."""
        if self._rows is None:
            make = row_class(tuple(self._columns.column_names))
            self._rows = list(map(make._make, zip(*self._columns.to_pydict().values(), strict=True)))
        return self._rows

    def column(self, name: str, start: int, stop: int) -> list[Any]:
        """A part of one column."""
        values: list[Any] = self._columns.column(name).slice(start, stop - start).to_pylist()
        return values

    def table(self, start: int, stop: int) -> pa.Table:
        """A part of the table, without copying."""
        return self._columns.slice(start, stop - start)


def row_class(names: tuple[str, ...]) -> Any:
    """A named tuple that can also be asked by column name: `row.app`, `row["app"]`, `row[0]`."""
    base: Any = namedtuple("Row", list(names), rename=True)  # type: ignore[misc]  # noqa: PYI024
    position = {name: index for index, name in enumerate(names)}

    class Row(base):
        __slots__ = ()

        def __getitem__(self, item: Any) -> Any:
            return tuple.__getitem__(self, position[item] if isinstance(item, str) else item)

    return Row


class Rows(Sequence[Any]):
    """The rows of one key in one batch."""

    __slots__ = ("_start", "_stop", "_table")

    def __init__(self, table: RowTable, start: int, stop: int) -> None:
        self._table = table
        self._start = start
        self._stop = stop

    def __len__(self) -> int:
        return self._stop - self._start

    def __iter__(self) -> Iterator[Any]:
        return iter(self._table.rows()[self._start : self._stop])

    @overload
    def __getitem__(self, item: int) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: int | slice) -> Any:
        return self._table.rows()[self._start : self._stop][item]

    def column(self, name: str) -> list[Any]:
        """One column of the rows, as a list."""
        return self._table.column(name, self._start, self._stop)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table, without copying."""
        return self._table.table(self._start, self._stop)
