"""The order of rows by their sort key, several times faster than a stable sort of positions. Executors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.state.keys import SortKeys

_SIGN_FREE_BITS = 63


def stable_order(sort_keys: SortKeys) -> npt.NDArray[np.int64]:
    """The positions that put the sort keys in ascending order; equal ones stay in the order they came in.

    Sorting plain numbers is much faster than sorting positions by numbers. So the leading bits of the sort key and the position are packed
    into one number and sorted. What the missing bits leave out of order, among a million keys a pair or two, a stable sort mends: it is
    quick on what is sorted almost everywhere.
    """
    if len(sort_keys) < 2:  # noqa: PLR2004 - one row is in order
        return np.arange(len(sort_keys), dtype=np.int64)
    position_bits = (len(sort_keys) - 1).bit_length()
    lowest = int(sort_keys.min())
    key_bits = (int(sort_keys.max()) - lowest).bit_length()
    dropped = max(0, key_bits + position_bits - _SIGN_FREE_BITS)
    packed = (sort_keys - lowest) >> dropped
    packed <<= position_bits
    packed |= np.arange(len(sort_keys), dtype=np.int64)
    packed.sort()
    packed &= (1 << position_bits) - 1
    if dropped:
        ordered = sort_keys[packed]
        if (ordered[1:] < ordered[:-1]).any():
            return packed[np.argsort(ordered, kind="stable")]
    return packed
