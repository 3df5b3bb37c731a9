"""Cut the rows of a task into pieces of whole keys, so that what is made of them fits into memory. Executors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from penstock.operators.grouping import Grouped
from penstock.operators.wide_columns import narrowed
from penstock.state.keys import KeyBatch


def pieces(grouped: Grouped, max_rows: int) -> Iterator[Grouped]:
    """Parts of at most so many rows, in the order of keys; a key is never split, so one with more rows is a piece of its own."""
    starts = grouped.starts
    first = 0
    while first < len(grouped.keys):
        last = int(np.searchsorted(starts, starts[first] + max_rows, side="right")) - 1
        last = max(last, first + 1)
        yield _part(grouped, first, last)
        first = last


def _part(grouped: Grouped, first: int, last: int) -> Grouped:
    """The keys from `first` up to `last`, with their rows; nothing is copied."""
    start, stop = int(grouped.starts[first]), int(grouped.starts[last])
    keys = KeyBatch(grouped.keys.sort_keys[first:last], grouped.keys.columns.slice(first, last - first))
    table = grouped.table.slice(start, stop - start)
    return Grouped(keys, grouped.starts[first : last + 1] - start, narrowed(table))
