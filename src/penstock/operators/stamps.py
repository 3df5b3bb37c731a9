"""When values of state were last touched: the stamps of columns with a time to live, as a batch changes them. Executors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.state.lifetimes import STAMP_TYPE, Lifetime

Flags = npt.NDArray[np.bool_]


def touched_now(rows: int, now_us: int) -> pa.Array:
    """The stamps of rows that are all written now."""
    return pa.array(np.full(rows, now_us, dtype=np.int64))


class ColumnStamps:
    """The stamps of one column of the row of a key; `renews` when a look at the value counts as a touch."""

    def __init__(self, lifetime: Lifetime, *, renews: bool) -> None:
        self.name = lifetime.stamp
        self.renews = renews
        self._stored = pa.nulls(0, STAMP_TYPE)

    def load(self, stored: pa.RecordBatch) -> None:
        """Take those of the keys that come next."""
        self._stored = stored.column(self.name)

    @property
    def known(self) -> Flags:
        """The keys that have a value."""
        known: Flags = self._stored.is_valid().to_numpy(zero_copy_only=False)
        return known

    def column(self, values: pa.Array | pa.ChunkedArray, touched: Flags, now_us: int) -> pa.Array:
        """The stamps of the same keys when these were touched; null where there is no value."""
        known = self._stored.fill_null(0) if self._stored.null_count else self._stored
        stamps = np.where(touched, now_us, known.to_numpy(zero_copy_only=False))
        if not values.null_count:
            return pa.array(stamps)
        return pa.array(stamps, mask=np.asarray(values.is_null()))
