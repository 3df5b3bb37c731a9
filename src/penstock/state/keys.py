"""Keys, key groups and the one number that state is sorted by. Driver and executors.

    sort key (63 bits) = key group (15 bits) · low 48 bits of the key's xxhash64

Spark computes both, so Python's `hash` is never involved. The key group is `hash(key) mod max_parallelism` with Spark's own
partitioning hash; subtask i of P owns the groups g with g mod P = i. Two keys may share a sort key: whoever looks one up
compares the key itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt
import pyarrow as pa

GROUP_SHIFT = 48
MAX_KEY_GROUPS = 1 << 15
SORT_KEY = "__sort_key"
"""The column of rows on their way to an operator, and of rows of state."""
ORDER = "__order"
"""The column with the second sort number, where a key may have many rows."""

SortKeys = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyBatch:
    """Distinct keys in ascending order of their sort key; row i of `columns` is the key of `sort_keys[i]`.

    In a table with several rows a key, what identifies them: `orders` has the second sort number of each, and `columns` goes on
    with the columns that tell them apart.
    """

    sort_keys: SortKeys
    columns: pa.RecordBatch
    orders: SortKeys | None = None

    def __len__(self) -> int:
        return len(self.sort_keys)

    def slice(self, start: int, stop: int) -> KeyBatch:
        """The keys from `start` up to `stop`, without a copy."""
        orders = None if self.orders is None else self.orders[start:stop]
        return KeyBatch(self.sort_keys[start:stop], self.columns.slice(start, stop - start), orders)

    def take(self, rows: npt.NDArray[np.int64]) -> KeyBatch:
        """The keys at these positions."""
        orders = None if self.orders is None else self.orders[rows]
        return KeyBatch(self.sort_keys[rows], self.columns.take(pa.array(rows)), orders)


def key_groups(sort_keys: SortKeys) -> npt.NDArray[np.int64]:
    """The key group of each sort key."""
    return sort_keys >> GROUP_SHIFT


def owner(group: int, parallelism: int) -> int:
    """The subtask that owns a key group."""
    return group % parallelism


def owners(groups: npt.NDArray[np.int64], parallelism: int) -> npt.NDArray[np.int64]:
    """`owner`, for many groups at once."""
    return groups % parallelism


def share_groups(one: int, parallelism: int, other: int, other_parallelism: int) -> bool:
    """Whether subtask `one` of so many and subtask `other` of so many own a key group in common, however many groups there are."""
    return (one - other) % gcd(parallelism, other_parallelism) == 0


def groups_owned(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """The key groups of a subtask."""
    return range(subtask, max_parallelism, parallelism)
