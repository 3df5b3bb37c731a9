"""The order of rows, as a user writes it, and the comparison of values as Spark does it. Driver and executors.

Null comes first and NaN last, -0.0 is 0.0, and texts and bytes are compared byte by byte. A struct is compared field by field, an array
element by element; of two arrays of which one begins with all of the other, the longer one is larger.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError
from penstock.operators.columns import one_chunk
from penstock.state.keys import is_own_order, order_numbers

Numbers = npt.NDArray[np.int64]
OrderBy = str | tuple[str, ...] | list[str]
"""What a user may write for an order."""
_ORDER = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`]+))(?:\s+(asc|desc))?\s*", re.IGNORECASE)
Signs = npt.NDArray[np.int8]
"""-1 where the left value is smaller, 1 where it is larger, 0 where both are equal."""


@dataclass(frozen=True)
class Order:
    """A column that puts the rows of a key in order."""

    column: str
    descending: bool = False

    def __str__(self) -> str:
        return f"{self.column} desc" if self.descending else self.column


def parse_order(given: object, argument: str = "order_by") -> Order:
    """Read 'column', 'column asc' or 'column desc'; a name with spaces stands in backticks."""
    match = _ORDER.fullmatch(given) if isinstance(given, str) else None
    if match is None:
        raise ConfigError(
            f"{argument}={given!r}: it takes the name of a column, alone or followed by asc or desc, such as 'at' or 'at desc'; "
            "a name with spaces stands in backticks",
            value=given,
        )
    quoted, plain, direction = match.groups()
    column = quoted.replace("``", "`") if quoted else plain
    return Order(column, descending=(direction or "asc").lower() == "desc")


def parse_orders(given: str | Sequence[str], argument: str) -> tuple[Order, ...]:
    """Read one order or several, as `parse_order` does."""
    if not isinstance(given, str | tuple | list):
        raise ConfigError(
            f"{argument}={given!r}: it takes names of columns, such as 'at desc', alone or in a list",
            value=given,
        )
    return tuple(parse_order(one, argument) for one in ((given,) if isinstance(given, str) else given))


def order_keys(table: pa.Table, orders: Sequence[Order]) -> list[Numbers]:
    """Numbers that compare as the rows do in this order, the first ones first. Nulls come first, descending last; NaN is the greatest.

    They are comparable among these rows only.
    """
    return [numbers for order in orders for numbers in _keys(table.column(order.column), order)]


def _keys(column: pa.ChunkedArray, order: Order) -> list[Numbers]:
    values = one_chunk(column)
    if not values.null_count:
        numbers = _numbers(values)
        return [~numbers if order.descending else numbers]
    known = values.is_valid().to_numpy(zero_copy_only=False)
    numbers = np.zeros(len(values), dtype=np.int64)
    numbers[known] = _numbers(values.filter(pa.array(known)))
    if order.descending:
        return [(~known).astype(np.int64), ~numbers]
    return [known.astype(np.int64), numbers]


def _numbers(values: pa.Array) -> Numbers:
    if is_own_order(values.type):
        return order_numbers(values)
    dense: Numbers = pc.rank(values, tiebreaker="dense").to_numpy().astype(np.int64)
    return dense


def sorted_by(keys: Sequence[Numbers]) -> Numbers:
    """The positions that put rows in the order of these numbers, the first ones first; equal rows stay as they came."""
    return np.lexsort(keys[::-1])


def comes_before(keys: Sequence[Numbers], left: Numbers, right: Numbers) -> npt.NDArray[np.bool_]:
    """Whether the row at `left[i]` comes before that at `right[i]`."""
    before = np.zeros(len(left), dtype=np.bool_)
    open_ = np.ones(len(left), dtype=np.bool_)
    for numbers in keys:
        before |= open_ & (numbers[left] < numbers[right])
        open_ &= numbers[left] == numbers[right]
    return before


def compare(left: pa.Array, right: pa.Array) -> Signs:
    """Row by row, how the values of two columns of one type compare."""
    has_left, has_right = (side.is_valid().to_numpy(zero_copy_only=False) for side in (left, right))
    signs: Signs = has_left.astype(np.int8) - has_right.astype(np.int8)
    both = np.flatnonzero(has_left & has_right)
    if len(both):
        at = pa.array(both)
        signs[both] = _compare_known(left.take(at), right.take(at))
    return signs


def _compare_known(left: pa.Array, right: pa.Array) -> Signs:
    if pa.types.is_struct(left.type):
        return _structs(left, right)
    if pa.types.is_list(left.type) or pa.types.is_large_list(left.type):
        return _arrays(left, right)
    signs = _signs(pc.greater(left, right)) - _signs(pc.less(left, right))
    if pa.types.is_floating(left.type):
        left_nan, right_nan = _signs(pc.is_nan(left)), _signs(pc.is_nan(right))
        signs = np.where((left_nan | right_nan) != 0, left_nan - right_nan, signs)
    return signs


def _signs(flags: pa.Array) -> Signs:
    numbers: Signs = flags.to_numpy(zero_copy_only=False).astype(np.int8)
    return numbers


def _structs(left: pa.Array, right: pa.Array) -> Signs:
    signs = np.zeros(len(left), dtype=np.int8)
    equal = np.arange(len(left))
    for index in range(left.type.num_fields):
        at = pa.array(equal)
        found = compare(*(pc.struct_field(side, index).take(at) for side in (left, right)))
        signs[equal] = found
        equal = equal[found == 0]
        if not len(equal):
            break
    return signs


def _arrays(left: pa.Array, right: pa.Array) -> Signs:
    """In as many rounds as the longest common beginning has elements."""
    signs = np.zeros(len(left), dtype=np.int8)
    starts = [side.offsets.to_numpy()[:-1].astype(np.int64) for side in (left, right)]
    sizes = [np.diff(side.offsets.to_numpy()).astype(np.int64) for side in (left, right)]
    equal = np.arange(len(left))
    element = 0
    while len(equal):
        more = [element < size[equal] for size in sizes]
        signs[equal] = more[0].astype(np.int8) - more[1].astype(np.int8)
        equal = equal[more[0] & more[1]]
        if len(equal):
            at = [pa.array(start[equal] + element) for start in starts]
            found = compare(left.values.take(at[0]), right.values.take(at[1]))
            signs[equal] = found
            equal = equal[found == 0]
        element += 1
    return signs
