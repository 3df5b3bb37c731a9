"""Rows of an input of a join, and pairs of them in the columns of the results. Executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from penstock.errors import InternalError
from penstock.operators.columns import rows_at
from penstock.operators.event_time import Numbers, Timed
from penstock.operators.join.inputs import JoinInput
from penstock.operators.python_values import as_moments
from penstock.operators.window.kinds import WINDOW_END, WINDOW_START
from penstock.state.backends.equality import Flags
from penstock.state.keys import KeyBatch
from penstock.state.sizes import PART_BYTES, Bytes, cut, row_bytes

if TYPE_CHECKING:
    from penstock.operators.join.spec import JoinSpec


@dataclass
class InputRows:
    """Rows ordered by key and moment: where the columns beside the key are to be found, and who has found a partner.

    A row may stand here many times, once for each of its windows: its columns are taken last, and of as many rows as fit.
    """

    timed: Timed
    sizes: Bytes
    """About how many bytes each row takes."""
    matched: Flags
    _table: pa.Table
    """May have more rows, and wider columns."""
    _schema: pa.Schema
    _at: Numbers | None
    """Where in the table each row is; None where the table has these rows and no others."""

    @classmethod
    def of(cls, timed: Timed, columns: Sequence[pa.Array]) -> InputRows:
        """Rows of which none has found a partner yet."""
        schema = pa.schema([pa.field(str(number), column.type) for number, column in enumerate(columns)])
        sizes = row_bytes(columns, np.arange(len(timed), dtype=np.int64))
        return cls(timed, sizes, _nobody(timed), pa.table(list(columns), schema=schema), schema, None)

    @classmethod
    def at_positions(
        cls, timed: Timed, table: pa.Table, schema: pa.Schema, at: Numbers, sizes: Bytes
    ) -> InputRows:
        """Rows of a larger table of which none has found a partner yet, in the columns of this schema."""
        return cls(timed, sizes, _nobody(timed), table, schema, at)

    def __len__(self) -> int:
        return len(self.timed)

    @property
    def columns(self) -> list[pa.Array]:
        """The columns of all rows. Where these are a part of a table this is a copy: use it once."""
        if self._at is None:
            return [column.chunk(0) for column in self._table.columns]
        return list(rows_at(self._table, self._at, self._schema).columns)

    def taken(self, rows: Numbers) -> list[pa.Array]:
        """The columns of the rows with these numbers."""
        at = rows if self._at is None else self._at[rows]
        return list(rows_at(self._table, at, self._schema).columns)


def _nobody(timed: Timed) -> Flags:
    return np.zeros(len(timed), dtype=np.bool_)


@dataclass(frozen=True)
class PickedRows:
    """Rows of an input at these positions, each as often as it comes out."""

    rows: InputRows
    at: Numbers

    def __len__(self) -> int:
        return len(self.at)

    @property
    def key_index(self) -> Numbers:
        """The positions of their keys."""
        return self.rows.timed.key_index[self.at]

    @property
    def moments(self) -> Numbers:
        """Their moments."""
        return self.rows.timed.times[self.at]

    @property
    def sizes(self) -> Bytes:
        """The bytes of each."""
        return self.rows.sizes[self.at]

    def slice(self, start: int, stop: int) -> PickedRows:
        """Some of them."""
        return PickedRows(self.rows, self.at[start:stop])


def in_output_columns(
    spec: JoinSpec,
    keys: KeyBatch,
    left: PickedRows | None,
    right: PickedRows | None,
    *,
    times: Numbers | None = None,
) -> Iterator[pa.RecordBatch]:
    """Rows side by side, or those of one input alone, with nulls for the other; `times` are those of the results, where asked for.

    A wide row that has many partners stands in many results: these are cut before anything is copied.
    """
    known = left if left is not None else right
    if known is None or not len(known):
        return
    sizes = row_bytes(keys.columns.columns, known.key_index)
    for one in (left, right):
        sizes += 0 if one is None else one.sizes
    for start, stop in cut(sizes, PART_BYTES):
        part = (None if one is None else one.slice(start, stop) for one in (left, right))
        yield _side_by_side(spec, keys, *part, times=None if times is None else times[start:stop])


def _side_by_side(
    spec: JoinSpec,
    keys: KeyBatch,
    left: PickedRows | None,
    right: PickedRows | None,
    *,
    times: Numbers | None,
) -> pa.RecordBatch:
    known = left if left is not None else right
    if known is None:
        raise InternalError("a result of a join has a row of neither input")
    owners = keys.columns.take(pa.array(known.key_index))
    columns = dict(zip(spec.left.keys, owners.columns, strict=True))
    columns |= _columns(spec.left, left, len(known))
    columns |= _columns(spec.right, right, len(known))
    output = spec.output
    added: dict[str, Numbers] = {}
    if spec.windows is not None:
        starts = known.moments
        added = {WINDOW_START: starts, WINDOW_END: starts + spec.windows.size_us}
    if spec.at is not None and times is not None:
        added[spec.at] = times
    columns |= {name: as_moments(moments, output.field(name).type) for name, moments in added.items()}
    return pa.RecordBatch.from_arrays([columns[name] for name in output.names], schema=output)


def _columns(given: JoinInput, output: PickedRows | None, rows: int) -> dict[str, pa.Array]:
    if output is None:
        return {field.name: pa.nulls(rows, field.type) for field in given.kept}
    return dict(zip(given.kept.names, output.rows.taken(output.at), strict=True))
