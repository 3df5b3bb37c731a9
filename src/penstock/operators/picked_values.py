"""Aggregates that pick the value of one row: `max_by`, `min_by`, `first` and `last`. Executors.

What is kept is a struct: the `value`, the `by` of `max_by` and `min_by`, and in windows of time the event time of the row, `at`. There rows
are ordered by their event time, elsewhere by the order in which they come. Null stands for "no row yet": the value of a row may be null.
Of rows that are equal in `by` the last one counts, as in Spark where a single task reads all rows in order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.operators.value_order import compare

VALUE, BY, AT = "value", "by", "at"


def picked_type(value: pa.DataType, by: pa.DataType | None, *, timed: bool) -> pa.DataType:
    """What is kept of an aggregate; `timed`: whether rows have a place of their own."""
    by_field = [] if by is None else [pa.field(BY, by)]
    return pa.struct([pa.field(VALUE, value), *by_field, *([pa.field(AT, pa.int64())] if timed else [])])


def value_of(picked: pa.Array) -> pa.Array:
    """The values alone."""
    return pc.struct_field(picked, VALUE)


def chosen(before: pa.Array, added: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """Of each row that of `before` where `keep` is true, else that of `added`; where one of them is null the other one."""
    has_before, has_added = (side.is_valid().to_numpy(zero_copy_only=False) for side in (before, added))
    keep = np.where(has_before & has_added, keep, has_before)
    if keep.all():
        return before
    at = np.arange(len(before))
    return pa.concat_arrays([before, added]).take(pa.array(np.where(keep, at, at + len(before))))


def picked_by(before: pa.Array, added: pa.Array, *, largest: bool) -> pa.Array:
    """The one with the larger, or smaller, `by`; of equals the later one."""
    by = compare(pc.struct_field(before, BY), pc.struct_field(added, BY))
    better = by > 0 if largest else by < 0
    return chosen(before, added, better | ((by == 0) & (_places(before, added) > 0)))


def picked_first(before: pa.Array, added: pa.Array) -> pa.Array:
    """The earlier one; what was there before, where rows have no place of their own, or the same."""
    return chosen(before, added, _places(before, added) <= 0)


def picked_last(before: pa.Array, added: pa.Array) -> pa.Array:
    """The later one; what is added, where rows have no place of their own, or the same."""
    return chosen(before, added, _places(before, added) > 0)


def _places(before: pa.Array, added: pa.Array) -> npt.NDArray[np.int8]:
    if before.type.get_field_index(AT) < 0:
        return np.zeros(len(before), dtype=np.int8)
    return compare(pc.struct_field(before, AT), pc.struct_field(added, AT))
