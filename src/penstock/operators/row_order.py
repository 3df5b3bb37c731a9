"""The order of rows, as a user writes it, and as numbers that put columns in it as Spark would. Driver and executors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import ConfigError
from penstock.state.keys import is_own_order, order_numbers

Numbers = npt.NDArray[np.int64]
OrderBy = str | tuple[str, ...] | list[str]
"""What a user may write for an order."""


@dataclass(frozen=True)
class Order:
    """A column that puts the rows of a key in order."""

    column: str
    descending: bool = False

    def __str__(self) -> str:
        return f"{self.column} desc" if self.descending else self.column


_ORDER = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^\s`]+))(?:\s+(asc|desc))?\s*", re.IGNORECASE)


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
    """One of them, or several."""
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
    values = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
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
