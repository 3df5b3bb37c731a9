"""Views of stored state: the columns and tables that a user sees, made of stored ones. Pure; driver and executors.

State is stored in tables, and not all that is in them means something to a user: sort numbers, stamps of times to live, sums and counts
that are parts of an average. A view is one state of an operator, out of one table. Specs say how their tables are shown (`Spec.shown`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.operators.aggregate.columns import AggregateColumn
from penstock.operators.aggregate.merge import finish
from penstock.operators.grouping import equal_rows
from penstock.operators.state.timers import MOMENTS
from penstock.operators.values.python_values import as_moments
from penstock.state.backends.base import TableLayout
from penstock.state.keys import SORT_KEY

ROW = ""
"""The name of the view with the row of every key: all its values side by side."""


# ── columns ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Shown(ABC):
    """A column that a user sees, made of stored ones."""

    name: str

    @property
    @abstractmethod
    def type(self) -> pa.DataType:
        """The type of its values."""

    @abstractmethod
    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Its values for stored rows."""

    @property
    def is_named_by_user(self) -> bool:
        """Whether the user has chosen the name."""
        return False

    @property
    def parts(self) -> tuple[pa.Field, ...]:
        """The stored columns that say more than what is shown of them; none where it says all."""
        return ()


@dataclass(frozen=True)
class Plain(Shown):
    """A stored column, perhaps under another name."""

    field: pa.Field

    @property
    @override
    def type(self) -> pa.DataType:
        return self.field.type

    @property
    @override
    def is_named_by_user(self) -> bool:
        return bool(self.name == self.field.name)

    @override
    def of(self, rows: pa.RecordBatch) -> pa.Array:
        return rows.column(self.field.name)


@dataclass(frozen=True)
class TimestampColumn(Shown):
    """A stored number of microseconds as a moment, shifted by `by`."""

    column: str
    moved_us: int = 0

    type = MOMENTS

    @override
    def of(self, rows: pa.RecordBatch) -> pa.Array:
        return as_moments(rows.column(self.column).to_numpy(zero_copy_only=False) + self.moved_us, MOMENTS)


@dataclass(frozen=True)
class Result(Shown):
    """The current result of an aggregate."""

    spec: AggregateColumn

    is_named_by_user = True

    @property
    @override
    def type(self) -> pa.DataType:
        return self.spec.output

    @property
    @override
    def parts(self) -> tuple[pa.Field, ...]:
        """One row and a thousand may have the same average."""
        return tuple(pa.field(one.name, one.type) for one in self.spec.partials)

    @override
    def of(self, rows: pa.RecordBatch) -> pa.Array:
        return finish([self.spec], rows).column(0)


@dataclass(frozen=True)
class Position(Shown):
    """The place of an element in its list, from 0 on. What is stored only grows, and has gaps."""

    key: tuple[str, ...]

    @property
    @override
    def type(self) -> pa.DataType:
        return pa.int64()

    @override
    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """All elements of a list must be there, in their order: see `View.whole`."""
        order, starts = equal_rows([rows.column(SORT_KEY).to_numpy()], rows.select(list(self.key)).columns)
        places = np.empty(len(order), dtype=np.int64)
        places[order] = np.arange(len(order)) - np.repeat(starts[:-1], np.diff(starts))
        return pa.array(places)


# ── a state ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class View:
    """One state of an operator: which table it is in, which columns tell its rows apart for a user, and which are its values."""

    name: str
    kind: str
    table: TableLayout
    key: tuple[str, ...]
    """The stored columns of the key, or of the subtask."""
    identity: tuple[Shown, ...]
    value: tuple[Shown, ...]
    without_null: bool = False
    """A key that has no value is not a row of it."""
    one_copy: bool = False
    """Every subtask has the same rows: those of one are shown."""

    @property
    def columns(self) -> tuple[Shown, ...]:
        """All columns, those of the identity first."""
        return (*self.identity, *self.value)

    @property
    def schema(self) -> pa.Schema:
        """The columns as an Arrow schema."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    def whole(self, stored: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Stored rows of one file, cut so that `shown` can be made of each batch alone: a list is never cut in two."""
        return whole_keys(stored) if any(isinstance(one, Position) for one in self.identity) else stored

    def shown(self, stored: pa.RecordBatch) -> pa.RecordBatch:
        """Stored rows as a user sees them, one for each."""
        return pa.RecordBatch.from_arrays([one.of(stored) for one in self.columns], schema=self.schema)

    def rows(self, stored: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The rows of this state, of those that a file has."""
        for batch in map(self.shown, self.whole(stored)):
            found = (
                batch.filter(batch.column(batch.num_columns - 1).is_valid()) if self.without_null else batch
            )
            if found.num_rows:
                yield found


def whole_keys(stored: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows, ordered by sort key, in batches of which none ends between two rows of one sort key."""
    held: list[pa.RecordBatch] = []
    for batch in stored:
        numbers = batch.column(SORT_KEY).to_numpy()
        last = int(np.searchsorted(numbers, numbers[-1])) if len(numbers) else 0
        if held and len(numbers) and numbers[0] != held[-1].column(SORT_KEY)[-1].as_py():
            yield _together(held)
            held = []
        if last:
            yield _together([*held, batch.slice(0, last)])
            held = []
        held.append(batch.slice(last))
    if held:
        yield _together(held)


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    (whole,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole


# ── how a spec says it ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class StoredTable:
    """A table of stored state, as a spec is asked about it: by the names of its columns, because it does not say who wrote it."""

    layout: TableLayout
    key: tuple[str, ...]
    """The columns of the operator's key."""
    own: tuple[pa.Field, ...]
    """The columns that tell rows of a key apart."""
    value: tuple[Shown, ...]
    """Its values, as far as a user knows them."""

    @property
    def name(self) -> str:
        """The operator's name for the table."""
        return self.layout.name

    @property
    def names(self) -> list[str]:
        """The names of the columns that tell rows of a key apart."""
        return [field.name for field in self.own]


@dataclass(frozen=True)
class TableView:
    """A table as a user sees it."""

    name: str
    kind: str
    """In words; '' for a table that a user does not know, because it only says when something else is due."""
    identity: tuple[Shown, ...] = ()
    """What tells rows of a key apart."""
    value: tuple[Shown, ...] = ()


def plain(fields: Iterable[pa.Field]) -> tuple[Shown, ...]:
    """Columns as they are stored."""
    return tuple(Plain(field.name, field) for field in fields)
