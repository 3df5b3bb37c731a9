"""Distinct values as a partial aggregate: the set of them, as an array. Executors.

For windows that grow together. What lies in a table under a window would have to move with it; sets unite. The price is that a set is one
value of the state: it is read and written whole when its window gets rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]


def set_type(values: Sequence[pa.DataType]) -> pa.DataType:
    """That of a set of values with these columns."""
    if len(values) == 1:
        return pa.list_(values[0])
    fields = [pa.field(name, kind) for name, kind in zip(part_names(len(values)), values, strict=True)]
    return pa.list_(pa.struct(fields))


def part_names(number: int) -> list[str]:
    """The parts of a value that has so many columns."""
    return [f"value_{at}" for at in range(number)]


def united(before: pa.Array, added: pa.Array) -> pa.Array:
    """Row by row the values that are in either set, those of `before` first; null is a set without values."""
    owners, values = _members(pa.concat_arrays([before, added]))
    owners %= max(1, len(before))
    kept = _first_of_each(owners, values)
    return _sets(owners[kept], values.take(pa.array(kept)), len(before), before.type)


def set_sizes(sets: pa.Array) -> pa.Array:
    """How many values each has. Those that Spark collected are counted by their values, not by their places."""
    owners, values = _members(sets)
    kept = _first_of_each(owners, values)
    return pa.array(np.bincount(owners[kept], minlength=len(sets)), pa.int64())


def in_order(sets: pa.Array) -> pa.Array:
    """The sets with their values in ascending order: those with the same values are equal arrays."""
    owners, values = _members(sets)
    table, names = _table(owners, values)
    order = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in names])
    return _sets(owners, values.take(order), len(sets), sets.type)


def _sets(owners: Numbers, values: pa.Array, number: int, kind: pa.DataType) -> pa.Array:
    """So many sets, of values in the order of their sets."""
    offsets = np.concatenate(([0], np.cumsum(np.bincount(owners, minlength=number))))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, type=kind)


def _members(sets: pa.Array) -> tuple[Numbers, pa.Array]:
    """All values, and for each the position of its set."""
    return pc.list_parent_indices(sets).to_numpy().astype(np.int64), pc.list_flatten(sets)


def _first_of_each(owners: Numbers, values: pa.Array) -> Numbers:
    """The positions of the values of each set, in the order of sets, each value once."""
    table, names = _table(owners, values)
    numbered = table.append_column("at", pa.array(np.arange(len(owners))))
    first: Numbers = numbered.group_by(names).aggregate([("at", "min")]).column("at_min").to_numpy()
    return first[np.lexsort((first, owners[first]))]


def _table(owners: Numbers, values: pa.Array) -> tuple[pa.Table, list[str]]:
    """Values with the positions of their sets, which are the first column."""
    parts = values.flatten() if pa.types.is_struct(values.type) else [values]
    names = ["of", *part_names(len(parts))]
    return pa.table([pa.array(owners), *parts], names=names), names
