"""One input of a join: its columns and tables, its rows as they arrive, and its rows in results. Driver (columns) and executors.

A row has a moment: its event time, or the start of its window. In a join without bounds the moment is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from typing_extensions import override

from penstock.errors import InternalError
from penstock.operators.base import Spec
from penstock.operators.columns import rows_at
from penstock.operators.event_time import TimeColumn, Timed
from penstock.operators.grouping import Grouped, group_rows
from penstock.operators.inputs import RightInput, TaskRows
from penstock.operators.values.python_values import as_moments
from penstock.operators.values.row_order import Numbers
from penstock.state.backends.base import TableLayout
from penstock.state.keys import SORT_KEY, Flags, KeyBatch
from penstock.state.lifetimes import FAR_AWAY_US, LONG_AGO_US, Lifetime, Measure, stamp_name
from penstock.state.sizes import PART_BYTES, Bytes, cut, row_bytes, table_row_bytes

if TYPE_CHECKING:
    from penstock.operators.join.spec import JoinSpec


PLACE = pa.field("__penstock_place", pa.int64())
"""Distinguishes the rows of a key: a number that no other row of the input ever has."""
MATCHED = pa.field("__penstock_matched", pa.bool_())
"""Whether a stored row has found a partner."""
ROW = "__penstock_row"
"""The number of a row in the batch: left rows come first, then right rows."""

OneInput = tuple[pa.Table, tuple[str, ...]]
"""Rows with their sort keys, and their key columns."""


# ── columns and tables ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class InputColumns:
    """The columns of an input in their order, its key columns, and the column with its event time (None in a join without bounds)."""

    columns: pa.Schema
    keys: tuple[str, ...]
    time: TimeColumn | None

    @property
    def kept(self) -> pa.Schema:
        """The columns that are not part of the key."""
        return pa.schema([field for field in self.columns if field.name not in self.keys])


@dataclass(frozen=True)
class JoinInput(InputColumns):
    """One of the two inputs of a join, and the tables in which its rows are stored."""

    name: str
    ends_us: int | None
    """A row can match until the watermark is this far past its moment; None for ever."""
    outer: bool
    """Whether a row without a partner is a result."""
    kind: str = ""
    """Part of the names of its tables, because a moment means something else in a join of another kind, or with other windows."""
    bounds: str = ""
    """Part of the name of the waiting table, because its rows cannot be found with other bounds. Other tables allow other bounds."""

    @property
    def rows(self) -> str:
        """The table with its rows, by key and then by moment."""
        return f"rows of the {self.name} input{self.kind}"

    @property
    def waiting(self) -> str:
        """The table with the rows that had no partner at the end of their batch, by moment."""
        return f"{self.name} without a partner{self.kind}{self.bounds}"

    @property
    def stamp(self) -> str:
        """The column with the moment of a stored row."""
        return stamp_name(self.name, Measure.WATERMARK)

    @property
    def stored(self) -> pa.Schema:
        """The stored columns of a row after its identity."""
        matched = [MATCHED] if self.outer else []
        return pa.schema([*self.kept, *matched, (self.stamp, pa.int64())])

    def cannot_match_from(self, watermark_us: int) -> int:
        """The latest moment whose rows cannot match any more at this watermark."""
        if self.ends_us is None or watermark_us <= LONG_AGO_US:
            return LONG_AGO_US
        return FAR_AWAY_US if watermark_us >= FAR_AWAY_US else watermark_us - self.ends_us

    def layouts(self, key: pa.Schema) -> list[TableLayout]:
        """The layouts of its tables."""
        identity = pa.schema([*key, PLACE])
        value = self.stored
        if self.ends_us is None:
            return [TableLayout(self.rows, identity, value)]
        ttl_us = max(self.ends_us, 1)
        columns = tuple(value.names[:-1])
        tables = [
            TableLayout(
                self.rows,
                identity,
                value,
                lifetimes=(Lifetime(columns, self.stamp, ttl_us, Measure.WATERMARK),),
            )
        ]
        if self.outer:
            lifetime = Lifetime((), f"{self.stamp}_waiting", ttl_us, Measure.WATERMARK)
            value = pa.schema([lifetime.stamp_field])
            tables.append(TableLayout(self.waiting, identity, value, by_time=True, lifetimes=(lifetime,)))
        return tables


@dataclass(frozen=True)
class TwoInputSpec(Spec):
    """A spec of an operator that puts rows of two inputs side by side."""

    left: InputColumns
    right: InputColumns

    @property
    def key(self) -> pa.Schema:
        """The key as it is stored and emitted: with the names of the left input."""
        return pa.schema([self.left.columns.field(name) for name in self.left.keys])

    @property
    def output(self) -> pa.Schema:
        """The columns of the left input, then those of the right one without its key, then the added ones."""
        return pa.schema([*self.left.columns, *self.right.kept, *self.added])

    @property
    def added(self) -> list[pa.Field]:
        """The columns of neither input."""
        return []

    @property
    @override
    def second_input(self) -> RightInput | None:
        return RightInput(tuple(self.right.columns.names), self.right.keys)


# ── rows as they arrive ────────────────────────────────────────────────────────────────────────────


def both(rows: TaskRows) -> tuple[pa.Table, pa.Table]:
    """The rows of the left and of the right input."""
    if rows.right is None:
        raise InternalError("an operator with two inputs was given one")
    return rows.own, rows.right


@dataclass(frozen=True)
class Arriving:
    """Rows with their moments. In a join by window, row i has the moments from `starts[i]` up to `starts[i + 1]`, one for each window.

    So the columns of a row are here once, however many windows it is in.
    """

    rows: pa.Table
    starts: Numbers
    moments: Numbers
    late: pa.Table

    @classmethod
    def one_moment_each(cls, rows: pa.Table, moments: Numbers, late: pa.Table) -> Arriving:
        """Rows of a join without windows."""
        return cls(rows, np.arange(rows.num_rows + 1), moments, late)

    @property
    def counts(self) -> Numbers:
        """How many moments each row has."""
        return np.diff(self.starts)

    @cached_property
    def sizes(self) -> Bytes:
        """The bytes of each row, counted once however many windows it is in."""
        return table_row_bytes(self.rows)

    def with_moments(self, at: Numbers) -> tuple[Numbers, Numbers]:
        """All moments of the rows at these positions: the position in `at`, and the moment."""
        counts = self.counts[at]
        which = np.repeat(np.arange(len(at)), counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        return which, self.moments[self.starts[at][which] + within]

    def parted_by_key(self, keys: tuple[str, ...]) -> tuple[Arriving, Arriving]:
        """The rows with a key, and the rows without one."""
        without = without_key(self.rows, keys)
        if not without.any():
            return self, self._where(without)
        return self._where(~without), self._where(without)

    def _where(self, flags: Flags) -> Arriving:
        counts = self.counts
        starts = np.concatenate(([0], np.cumsum(counts[flags])))
        return Arriving(
            self.rows.filter(pa.array(flags)), starts, self.moments[np.repeat(flags, counts)], self.late
        )


def without_key(rows: pa.Table, keys: tuple[str, ...]) -> Flags:
    """Which rows have null in a key column."""
    flags = np.zeros(rows.num_rows, dtype=np.bool_)
    for name in keys:
        column = rows.column(name)
        if column.null_count:
            flags |= column.is_null().to_numpy()
    return flags


def parted_by_key(rows: pa.Table, keys: tuple[str, ...]) -> tuple[pa.Table, pa.Table]:
    """The rows with a key, and the rows without one."""
    without = without_key(rows, keys)
    if not without.any():
        return rows, rows.slice(0, 0)
    return rows.filter(pa.array(~without)), rows.filter(pa.array(without))


def grouped_inputs(key: pa.Schema, left: OneInput, right: OneInput) -> Grouped:
    """Group the numbers of rows by key, in the order of arrival. Only keys are sorted, not whole rows."""
    rows = pa.concat_tables(
        [
            table.select([SORT_KEY, *keys]).rename_columns([SORT_KEY, *key.names])
            for table, keys in (left, right)
        ]
    ).cast(pa.schema([(SORT_KEY, pa.int64()), *key]))
    numbers = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    return group_rows(rows.append_column(ROW, numbers), key.names)


@dataclass
class InputRows:
    """Rows ordered by key and moment: where their columns are, and which of them have a partner.

    A row may be here many times, once for each of its windows. Its columns are copied last, for as many rows as fit into memory.
    """

    timed: Timed
    sizes: Bytes
    """About how many bytes each row takes."""
    matched: Flags
    _table: pa.Table
    """The table with the columns; it may have more rows, and wider columns."""
    _schema: pa.Schema
    _at: Numbers | None
    """The position of each row in the table; None where the table has exactly these rows."""

    @classmethod
    def of(cls, timed: Timed, columns: Sequence[pa.Array]) -> InputRows:
        """Rows that have no partner yet."""
        schema = pa.schema([pa.field(str(number), column.type) for number, column in enumerate(columns)])
        sizes = row_bytes(columns, np.arange(len(timed), dtype=np.int64))
        return cls(timed, sizes, _nobody(timed), pa.table(list(columns), schema=schema), schema, None)

    @classmethod
    def at_positions(
        cls, timed: Timed, table: pa.Table, schema: pa.Schema, at: Numbers, sizes: Bytes
    ) -> InputRows:
        """Rows of a larger table that have no partner yet, with the columns of this schema."""
        return cls(timed, sizes, _nobody(timed), table, schema, at)

    def __len__(self) -> int:
        return len(self.timed)

    @property
    def columns(self) -> list[pa.Array]:
        """The columns of all rows. Rows that are part of a larger table are copied: call it once."""
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
    """Rows of an input at these positions, once for each result that they are part of."""

    rows: InputRows
    at: Numbers

    def __len__(self) -> int:
        return len(self.at)

    @property
    def key_index(self) -> Numbers:
        """The positions of the keys of the rows."""
        return self.rows.timed.key_index[self.at]

    @property
    def moments(self) -> Numbers:
        """The moments of the picked rows."""
        return self.rows.timed.times[self.at]

    @property
    def sizes(self) -> Bytes:
        """The size in bytes of each row."""
        return self.rows.sizes[self.at]

    def slice(self, start: int, stop: int) -> PickedRows:
        """The picked rows from `start` up to `stop`."""
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
    added = zip(spec.added, spec.added_moments(known.moments, times), strict=True)
    columns |= {field.name: as_moments(moments, field.type) for field, moments in added}
    return pa.RecordBatch.from_arrays([columns[name] for name in output.names], schema=output)


def _columns(given: JoinInput, output: PickedRows | None, rows: int) -> dict[str, pa.Array]:
    if output is None:
        return {field.name: pa.nulls(rows, field.type) for field in given.kept}
    return dict(zip(given.kept.names, output.rows.taken(output.at), strict=True))
