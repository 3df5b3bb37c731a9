"""Merge the partial aggregates of groups of any size, all groups at once. Executors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.operators.aggregates import AggregateSpec, merge

Positions = npt.NDArray[np.int64]


def merged_groups(
    specs: Sequence[AggregateSpec], partials: pa.RecordBatch, starts: Positions
) -> pa.RecordBatch:
    """One row for each group: group i has the rows `starts[i]` up to `starts[i + 1]`, at least one.

    Neighbours are merged in pairs, in as many rounds as the largest group can be halved, in the order of the rows.
    """
    sizes = np.diff(starts)
    while len(sizes) and sizes.max() > 1:
        within = np.arange(len(partials)) - np.repeat(starts[:-1], sizes)
        left = np.flatnonzero(within % 2 == 0)
        has_right = within[left] + 1 < np.repeat(sizes, (sizes + 1) // 2)
        pairs = left[has_right]
        known = np.ones(len(pairs), dtype=np.bool_)
        merged = merge(specs, partials.take(pa.array(pairs)), known, partials.take(pa.array(pairs + 1)))
        at = left.copy()
        at[has_right] = len(partials) + np.arange(len(pairs))
        both = pa.Table.from_batches([partials.select(merged.schema.names), merged])
        (partials,) = both.take(pa.array(at)).combine_chunks().to_batches()
        sizes = (sizes + 1) // 2
        starts = np.concatenate(([0], np.cumsum(sizes)))
    return partials
