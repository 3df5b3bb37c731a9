"""Exact counts of distinct values: each value that a key had is a row of a table, and only new ones are counted. Executors.

    rows of a batch --(Spark, JVM)--> distinct values, one row each --look up--> new ones --> table, and how many --> the count

Spark gives the values of all such aggregates among the aggregates of the batch, with a number that says whose they are.

Windows that merge store a set instead, as an array: rows of a table would have to move with their window, while sets can be united. The
price is that a set is one value of the state: it is read and written whole when its window gets rows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from penstock.errors import ConfigError, InternalError
from penstock.operators.aggregate.columns import AggregateColumn, Kind, Partial, aggregate_of, state_schema
from penstock.operators.columns import as_batch
from penstock.operators.grouping import Grouped, Piece
from penstock.operators.state.table_rows import KEY_INDEX, PieceRows, RowIds
from penstock.operators.state.ttl import TimeToLive, TouchTimes
from penstock.state.backends.base import OpenState, Parts, StateLayout, TableLayout, with_stamps
from penstock.state.keys import Flags
from penstock.state.lifetimes import Lifetime
from penstock.state.sizes import in_batches
from penstock.wording import counted

Numbers = npt.NDArray[np.int64]


def set_type(values: Sequence[pa.DataType]) -> pa.DataType:
    """The stored type of a set of values with these columns."""
    if len(values) == 1:
        return pa.list_(values[0])
    fields = [pa.field(name, kind) for name, kind in zip(part_names(len(values)), values, strict=True)]
    return pa.list_(pa.struct(fields))


def part_names(number: int) -> list[str]:
    """The names of the parts of a value with this number of columns."""
    return [f"value_{at}" for at in range(number)]


def united(before: pa.Array, added: pa.Array) -> pa.Array:
    """The union of two sets, row by row, with the values of `before` first. Null is an empty set."""
    owners, values = _members(pa.concat_arrays([before, added]))
    owners %= max(1, len(before))
    kept = _first_of_each(owners, values)
    return _sets(owners[kept], values.take(pa.array(kept)), len(before), before.type)


def set_sizes(sets: pa.Array) -> pa.Array:
    """The number of distinct values in each set. A set that Spark collected may have a value twice."""
    owners, values = _members(sets)
    kept = _first_of_each(owners, values)
    return pa.array(np.bincount(owners[kept], minlength=len(sets)), pa.int64())


def in_order(sets: pa.Array) -> pa.Array:
    """The sets with their values in ascending order, so that equal sets are equal arrays."""
    owners, values = _members(sets)
    table, names = _with_owners(owners, values)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    return _sets(owners, values.take(order), len(sets), sets.type)


def _sets(owners: Numbers, values: pa.Array, number: int, kind: pa.DataType) -> pa.Array:
    """Build `number` sets from values in the order of their sets."""
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owners, minlength=number))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)


def _members(sets: pa.Array) -> tuple[Numbers, pa.Array]:
    """All values of the sets, and for each the position of its set."""
    return pc.list_parent_indices(sets).to_numpy().astype(np.int64), pc.list_flatten(sets)


def _first_of_each(owners: Numbers, values: pa.Array) -> Numbers:
    """The positions of the distinct values of each set, in the order of sets."""
    table, names = _with_owners(owners, values)
    numbered = table.append_column("at", pa.array(np.arange(len(owners))))
    first: Numbers = numbered.group_by(names).aggregate([("at", "min")]).column("at_min").to_numpy()
    return first[np.lexsort((first, owners[first]))]


def _with_owners(owners: Numbers, values: pa.Array) -> tuple[pa.Table, list[str]]:
    """A table of values whose first column is the position of their set."""
    parts = values.flatten() if pa.types.is_struct(values.type) else [values]
    names = ["of", *part_names(len(parts))]
    return pa.table([pa.array(owners), *parts], names=names), names


WHOSE = "__penstock_distinct"
"""What a row stands for: 0 for the aggregates of a key, n for a value of the nth aggregate of distinct values."""

VALUES_BYTES = 64 << 20
"""How many bytes of values are looked up at once."""

_BORN = "__penstock_born"
"""The life of its key to which a value belongs: the generation of the state in which that life began."""
_LIFE = re.compile(r"__(?P<aggregate>.+)_distinct_(?:born|kept)", re.DOTALL)
_TABLE = re.compile(r"__(?P<aggregate>.+)_distinct", re.DOTALL)

Positions = npt.NDArray[np.int64]


def counting_distinct(specs: Sequence[AggregateColumn]) -> list[AggregateColumn]:
    """The aggregates that count distinct values, in order: the first has the number 1."""
    return [spec for spec in specs if spec.distinct]


def with_sets(specs: Sequence[AggregateColumn]) -> tuple[AggregateColumn, ...]:
    """The same aggregates, with distinct values stored as sets instead of tables."""
    return tuple(_with_set(spec) if spec.distinct else spec for spec in specs)


def _with_set(spec: AggregateColumn) -> AggregateColumn:
    kept = Partial(spec.partials[0].name, Kind.COUNT_DISTINCT, set_type(spec.distinct))
    return replace(spec, partials=(kept,), distinct=())


def value_names(spec: AggregateColumn) -> list[str]:
    """The columns of a value. They depend only on their own aggregate, so other aggregates can be added and removed."""
    return [f"__{spec.name}_distinct_{at}" for at in range(len(spec.distinct))]


class AggregateParts(Parts):
    """The name of each column and each table says to which aggregate it belongs."""

    divisible = True

    @override
    def of_column(self, column: str) -> str:
        aggregate = aggregate_of(column)
        return (life_of(column) if aggregate is None else aggregate[0]) or column

    @override
    def of_table(self, table: str) -> str:
        return distinct_aggregate_of(table) or table

    def first_value(self, column: str) -> object | None:
        """A count of a known key is never null."""
        aggregate = aggregate_of(column)
        return 0 if aggregate is not None and aggregate[1] in (Kind.COUNT, Kind.COUNT_DISTINCT) else None

    @override
    def column_words(self, column: str) -> str:
        aggregate = aggregate_of(column)
        return "" if aggregate is None else str(aggregate[1])


AGGREGATES = AggregateParts()


def aggregate_layout(
    specs: Sequence[AggregateColumn], key: pa.Schema, ttl: TimeToLive | None = None
) -> StateLayout:
    """The layout of the state of an operator with these aggregates."""
    distinct = counting_distinct(specs)
    value = pa.schema([*state_schema(specs), *(life_fields(distinct) if ttl is not None else ())])
    mortal = () if ttl is None else (ttl.lifetime(*value.names),)
    for lifetime in mortal:
        if lifetime.stamp in (*key.names, *value.names):
            raise ConfigError(
                f"there is a column {lifetime.stamp!r}, in which Penstock keeps when a key was last touched; rename the column",
                column=lifetime.stamp,
            )
    tables = tuple(_table(spec, key, mortal) for spec in distinct)
    return StateLayout(key, with_stamps(value, mortal), tables, mortal, AGGREGATES)


def _table(spec: AggregateColumn, key: pa.Schema, mortal: Sequence[Lifetime] = ()) -> TableLayout:
    """The values of one aggregate. With a time to live they say of which life of their key they are, see `ValueLives`.

    The time to live is in the name of the stamp: with another one, what is stored lives as long from then on.
    """
    values = [pa.field(name, kind) for name, kind in zip(value_names(spec), spec.distinct, strict=True)]
    identity, name = pa.schema([*key, *values]), distinct_table(spec)
    if not mortal:
        return TableLayout(name, identity, pa.schema([]))
    (of_key,) = mortal
    stamp = f"{of_key.stamp}_of_values_for_{of_key.ttl_us}"
    lifetime = Lifetime((_BORN,), stamp, 2 * of_key.ttl_us, of_key.measure)
    value = with_stamps(pa.schema([(_BORN, pa.int64())]), (lifetime,))
    return TableLayout(name, identity, value, lifetimes=(lifetime,))


def life_fields(distinct: Sequence[AggregateColumn]) -> list[pa.Field]:
    """Columns beside the aggregates of a key with a time to live: its current life, and when its values were last written."""
    return [
        pa.field(f"__{spec.name}_distinct_{what}", pa.int64())
        for spec in distinct
        for what in ("born", "kept")
    ]


def distinct_table(spec: AggregateColumn) -> str:
    """The name of the table with the distinct values of an aggregate."""
    return f"__{spec.name}_distinct"


def distinct_aggregate_of(table: str) -> str | None:
    """The aggregate whose distinct values a table of this name has; None for another table."""
    found = _TABLE.fullmatch(table)
    return None if found is None else found["aggregate"]


def life_of(column: str) -> str | None:
    """The aggregate to which a column of `life_fields` belongs; None for another column."""
    found = _LIFE.fullmatch(column)
    return None if found is None else found["aggregate"]


@dataclass(frozen=True)
class ValueLives:
    """The lives of some keys with a time to live: which they are, when their values were last written, and when they are touched now.

    After it was written, a value lives twice as long as its key does. So it is enough to write all values of a key again when that is
    longer ago than the time to live: a key that is alive has all of them. A value of an earlier life may survive, and does not count.
    """

    born: Positions
    """The generation of the state in which each life began. Not a time: the clock of a job may stand still while event time advances."""
    kept: Positions
    due: Flags
    """The keys whose values must be written again."""
    touched: Positions

    @classmethod
    def of(
        cls, spec: AggregateColumn, piece: Piece, touched: Positions, lifetime: Lifetime, generation: int
    ) -> ValueLives:
        """The lives of the keys of a piece."""
        born, kept = (piece.stored.column(field.name) for field in life_fields([spec]))
        known = piece.found & born.is_valid().to_numpy(zero_copy_only=False)
        written = np.where(known, kept.fill_null(0).to_numpy(zero_copy_only=False), touched)
        # later: by the other clock
        due = known & ((touched - written > lifetime.ttl_us) | (written > touched))
        lives = np.where(known, born.fill_null(0).to_numpy(zero_copy_only=False), generation)
        return cls(lives, np.where(due, touched, written), due, touched)

    @property
    def columns(self) -> list[pa.Array]:
        """The stored columns of the lives."""
        return [pa.array(self.born), pa.array(self.kept)]


def partials_with_counts(
    specs: Sequence[AggregateColumn],
    grouped: Grouped,
    state: OpenState,
    lifetimes: Sequence[Lifetime] = (),
    lives: Sequence[ValueLives] = (),
) -> pa.RecordBatch:
    """Write the new values; returns the aggregates of the batch, one row for each key, with the number of new values."""
    whose = grouped.table.column(WHOSE).to_numpy()
    key_index = np.repeat(np.arange(len(grouped.keys)), np.diff(grouped.starts))
    own = np.flatnonzero(whose == 0)
    if not np.array_equal(key_index[own], np.arange(len(grouped.keys))):
        raise InternalError(
            f"{counted(len(own), 'row')} with aggregates for {counted(len(grouped.keys), 'key')}: there must be one for each"
        )
    partials = grouped.table.filter(pa.array(whose == 0))
    for number, spec in enumerate(counting_distinct(specs), 1):
        mine = whose == number
        table = _table(spec, grouped.keys.columns.schema, lifetimes)
        life = lives[number - 1] if lives else None
        rows = PieceRows(state.table(table.name), table, grouped.keys, touches=_touches(life))
        values = grouped.table.select(value_names(spec)).filter(pa.array(mine))
        counts = _take_in(rows, key_index[mine], values, life)
        partials = partials.append_column(spec.partials[0].name, pa.array(counts))
    (batch,) = partials.combine_chunks().to_batches()
    return batch


def _touches(life: ValueLives | None) -> TouchTimes | None:
    if life is None:
        return None
    by_clock = int(life.touched.max(initial=0))  # by the clock all keys are touched at the same moment
    return TouchTimes(by_clock, lambda: life.touched)


def _take_in(
    rows: PieceRows, key_index: Positions, values: pa.Table, life: ValueLives | None = None
) -> Positions:
    """Write the values that are new; returns how many each key has. A key may have more values than fit into an array."""
    counts = np.zeros(len(rows), dtype=np.int64)
    start = 0
    if life is not None and life.due.any():
        _write_again(rows, life)
    for part in in_batches(values, VALUES_BYTES):
        batch = as_batch(part, rows.sub)
        ids = RowIds.of(key_index[start : start + batch.num_rows], batch)
        start += batch.num_rows
        stored, found = rows.get(ids)
        if life is not None:
            found = found & (
                stored.column(_BORN).fill_null(0).to_numpy(zero_copy_only=False) == life.born[ids.key_index]
            )
        new = ids.take(np.flatnonzero(~found))
        rows.put(new, [] if life is None else [pa.array(life.born[new.key_index])])
        counts += np.bincount(new.key_index, minlength=len(rows))
    rows.write()
    return counts


def _write_again(rows: PieceRows, life: ValueLives) -> None:
    """Write the values of due keys again, without those of earlier lives."""
    for part in rows.rows(life.due).to_batches():
        key_index, born = (part.column(name).to_numpy() for name in (KEY_INDEX, _BORN))
        own = np.flatnonzero(born == life.born[key_index])
        ids = RowIds.of(key_index[own], part.select(rows.sub.names).take(pa.array(own)))
        rows.put(ids, [pa.array(born[own])])
