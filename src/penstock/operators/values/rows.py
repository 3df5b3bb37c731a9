"""The rows of one key, as user code sees them: cheap to make, converted only when looked at. Executors.

A batch has many keys with few rows each, and user code looks at few of the columns. So a row is nothing but its position, and a column
becomes Python objects once, for all keys, when one of its values is asked for first.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, overload

import pyarrow as pa
from typing_extensions import override

from penstock.errors import InternalError
from penstock.operators.values.python_values import readable


class UnknownColumnError(KeyError):
    """User code asked for a column that does not exist."""

    def __init__(self, name: str, there_are: Sequence[str]) -> None:
        super().__init__(name)
        self.name = name
        self.there_are = tuple(there_are)

    def __str__(self) -> str:
        return f"there is no column {self.name!r}"


class CameAs(NamedTuple):
    """Rows of one input, and its key columns where they are others than the operator's."""

    rows: pa.Table
    keys: Sequence[str] | None


class RowTable:
    """All rows of a task, ordered by key; every `Rows` is a window on it, and every `Row` a line of it."""

    def __init__(self, columns: pa.Table, keys: Sequence[str] | None = None) -> None:
        self._columns = columns
        self._keys = keys
        """Its key columns, where they are others than the operator's."""
        self._values: dict[str, list[Any]] = {}
        self.row = _row_class(self, tuple(columns.column_names))

    def values(self, name: str) -> list[Any]:
        """A whole column as Python objects; made at the first look, for all keys at once."""
        values = self._values.get(name)
        if values is None:
            self._check(name)
            values = self._values[name] = readable(self._columns.column(name), name)
        return values

    def _check(self, name: str) -> None:
        if name not in self._columns.column_names:
            raise UnknownColumnError(name, self._columns.column_names)

    def table(self, start: int, stop: int) -> pa.Table:
        """A part of the table, without copying."""
        return self._columns.slice(start, stop - start)

    def of_inputs(self, start: int, stop: int) -> tuple[tuple[RowTable, int, int], tuple[RowTable, int, int]]:
        """The places of the left and of the right input's rows among these, for an operator with two inputs."""
        raise InternalError(f"the rows {start} to {stop} are of one input")

    def as_they_came(self, start: int, stop: int) -> Iterator[CameAs]:
        """A part of the table as the rows came to the operator, each input by itself."""
        yield CameAs(self.table(start, stop), self._keys)


class Row:
    """One row. It acts as the named tuple of its values: `row.app`, `row["app"]`, `row[0]`, `app, user = row`."""

    __slots__ = ("_at",)
    _table: ClassVar[RowTable]
    _names: ClassVar[tuple[str, ...]]
    _fields: ClassVar[tuple[str, ...]]

    def __init__(self, at: int) -> None:
        self._at = at

    def _is_in(self, table: RowTable, start: int, stop: int) -> bool:
        """Whether it is one of these rows."""
        return self._table is table and start <= self._at < stop

    def _as_it_came(self) -> CameAs:
        """The row as it came to the operator."""
        return next(self._table.as_they_came(self._at, self._at + 1))

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, str):
            return self._table.values(item)[self._at]
        if isinstance(item, slice):
            return tuple(self)[item]
        return self._table.values(self._names[item])[self._at]

    def __iter__(self) -> Iterator[Any]:
        at = self._at
        return iter([self._table.values(name)[at] for name in self._names])

    def __len__(self) -> int:
        return len(self._names)

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Row | tuple) else NotImplemented

    def __lt__(self, other: Any) -> bool:
        return tuple(self) < tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __add__(self, other: Any) -> tuple[Any, ...]:
        return (*self, *other)

    def __radd__(self, other: Any) -> tuple[Any, ...]:
        return (*other, *self)

    def __repr__(self) -> str:
        return repr(self._plain())

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)

    def _asdict(self) -> dict[str, Any]:
        """The values of the row by column name."""
        return dict(zip(self._fields, self, strict=True))

    def _replace(self, **values: Any) -> Any:
        """A named tuple with some values replaced."""
        return self._plain()._replace(**values)

    def _plain(self) -> Any:
        return _named_tuple(self._names)(*self)


def _row_class(table: RowTable, names: tuple[str, ...]) -> type[Row]:
    """A class of rows with an attribute for every column."""
    fields = _named_tuple(names)._fields
    kind = type("Row", (Row,), {"__slots__": (), "_table": table, "_names": names, "_fields": fields})
    for field, name in zip(fields, names, strict=True):
        setattr(kind, field, property(_first_look(kind, field, table, name)))
    return kind


def _first_look(kind: type[Row], field: str, table: RowTable, name: str) -> Any:
    """A getter that converts the column and puts a faster getter in its own place."""

    def first(row: Row) -> Any:
        values = table.values(name)
        setattr(kind, field, property(lambda row: values[row._at]))  # noqa: SLF001 - this is a method of Row
        return values[row._at]  # noqa: SLF001 - so is this

    return first


def _named_tuple(names: tuple[str, ...]) -> Any:
    return namedtuple("Row", list(names), rename=True)  # noqa: PYI024 - names are known at run time


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
        return map(self._table.row, range(self._start, self._stop))

    @overload
    def __getitem__(self, item: int) -> Any: ...
    @overload
    def __getitem__(self, item: slice) -> list[Any]: ...
    def __getitem__(self, item: int | slice) -> Any:
        at = range(self._start, self._stop)[item]
        return list(map(self._table.row, at)) if isinstance(at, range) else self._table.row(at)

    def column(self, name: str) -> list[Any]:
        """One column of the rows, as a list."""
        return self._table.values(name)[self._start : self._stop]

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table, without copying."""
        return self._table.table(self._start, self._stop)

    def holds(self, row: object) -> bool:
        """Whether it is one of these."""
        return isinstance(row, Row) and row._is_in(self._table, self._start, self._stop)  # noqa: SLF001 - not to be taken for a column

    def of_inputs(self) -> tuple[Rows, Rows]:
        """The rows of each input, for an operator with two inputs."""
        left, right = self._table.of_inputs(self._start, self._stop)
        return Rows(*left), Rows(*right)


class WatchedRows(Rows):
    """Rows that note which of them is being read, while user code iterates."""

    __slots__ = ("_inputs", "at")

    def __init__(self, table: RowTable, start: int, stop: int) -> None:
        super().__init__(table, start, stop)
        self.at: int | None = None
        """Its position among the rows; None before the first and after the last."""
        self._inputs: tuple[WatchedRows, WatchedRows] | None = None

    @override
    def of_inputs(self) -> tuple[Rows, Rows]:
        left, right = self._table.of_inputs(self._start, self._stop)
        self._inputs = WatchedRows(*left), WatchedRows(*right)
        return self._inputs

    @override
    def holds(self, row: object) -> bool:
        return super().holds(row) or any(rows.holds(row) for rows in self._inputs or ())

    @property
    def at_fault(self) -> int | None:
        """The position of the row that is being looked at, in whichever input it is."""
        if self._inputs is None:
            return self.at
        left, right = self._inputs
        if right.at is not None:
            return len(left) + right.at
        return left.at

    def __iter__(self) -> Iterator[Any]:
        row, start = self._table.row, self._start
        for at in range(start, self._stop):
            self.at = at - start
            yield row(at)
        self.at = None
