"""Maps and lists of all keys of a call as columns: what `process_batch` has in place of a `MapState` or `ListState`. Executors."""

from __future__ import annotations

import copy
from abc import ABC
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa

from penstock.errors import BadRecordError
from penstock.lazy_imports import optional_package
from penstock.operators.columns import Positions
from penstock.operators.state.table_rows import PieceRows, RowIds, how_many_before
from penstock.operators.values.array_like import as_array
from penstock.state.handle import GENERATION_SHIFT
from penstock.state.keys import Flags
from penstock.wording import counted

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
KEY_INDEX = "key_index"
"""As user code calls it."""


class BatchColumns:
    """Columns of equal length: `columns["app"]` is an Arrow array, `to_pandas()` and `to_polars()` are a DataFrame."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        rows: int = self._table.num_rows
        return rows

    def __getitem__(self, name: str) -> pa.Array:
        if name not in self._table.column_names:
            raise BadRecordError(
                f"process_batch() asked for the column {name!r}; there are {', '.join(self._table.column_names)}"
            )
        column = self._table.column(name)
        return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self._table.column_names
        return names

    def to_arrow(self) -> pa.Table:
        """All columns as an Arrow table, without copying."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """All columns as a pandas DataFrame. pandas has no null for whole numbers: a column with nulls becomes one of floats."""
        frame: pd.DataFrame = self._table.to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """All columns as a polars DataFrame, mostly without copying; needs the extra `polars`."""
        polars = optional_package("polars", needed_by="to_polars()", extra="polars")
        frame: Any = polars.from_arrow(self._table)
        return frame  # type: ignore[no-any-return]


class BatchTable(ABC):
    """Many rows for each key of the call. `key_index` says whose they are, as `batch.key_index` does: positions in `keys`.

    Calls count in their order, and see what those before them did. It is written when `process_batch` has returned.
    """

    members: ClassVar[str]
    """What it is and what user code may ask of it, for an error message."""
    sub: ClassVar[str]
    """What tells the rows of a key apart, as user code calls it."""

    def __init__(self, name: str, rows: PieceRows, operator: str, generation: int) -> None:  # noqa: ARG002 - lists use it
        self.name = name
        self._rows = rows
        self._operator = operator
        (self._sub,), (self._value,) = rows.sub, rows.value
        self._positions: Positions | None = None
        """Which keys of the piece the call sees; None for all."""
        self._call = "process_batch()"

    def seen_by(self, positions: Positions, call: str) -> Self:
        """This table for a call that sees only some of the keys."""
        seen = copy.copy(self)
        seen._positions, seen._call = positions, call  # noqa: SLF001 - it is one of us
        return seen

    def __len__(self) -> int:
        """The number of keys that the call sees."""
        return len(self._rows) if self._positions is None else len(self._positions)

    def clear(self, mask: Any) -> None:
        """Forget all that the keys have where the mask is true (null counts as false); one value for each of `keys`."""
        self._rows.clear(self._flags(mask, "clear"))

    def rows(self, mask: Any = None) -> BatchColumns:
        """All rows of the call's keys in columns, ordered by `key_index`; with a mask, only those of the keys where it is true.

        The classic mistake: to ask for all of it, where keys have very many rows and a few would do. It has to fit into memory.
        """
        wanted = None if mask is None else self._flags(mask, "rows")
        if wanted is None and self._positions is not None:
            wanted = self._in_piece(np.ones(len(self), dtype=np.bool_))
        found = self._rows.rows(wanted).rename_columns([KEY_INDEX, self.sub, "value"])
        if self._positions is not None:
            own = np.searchsorted(self._positions, found.column(KEY_INDEX).to_numpy())
            found = found.set_column(0, KEY_INDEX, pa.array(own, pa.int64()))
        return BatchColumns(found)

    def _in_piece(self, flags: Flags) -> Flags:
        """Flags of the call's keys as flags of the piece's keys."""
        if self._positions is None:
            return flags
        every = np.zeros(len(self._rows), dtype=np.bool_)
        every[self._positions] = flags
        return every

    def write(self) -> None:
        """Write what was changed; called when `process_batch` has returned."""
        self._rows.write()

    def _ids(self, key_index: Any, subs: Any, call: str) -> RowIds:
        at = self._key_index(key_index, call)
        column = self._column(subs, f"{self.sub}s", self._sub.type, call, len(at))
        return RowIds.of(at, pa.RecordBatch.from_arrays([column], schema=self._rows.sub))

    def _known_ids(self, key_index: Any, subs: Any, call: str) -> RowIds:
        """`_ids` for rows that will be changed: a null identifies no row."""
        ids = self._ids(key_index, subs, call)
        (column,) = ids.subs.columns
        if column.null_count:
            place = int(np.flatnonzero(as_flags(column.is_null()))[0])
            raise BadRecordError(
                f"{self._who(call)}: {self.sub}s[{place}] is null, by which nothing can be found; leave it out",
                operator=self._operator,
                state=self.name,
            )
        return ids

    def _key_index(self, given: Any, call: str) -> Positions:
        numbers = key_positions(
            given, len(self), self._who(call), {"operator": self._operator, "state": self.name}
        )
        return numbers if self._positions is None else self._positions[numbers]

    def _column(self, given: Any, name: str, kind: pa.DataType, call: str, length: int) -> pa.Array:
        column = as_array(given, pa.field(name, kind), f"{self._who(call)} set")
        if len(column) != length:
            raise BadRecordError(
                f"{self._who(call)} set {name!r} to {counted(len(column), 'value')} for {counted(length, 'row')} of key_index; "
                "give one for each",
                operator=self._operator,
                state=self.name,
            )
        return column

    def _flags(self, mask: Any, call: str) -> Flags:
        given = as_array(mask, pa.field("mask", pa.bool_()), f"{self._who(call)} set")
        if len(given) != len(self):
            raise BadRecordError(
                f"{self._who(call)} set 'mask' to {counted(len(given), 'value')} for {counted(len(self), 'key')}; give one value "
                "for each of `keys`, in that order",
                operator=self._operator,
                state=self.name,
            )
        return self._in_piece(as_flags(given.fill_null(fill_value=False)))

    def _who(self, call: str) -> str:
        return f"operator {self._operator}: {self._call} called {call}() of the state {self.name!r}, which"


class BatchMap(BatchTable):
    """The entries of all keys of the call: what `state["by_shop"]` is for a `MapState`."""

    members = "is a map, with get(), contains(), put(), delete(), clear() and rows()"
    sub = "key"

    def get(self, key_index: Any, keys: Any) -> pa.Array:
        """The value of each entry, null where there is none; the key null has none. An entry may be asked for several times."""
        return self._found(key_index, keys, "get")[0]

    def contains(self, key_index: Any, keys: Any) -> pa.BooleanArray:
        """Whether there is such an entry. Only it tells an entry without a value (null) from none."""
        return pa.array(self._found(key_index, keys, "contains")[1])

    def _found(self, key_index: Any, keys: Any, call: str) -> tuple[pa.Array, Flags]:
        values, found = self._rows.get(self._ids(key_index, keys, call))
        return values.column(0), found

    def put(self, key_index: Any, keys: Any, values: Any) -> None:
        """Set entries. Of those that are named twice the last counts."""
        ids = self._known_ids(key_index, keys, "put")
        self._rows.put(ids, [self._column(values, "values", self._value.type, "put", len(ids))])

    def delete(self, key_index: Any, keys: Any) -> None:
        """Forget entries, whether there are such or not."""
        self._rows.delete(self._known_ids(key_index, keys, "delete"))


class BatchList(BatchTable):
    """The elements of all keys of the call: what `state["recent"]` is for a `ListState`."""

    members = "is a list, with append(), delete(), clear() and rows()"
    sub = "position"

    def __init__(self, name: str, rows: PieceRows, operator: str, generation: int) -> None:
        super().__init__(name, rows, operator, generation)
        self._next = np.full(len(rows), generation << GENERATION_SHIFT, dtype=np.int64)
        """For every key the place of what is appended next."""

    def append(self, key_index: Any, values: Any) -> None:
        """Add values at the end of the lists of their keys, in the order given. Reads nothing."""
        at = self._key_index(key_index, "append")
        column = self._column(values, "values", self._value.type, "append", len(at))
        places = pa.array(self._next[at] + how_many_before(at))
        self._next += np.bincount(at, minlength=len(self._next))
        self._rows.put(RowIds.of(at, pa.RecordBatch.from_arrays([places], schema=self._rows.sub)), [column])

    def delete(self, key_index: Any, positions: Any) -> None:
        """Forget elements: `position` in what `rows()` gives says which. What is left keeps its order."""
        self._rows.delete(self._known_ids(key_index, positions, "delete"))


def key_positions(given: Any, keys: int, what: str, facts: Mapping[str, object]) -> Positions:
    """Check the `key_index` of user code: positions in `keys`, which has this length. `what` begins the error message."""
    column = as_array(given, pa.field(KEY_INDEX, pa.int64()), f"{what} set")
    numbers: Positions = column.fill_null(-1).to_numpy(zero_copy_only=False)
    wrong = np.flatnonzero((numbers < 0) | (numbers >= keys))
    if len(wrong):
        raise BadRecordError(
            f"{what}: key_index[{wrong[0]}] is {column[int(wrong[0])].as_py()}, which is no position in `keys`, "
            f"of which there are {keys}; give positions from 0 to {keys - 1}, as batch.key_index has them",
            **facts,
        )
    return numbers


def as_flags(array: pa.Array) -> Flags:
    """A column of booleans without nulls as NumPy has them."""
    flags: Flags = array.to_numpy(zero_copy_only=False)
    return flags
