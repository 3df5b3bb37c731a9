"""State with rows of its own, many for a key: what stands in its place while the operator runs. Executors.

What a call changes is noted beside what is stored, key by key, and becomes rows when all calls of the piece are over. Keys with few rows
are read together, the ones that come next at once; of a key with many rows only what is asked for.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.operators.state.cells import Cell, deep_copy
from penstock.operators.state.ttl import TimeToLive, TouchTimes
from penstock.operators.values.encoding import StoredForm, to_array
from penstock.operators.values.python_values import python_values
from penstock.state.backends.base import OneKey, OpenTable, with_stamps
from penstock.state.keys import KeyBatch, order_number, order_numbers

FEW_ROWS = 128
"""A key with more rows is not read as a whole."""
KEYS_AT_ONCE = 2048
"""The number of keys that are read together: what is read ahead is bounded, however many keys a piece has."""


class RowChange(NamedTuple):
    """A row to be written for a key; `gone` when it is to be forgotten instead."""

    sub: Any
    value: Any = None
    gone: bool = False


class Changes:
    """The rows to be written for some keys: the number of rows of each key, and the rows one after the other."""

    __slots__ = ("counts", "gone", "indexes", "subs", "values")

    def __init__(self) -> None:
        self.indexes: list[int] = []
        self.counts: list[int] = []
        self.subs: list[Any] = []
        self.values: list[Any] = []
        self.gone: list[int] = []
        """Which of the rows are to be forgotten instead."""

    def add(self, index: int, changes: Iterable[RowChange]) -> None:
        """Add the changes of one key."""
        before = len(self.subs)
        for sub, value, gone in changes:
            if gone:
                self.gone.append(len(self.subs))
            self.subs.append(sub)
            self.values.append(value)
        self.counted(index, before)

    def counted(self, index: int, before: int) -> None:
        """Assign all rows from this place on to a key."""
        self.indexes.append(index)
        self.counts.append(len(self.subs) - before)


class TableCell(Cell):
    """The rows of the current key in one table, and what this piece changes of them."""

    few_rows: ClassVar[int] = FEW_ROWS
    __slots__ = (
        "_ahead",
        "_end_ahead",
        "_first_ahead",
        "_form",
        "_generation",
        "_keys",
        "_large",
        "_lifetimes",
        "_many",
        "_operator",
        "_renews",
        "_starts",
        "_sub",
        "_table",
        "_touches",
        "_usual",
        "_value",
    )

    def __init__(self, name: str, sub: pa.Field, value: pa.Field, ttl: TimeToLive | None = None) -> None:
        super().__init__(name)
        self._sub, self._value = sub, value
        self._form = StoredForm(value.type)
        self._usual = self._form.usual
        self._lifetimes = () if ttl is None else (ttl.lifetime(name, state=name),)
        self._renews = ttl is not None and ttl.renews
        self._forget()

    def load(
        self,
        table: OpenTable,
        keys: KeyBatch,
        operator: str,
        generation: int,
        touches: TouchTimes | None = None,
    ) -> None:
        """The keys that come next. Nothing is read before it is asked for. `touches` says when what is written is touched."""
        self._touches = touches or TouchTimes()
        self._table, self._keys = table, keys
        self._operator, self._generation = operator, generation
        self.at = 0
        self._forget()

    def _forget(self) -> None:
        self._first_ahead = self._end_ahead = 0
        self._ahead: tuple[list[Any], list[Any]] = ([], [])
        self._starts: list[int] = []
        self._many: list[bool] = []
        self._large: dict[int, OneKey] = {}

    # ── what is stored ─────────────────────────────────────────────────────────────────────────

    def _stored(self) -> Iterator[tuple[Any, Any]] | None:
        """The identifying value and the value of every row of the current key; None if it has many rows."""
        if not self._first_ahead <= self.at < self._end_ahead:
            self._read_ahead()
        place = self.at - self._first_ahead
        if self._many[place]:
            return None
        (subs, values), start, stop = self._ahead, self._starts[place], self._starts[place + 1]
        return zip(subs[start:stop], values[start:stop], strict=True)

    def _read_ahead(self) -> None:
        first, end = self.at, min(self.at + KEYS_AT_ONCE, len(self._keys))
        found = self._table.rows_of(self._keys.slice(first, end), self.few_rows)
        self._ahead = self._subs_and_values(found.rows)
        self._starts, self._many = found.starts.tolist(), found.left_out.tolist()
        self._first_ahead, self._end_ahead = first, first + len(found)

    def _one_key(self) -> OneKey:
        """The current key, which has many rows."""
        one = self._large.get(self.at)
        if one is None:
            one = self._table.one_key(self._keys.slice(self.at, self.at + 1))
            self._large[self.at] = one
        return one

    def _scanned(self) -> Iterator[tuple[Any, Any]]:
        """Every row of the current key, in order, few in memory at a time."""
        few = self._stored()
        if few is not None:
            yield from few
            return
        for part in self._one_key().scan():
            yield from zip(*self._subs_and_values(part), strict=True)

    def _subs_and_values(self, rows: pa.RecordBatch) -> tuple[list[Any], list[Any]]:
        value_at = rows.num_columns - 1 - len(self._lifetimes)
        return python_values(rows.column(value_at - 1)), python_values(rows.column(value_at))

    def _get(self, sub: Any) -> tuple[bool, Any]:
        """Whether there is such a row in a key with many, and its value."""
        try:
            column = self._column([sub], self._sub, "has the key")
        except BadRecordError:  # what cannot be stored is not there, as in a key with few rows
            return False, None
        if column.null_count:
            return False, None
        found = self._one_key().get(column, order_number(column))
        return (False, None) if found is None else (True, python_values(found.column(0))[0])

    # ── what is written ────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def touched(self) -> Iterable[int]:
        """The keys of the piece with changes."""

    @abstractmethod
    def changes(self, index: int) -> Iterable[RowChange]:
        """The rows to write for a key. It does not matter which key is the current one."""

    def collect(self, index: int, into: Changes) -> None:
        """Add the rows to write for a key."""
        into.add(index, self.changes(index))

    def check(self, index: int) -> None:
        """Raise `BadRecordError` if something that was stored for a key does not fit its type."""
        changes = Changes()
        self.collect(index, changes)
        self._encoded(changes)

    def write(self) -> None:
        """Write what was changed; raises `BadRecordError`, with nothing written, for a value that does not fit."""
        changes = Changes()
        for index in sorted(self.touched()):
            self.collect(index, changes)
        if not changes.subs:
            return
        at = _owners(changes)
        keys, column = self._encoded(changes)
        gone = np.zeros(len(keys), dtype=np.bool_)
        gone[changes.gone] = True
        stamps = self._touches.of_rows(self._lifetimes, at, self._table, keys)
        schema = with_stamps(pa.schema([self._value]), self._lifetimes)
        values = pa.RecordBatch.from_arrays([column, *stamps], schema=schema)
        self._table.write(keys, values, gone if changes.gone else None)

    def _encoded(self, changes: Changes) -> tuple[KeyBatch, pa.Array]:
        keys = self._rows(_owners(changes), changes.subs)
        return keys, self._column(changes.values, self._value, "was set to")

    def _rows(self, at: npt.NDArray[np.int64], subs: list[Any]) -> KeyBatch:
        sub = self._column(subs, self._sub, "has the key")
        if sub.null_count:
            raise BadRecordError(
                f"operator {self._operator}: state {self.name!r} has the key None, by which nothing can be found",
                state=self.name,
            )
        keys = self._keys.columns.take(pa.array(at))
        identity = pa.RecordBatch.from_arrays(
            [*keys.columns, sub], schema=pa.schema([*keys.schema, self._sub])
        )
        return KeyBatch(self._keys.sort_keys[at], identity, order_numbers(sub))

    def _column(self, values: list[Any], field: pa.Field, made: str) -> pa.Array:
        column = to_array(values, field, f"operator {self._operator}: state {self.name!r} {made}")
        return pa.concat_arrays(column.chunks) if isinstance(column, pa.ChunkedArray) else column

    def _own_copy(self, value: Any) -> Any:
        """A copy that user code may change."""
        return deep_copy(value)


def _owners(changes: Changes) -> npt.NDArray[np.int64]:
    """The position of the key of each row."""
    return np.repeat(np.array(changes.indexes, dtype=np.int64), changes.counts)
